#include "cli/json_schema.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace tqcache::test {
namespace {

using nlohmann::json;

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "null") return value.is_null();
  throw std::runtime_error("unknown type " + type);
}

std::string check_type(const json& type, const json& value, const std::string& place) {
  const json types = type.is_array() ? type : json::array({type});
  for (const json& each : types) {
    if (has_type(value, each)) return {};
  }
  return place + ": " + value.dump().substr(0, 60) + " is no " + type.dump();
}

std::string check_object(const json& schema, const json& value, const std::string& place) {
  const json& properties = schema["properties"];
  for (const json& name : schema.value("required", json::array())) {
    if (!value.contains(name)) return place + ": " + name.get<std::string>() + " is missing";
  }
  for (const auto& [name, member] : value.items()) {
    const std::string inner = place + "." + name;
    // Readers of the schema have to expect new members; here each has to be published.
    if (!properties.contains(name)) return inner + " is not in the schema";
    std::string wrong = mismatch(properties[name], member, inner);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_keyword(const std::string& keyword, const json& schema, const json& value,
                          const std::string& place) {
  const json& rule = schema[keyword];
  if (keyword == "description" || keyword == "required") return {};
  if (keyword == "$ref") {
    const std::string name = rule.get<std::string>().substr(std::string("#/$defs/").size());
    return mismatch(output_schema()["$defs"].at(name), value, place);
  }
  if (keyword == "type") return check_type(rule, value, place);
  if (keyword == "const") return value == rule ? "" : place + " is not " + rule.dump();
  if (keyword == "enum") {
    const bool is_known = std::ranges::find(rule, value) != rule.end();
    return is_known ? "" : place + ": " + value.dump() + " is none of " + rule.dump();
  }
  if (keyword == "properties") {
    return value.is_object() ? check_object(schema, value, place) : "";
  }
  if (keyword == "items") {
    if (!value.is_array()) return {};
    for (std::size_t i = 0; i < value.size(); ++i) {
      std::string wrong = mismatch(rule, value[i], place + "[" + std::to_string(i) + "]");
      if (!wrong.empty()) return wrong;
    }
    return {};
  }
  if (keyword == "anyOf") {
    std::string all;
    for (const json& each : rule) {
      const std::string wrong = mismatch(each, value, place);
      if (wrong.empty()) return {};
      all += (all.empty() ? "" : "; or ") + wrong;
    }
    return all;
  }
  throw std::runtime_error("unknown keyword " + keyword);
}

}  // namespace

const json& output_schema() {
  static const json schema = [] {
    std::ifstream file(TQCACHE_OUTPUT_SCHEMA);
    return json::parse(file);
  }();
  return schema;
}

std::string verb_of(const std::vector<std::string>& args) {
  if (args.empty() || args[0].starts_with("-")) return {};
  const bool is_group = args[0] == "store" || args[0] == "eval";
  if (!is_group) return args[0];
  return args.size() < 2 || args[1].starts_with("-") ? std::string() : args[0] + " " + args[1];
}

std::string mismatch(const json& schema, const json& value, const std::string& place) {
  for (const auto& [keyword, rule] : schema.items()) {
    std::string wrong = check_keyword(keyword, schema, value, place);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string json_mismatch(const std::vector<std::string>& args, const std::string& out,
                          const std::string& err, int exit_code) {
  const std::string verb = verb_of(args);
  if (std::ranges::find(args, "--json") == args.end() || verb.empty()) return {};
  const json& schemas = output_schema()["$defs"];
  const bool is_unknown = !schemas.contains(verb);
  if (is_unknown && exit_code != 2) return "no schema of " + verb;
  if (!out.empty() && !is_unknown) {
    const json value = json::parse(out, nullptr, false);
    if (value.is_discarded()) return verb + ": standard output is no JSON: " + out.substr(0, 80);
    std::string wrong = mismatch(schemas[verb], value);
    if (!wrong.empty()) return verb + " --json: " + wrong;
  } else if (exit_code != 0) {
    const std::size_t begin = err.rfind("{\"schema\"");
    if (begin == std::string::npos) return {};  // killed, or stopped
    const json value = json::parse(err.substr(begin), nullptr, false);
    if (value.is_discarded()) return verb + ": the error is no JSON: " + err.substr(begin);
    std::string wrong = mismatch(schemas["error"], value);
    if (!wrong.empty()) return "error of " + verb + ": " + wrong;
  }
  return {};
}

}  // namespace tqcache::test
