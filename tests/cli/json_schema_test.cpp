// docs/reference/output.schema.json: tqcache() of cli/program.h compares with it whatever a test
// lets a verb print with --json.

#include "cli/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/program.h"

namespace tqcache::test {
namespace json_schema_test {

using nlohmann::json;
using testing::HasSubstr;

TEST(OutputSchema, RefusesWhatIsNotInIt) {
  const json schema = json::parse(R"({
    "type": "object",
    "properties": {
      "schema": {"const": 1},
      "kind": {"enum": ["a", "b"]},
      "size": {"type": ["integer", "null"]},
      "rows": {"type": "array", "items": {"type": "number"}},
      "any": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/failure"}]}
    },
    "required": ["schema"]
  })");
  const auto check = [&](const char* text) { return mismatch(schema, json::parse(text)); };
  EXPECT_EQ(check(R"({"schema": 1, "kind": "b", "size": null, "rows": [1, 2.5], "any": "x"})"), "");
  EXPECT_EQ(check(R"({"schema": 1, "any": {"code": "a", "exit_code": 1, "file": null,
                      "message": "b"}})"),
            "");
  EXPECT_THAT(check("[]"), HasSubstr("$: [] is no \"object\""));
  EXPECT_THAT(check("{}"), HasSubstr("schema is missing"));
  EXPECT_THAT(check(R"({"schema": 2})"), HasSubstr("$.schema is not 1"));
  EXPECT_THAT(check(R"({"schema": 1, "kind": "c"})"), HasSubstr("$.kind: \"c\" is none of"));
  EXPECT_THAT(check(R"({"schema": 1, "size": 1.5})"), HasSubstr("$.size: 1.5 is no"));
  EXPECT_THAT(check(R"({"schema": 1, "rows": [1, "2"]})"), HasSubstr("$.rows[1]"));
  EXPECT_THAT(check(R"({"schema": 1, "any": {"code": "a"}})"), HasSubstr("exit_code is missing"));
  EXPECT_THAT(check(R"({"schema": 1, "new": 1})"), HasSubstr("$.new is not in the schema"));
  EXPECT_THROW(mismatch(json::parse(R"({"pattern": "a"})"), "a"), std::runtime_error);
}

// The names that begin the lines of a help.
std::vector<std::string> verbs_in(const std::string& help) {
  std::vector<std::string> verbs;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find("  ", 2);
    const std::string word = line.substr(0, 2) == "  " ? line.substr(2, end - 2) : "";
    if (!word.empty() && end != std::string::npos &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos) {
      verbs.push_back(word);
    }
  }
  return verbs;
}

TEST(OutputSchema, HasEveryVerb) {
  std::vector<std::string> verbs;
  for (const std::string& verb : verbs_in(must({"--help"}).out)) {
    if (verb != "store" && verb != "eval") {
      verbs.push_back(verb);
      continue;
    }
    for (const std::string& part : verbs_in(must({verb, "--help"}).out)) {
      verbs.push_back(verb + " " + part);
    }
  }
  EXPECT_GT(verbs.size(), 30u);
  for (const std::string& verb : verbs) {
    std::vector<std::string> args;
    std::istringstream words(verb);
    for (std::string word; words >> word;) args.push_back(word);
    args.push_back("--help");
    const bool has_json = must(args).out.find("--json") != std::string::npos;
    EXPECT_EQ(output_schema()["$defs"].contains(verb), has_json) << verb;
  }
}

TEST(OutputSchema, HasTheVersion) {
  const json version = json::parse(must({"--version", "--json"}).out);
  EXPECT_EQ(mismatch(output_schema()["$defs"]["version"], version), "");
}

}  // namespace json_schema_test
}  // namespace tqcache::test
