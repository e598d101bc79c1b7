#include <gtest/gtest.h>

#include <string>

#include "support/sanitized.h"
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

TEST(ParseJson, LimitsTheKeysOfAnObject) {
  const JsonLimits limits{.max_bytes = 200, .max_depth = 3, .max_keys = 2};
  EXPECT_TRUE(parse_json(R"([{"a": 1, "b": {"a": 1, "b": 2}}, {"c": 3}])", limits));
  for (const char* text : {R"({"a": 1, "b": 2, "c": 3})", R"([{"a": {"d": 1, "e": 2, "f": 3}}])"}) {
    const auto parsed = parse_json(text, limits);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kTooLarge);
    EXPECT_EQ(parsed.error().message, "JSON object of more than 2 keys");
    EXPECT_EQ(parse_ordered_json(text, limits).error().message, parsed.error().message);
  }
}

TEST(ParseJson, TakesTheLastValueOfARepeatedKeyWhereAsked) {
  const JsonLimits limits{.max_bytes = 200, .max_depth = 3, .takes_repeated_keys = true};
  const auto parsed = parse_json(R"({"a": [1], "b": 2, "a": {"c": 3}})", limits);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->dump(), R"({"a":{"c":3},"b":2})");
}

TEST(ParseJson, AgreesWithTheParserWithoutLimits) {
  const JsonLimits limits{.max_bytes = 200, .max_depth = 9};
  for (
      const char* text :
      {"[]", "{}", "null", "-0.0", "[1e308, -9223372036854775808, 18446744073709551615, true]",
       R"({"b": {"y": [{}, [], [[1], {"z": "\u00e9\ud83d\ude00"}]], "x": 2}, "a": [1, {"c": 1}, 2]})"}) {
    const auto parsed = parse_json(text, limits);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->dump(), nlohmann::json::parse(text).dump());
    const auto ordered = parse_ordered_json(text, limits);
    ASSERT_TRUE(ordered) << ordered.error().message;
    EXPECT_EQ(ordered->dump(), nlohmann::ordered_json::parse(text).dump());
  }
  EXPECT_EQ(parse_ordered_json(R"({"a": 1, "b": {"c": 1, "c": 2}})", limits).error().message,
            "JSON with a key given twice");
}

// Where each object takes as long as those before it, this would take many minutes.
TEST(ParseJson, TakesManyObjectsAndManyKeysInTheTimeOfTheirBytes) {
#ifdef TQCACHE_TEST_SANITIZED
  constexpr std::size_t kMany = 20'000;
#else
  constexpr std::size_t kMany = 500'000;
#endif
  constexpr JsonLimits kWide{.max_bytes = 16 << 20, .max_depth = 3, .max_values = 1 << 20};
  std::string objects = "[{}", keys = R"({"0":[])";
  for (std::size_t i = 1; i < kMany; ++i) {
    objects += ",{}";
    keys += ",\"" + std::to_string(i) + "\":[]";
  }
  objects += ']';
  keys += '}';
  for (const std::string& text : {objects, keys}) {
    const auto parsed = parse_json(text, kWide);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->size(), kMany);
    const auto ordered = parse_ordered_json(text, kWide);
    ASSERT_TRUE(ordered) << ordered.error().message;
    EXPECT_EQ(ordered->size(), kMany);
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
