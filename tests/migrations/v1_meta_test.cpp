// JSON texts of layers: what they may say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "migrations/v1_metadata.h"
#include "support/matchers.h"
#include "support/v1_builder.h"

namespace tqcache::test {
namespace v1_meta_test {

using migrations::read_calibration_meta;
using migrations::read_numbers;
using migrations::read_turbo_meta;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json good(const V1Turbo& options = {}) { return json::parse(v1_turbo_meta({2, 64}, 7, options)); }

void expect_refused(const json& meta, ErrorCode code, const std::string& message) {
  EXPECT_THAT(read_turbo_meta(meta.dump()), test::FailsWith(code, HasSubstr(message)));
}

TEST(V1Meta, IsRead) {
  const auto meta = must(read_turbo_meta(
      good({.bits = 3, .prod = true, .wht = true, .rotation_seed = 5, .qjl_seed = 6}).dump()));
  EXPECT_TRUE(meta.is_prod);
  EXPECT_TRUE(meta.is_wht);
  EXPECT_EQ(meta.bits_mse, 2);
  EXPECT_EQ(meta.head_dim, 64);
  EXPECT_EQ(meta.num_kv_heads, 2);
  EXPECT_EQ(meta.rotation_seed, 5u);
  EXPECT_EQ(meta.qjl_seed, 6u);
  EXPECT_EQ(meta.offset, 7);
  EXPECT_FALSE(meta.has_affine_values);
  EXPECT_FALSE(meta.mixed);
}

TEST(V1Meta, OfMixedPrecisionIsRead) {
  const auto meta = must(
      read_turbo_meta(good({.mixed = V1Mixed{16, 4, 3}, .affine_values = V1Affine{8, 64}}).dump()));
  ASSERT_TRUE(meta.mixed);
  EXPECT_EQ(meta.mixed->outlier_channels, 16);
  EXPECT_EQ(meta.mixed->outlier_high_bits, 4);
  EXPECT_EQ(meta.mixed->regular_bits, 3);
  EXPECT_TRUE(meta.has_affine_values);
  EXPECT_EQ(meta.value_bits, 8);
  EXPECT_EQ(meta.value_group_size, 64);
}

TEST(V1Meta, NeedsEveryField) {
  for (const char* key :
       {"bits_mse", "bits_total", "codebook_id", "codebook_version", "head_dim", "mode",
        "mixed_precision_profile", "num_kv_heads", "offset", "packing_layout", "qjl_seed",
        "quantizer_version", "rotation_kind", "rotation_seed", "schema_version", "values_mode"}) {
    json meta = good();
    meta.erase(key);
    expect_refused(meta, ErrorCode::kCorrupt,
                   std::string("meta_state: key \"") + key + "\": missing");
    meta[key] = json::array();
    expect_refused(meta, ErrorCode::kCorrupt, key);
  }
}

TEST(V1Meta, KnowsNothingNewer) {
  const auto refused = [](const char* key, const json& value) {
    json meta = good();
    meta[key] = value;
    expect_refused(meta, ErrorCode::kUnsupported, key);
  };
  refused("schema_version", 2);
  refused("quantizer_version", "turbomlx-v0.2");
  refused("codebook_version", "v2");
  refused("packing_layout", "lanes");
  refused("mode", "mixed");
  refused("rotation_kind", "dct");
  refused("values_mode", "turbo");
  refused("bits_total", 10);
  refused("bits_mse", 0);
  refused("head_dim", 7);
  refused("head_dim", 1025);
  refused("num_kv_heads", 0);
  refused("offset", -1);
  refused("offset", 16777217);
}

TEST(V1Meta, MayNotContradictItself) {
  const auto refused = [](const char* key, const json& value) {
    json meta = good();
    meta[key] = value;
    expect_refused(meta, ErrorCode::kCorrupt, key);
  };
  refused("bits_mse", 3);
  refused("codebook_id", "v1-lloyd-max-beta-d64-b3");
  refused("rotation_seed", -1);
  refused("mixed_precision_profile", "calibration_variance:outliers=8,hi=3,lo=2");
  json meta = good({.mixed = V1Mixed{}});
  meta["mixed_precision_profile"] = "disabled";
  expect_refused(meta, ErrorCode::kCorrupt, "mixed_precision_profile");
  meta = good({.mixed = V1Mixed{}});
  meta["mixed_precision"]["outlier_channels"] = 9;
  expect_refused(meta, ErrorCode::kCorrupt, "mixed_precision_profile");
}

TEST(V1Meta, OfMixedPrecisionHasLimits) {
  const auto refused = [](const char* key, const json& value) {
    json meta = good({.mixed = V1Mixed{}});
    meta["mixed_precision"][key] = value;
    expect_refused(meta, ErrorCode::kUnsupported, key);
  };
  refused("outlier_channels", 7);
  refused("outlier_channels", 57);
  refused("regular_bits", 0);
  refused("outlier_high_bits", 10);
  refused("outlier_selection_policy", "guess");
  refused("calibration_prefix_tokens", 257);
  json meta = good({.bits = 2, .prod = true, .mixed = V1Mixed{8, 2, 1}});
  expect_refused(meta, ErrorCode::kUnsupported, "codes of 0 bits");
}

TEST(V1Meta, IsRefusedWhenItIsNoObject) {
  for (const char* text : {"", "[]", "{", "nonsense", "{} {}", "{\"a\":1e999}"}) {
    const auto meta = read_turbo_meta(text);
    ASSERT_FALSE(meta.ok()) << text;
    EXPECT_EQ(meta.error().code, ErrorCode::kCorrupt);
  }
}

TEST(V1Meta, DoesNotNestDeep) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[').append(depth, ']'); };
  for (const std::size_t depth : {17u, 60000u}) {
    const auto refused = read_turbo_meta(nested(depth));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  }
  EXPECT_EQ(read_turbo_meta(nested(16)).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(read_numbers(std::string(60000, '[')).ok());
}

TEST(V1Meta, HasEachKeyOnceAndNoMoreThanAnyoneNeeds) {
  EXPECT_EQ(read_calibration_meta(R"({"calibration_tokens_seen": 1, "calibration_tokens_seen": 2,
                                      "outlier_mask_frozen": true})")
                .error()
                .message,
            "extra_meta: JSON: a duplicate key");
  std::string many = "{";
  for (int i = 0; i < 65; ++i) many.append("\"k").append(std::to_string(i)).append("\": 1,");
  many.back() = '}';
  EXPECT_EQ(read_calibration_meta(many).error().code, ErrorCode::kTooLarge);
}

TEST(V1Numbers, AreNumbersOrTexts) {
  EXPECT_THAT(must(read_numbers("")), IsEmpty());
  EXPECT_THAT(must(read_numbers("\"\"")), IsEmpty());
  EXPECT_THAT(must(read_numbers("[]")), IsEmpty());
  EXPECT_THAT(must(read_numbers("[1, \"2\", 16777216]")), ElementsAre(1, 2, 16777216));
}

TEST(V1Numbers, AreNothingElse) {
  for (const char* text : {"{}", "1", "[-1]", "[1.5]", "[\"\"]", "[\" 1\"]", "[\"1x\"]", "[null]",
                           "[16777217]", "[\"99999999999\"]", "\"x\"", "[18446744073709551615]",
                           "[9223372036854775808]", "[true]", "[\"-1\"]", "[[1]]"}) {
    EXPECT_THAT(read_numbers(text),
                test::FailsWith(ErrorCode::kCorrupt, HasSubstr("meta_state: ")));
  }
}

TEST(V1Meta, MayHaveFieldsThatNobodyKnows) {
  json meta = good();
  meta["note"] = nullptr;
  meta["large"] = ~std::uint64_t{0};
  EXPECT_TRUE(read_turbo_meta(meta.dump()).ok());
}

TEST(V1Calibration, IsOverUnlessTheFileSaysOtherwise) {
  EXPECT_TRUE(must(read_calibration_meta("")).is_done);
  const auto meta = must(
      read_calibration_meta(R"({"calibration_tokens_seen": 12, "outlier_mask_frozen": false})"));
  EXPECT_FALSE(meta.is_done);
  EXPECT_EQ(meta.tokens_seen, 12);
}

TEST(V1Calibration, NeedsBothFields) {
  EXPECT_FALSE(read_calibration_meta(R"({"calibration_tokens_seen": 12})").ok());
  EXPECT_FALSE(read_calibration_meta(R"({"outlier_mask_frozen": true})").ok());
  EXPECT_FALSE(
      read_calibration_meta(R"({"calibration_tokens_seen": 1, "outlier_mask_frozen": 1})").ok());
}

}  // namespace v1_meta_test
}  // namespace tqcache::test
