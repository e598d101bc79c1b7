#include <gtest/gtest.h>

#include <string>

#include "tqcache/tensors/foreign_json.h"

namespace tqcache::tensors {
namespace json_limits_test {

constexpr JsonLimits kLimits{.max_bytes = 200, .max_depth = 3, .max_values = 20};

testing::AssertionResult is_refused(const std::string& text, ErrorCode code,
                                    const std::string& message) {
  const auto parsed = parse_json(text, kLimits);
  if (parsed) return testing::AssertionFailure() << "was parsed";
  if (parsed.error().code == code && parsed.error().message == message) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << parsed.error().message;
}

std::string list_of(std::size_t n) {
  std::string text = "[0";
  for (std::size_t i = 1; i < n; ++i) text += ",0";
  return text + "]";
}

TEST(ParseJson, TakesTextsWithinTheLimits) {
  const auto parsed = parse_json(R"({"a": [1, {"b": null}], "c": "x"})", kLimits);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ((*parsed)["a"][0], 1);
  EXPECT_EQ((*parsed)["c"], "x");
  EXPECT_TRUE(parse_json(list_of(19), kLimits));
  EXPECT_TRUE(parse_json("7", kLimits));
  EXPECT_TRUE(parse_json(R"([{"a": 1}, {"a": 2}])", kLimits));  // the same key of two objects
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{} {}", "[1,]", "{'a': 1}", "NaN"}) {
    EXPECT_TRUE(is_refused(text, ErrorCode::kCorrupt, "not valid JSON")) << text;
  }
  EXPECT_TRUE(is_refused(std::string("{}\0{", 4), ErrorCode::kCorrupt,
                         "not valid JSON: it contains a NUL"));
  EXPECT_TRUE(
      is_refused(R"({"a": {"b": 1, "b": 2}})", ErrorCode::kCorrupt, "JSON with a key given twice"));
}

TEST(ParseJson, RefusesWhatIsBeyondALimit) {
  EXPECT_TRUE(is_refused(std::string(201, ' '), ErrorCode::kTooLarge,
                         "201 bytes of JSON, at most 200 are read"));
  for (const char* text : {"[[[[]]]]", "[[[[", R"({"a":{"a":{"a":{}}}})"}) {
    EXPECT_TRUE(is_refused(text, ErrorCode::kTooLarge, "JSON nested more than 3 deep")) << text;
  }
  for (const std::string& text : {list_of(20), list_of(90)}) {
    EXPECT_TRUE(is_refused(text, ErrorCode::kTooLarge, "JSON of more than 20 values")) << text;
  }
}

TEST(IsPlainText, IsPrintableAscii) {
  EXPECT_TRUE(is_plain_text(""));
  EXPECT_TRUE(is_plain_text("Qwen3 \"7B\" ~"));
  EXPECT_FALSE(is_plain_text("a\nb"));
  EXPECT_FALSE(is_plain_text("\x7f"));
  EXPECT_FALSE(is_plain_text("\xc3\xa9"));
}

}  // namespace json_limits_test
}  // namespace tqcache::tensors
