#pragma once
// tests/cli/json_schema.h: docs/reference/output.schema.json, and what it refuses.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tqcache::test {

// The published schema: "$defs" has one for each verb, and "error".
const nlohmann::json& output_schema();

// The verb of a command line: "convert", "store put"; empty if there is none.
std::string verb_of(const std::vector<std::string>& args);

// What is wrong with `value`, with its place; empty if it is as `schema` says, and has no other
// members. Knows the keywords type, const, enum, properties, required, items, anyOf and $ref;
// throws for any other, so that none is ignored.
std::string mismatch(const nlohmann::json& schema, const nlohmann::json& value,
                     const std::string& place = "$");

// What is wrong with that which a run with --json printed; empty if it is as published.
std::string json_mismatch(const std::vector<std::string>& args, const std::string& out,
                          const std::string& err, int exit_code);

}  // namespace tqcache::test
