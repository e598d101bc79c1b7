// What is refused: files of version 3 of which one text of the header is another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "interop/turbomlx_files.h"
#include "support/matchers.h"
#include "tqcache/interop/turbomlx/turbomlx_file.h"
#include "tqcache/interop/turbomlx/value_tree.h"

namespace tqcache::interop {
namespace turbomlx_errors_test {

using ::testing::HasSubstr;

// A file of version 3 in two parts.
struct V3 {
  std::string header;
  Bytes blob;  // safetensors

  explicit V3(const std::string& name) {
    const Bytes file = test::turbomlx_file(name);
    const auto size = static_cast<std::size_t>(number_at<std::uint64_t>(file, 4));
    header.assign(reinterpret_cast<const char*>(file.data()) + 12, size);
    blob.assign(file.begin() + 12 + static_cast<std::ptrdiff_t>(size), file.end());
  }

  // The first time that `from` is there.
  V3& replace(const std::string& from, const std::string& to) {
    const std::size_t at = header.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) header.replace(at, from.size(), to);
    return *this;
  }

  Bytes bytes() const {
    ByteWriter out;
    out.append(as_bytes(kTurboMlxV3Magic));
    out.append_sized(as_bytes(header));
    out.append(blob);
    return std::move(out).take();
  }
};

void expect_error(const V3& file, ErrorCode code, const std::string& message) {
  EXPECT_THAT(test::import_bytes(file.bytes()), test::FailsWith(code, HasSubstr(message)));
}

struct Change {
  const char* file;
  std::string from, to;
  ErrorCode code;
  const char* message;
};

std::string field(const std::string& name, const std::string& value) {
  return "\\\"" + name + "\\\": " + value;
}
std::string text(const std::string& value) { return "\\\"" + value + "\\\""; }

constexpr auto kCorrupt = ErrorCode::kCorrupt;
constexpr auto kUnsupported = ErrorCode::kUnsupported;
constexpr auto kTooLarge = ErrorCode::kTooLarge;

TEST(TurboMlxErrors, MetaStateIsHeldAgainstItsRules) {
  const std::vector<Change> changes = {
      {"v3_prod", field("schema_version", "1"), field("schema_version", "2"), kUnsupported,
       "layer 0: meta_state: schema_version 2: outside 1 to 1"},
      {"v3_prod", text("turbomlx-v0.1"), text("turbomlx-v9"), kUnsupported,
       "quantizer_version \"turbomlx-v9\""},
      {"v3_prod", field("codebook_version", text("v1-lloyd-max-beta")),
       field("codebook_version", text("v2")), kUnsupported, "codebook_version \"v2\""},
      {"v3_prod", text("little_endian_compact"), text("big"), kUnsupported,
       "packing_layout \"big\""},
      {"v3_prod", field("mode", text("prod")), field("mode", text("max")), kUnsupported,
       "mode \"max\""},
      {"v3_prod", field("mode", text("prod")), field("mode", "1"), kCorrupt,
       "mode: expected a text, found an integer"},
      {"v3_prod", field("bits_mse", "1"), field("bits_mse", "2"), kCorrupt,
       "bits_mse 2 beside bits_total 2"},
      {"v3_prod", field("bits_total", "2"), field("bits_total", "99"), kUnsupported,
       "bits_total 99: outside 1 to 9"},
      {"v3_prod", "lloyd-max-beta-d8-b1", "lloyd-max-beta-d8-b7", kCorrupt,
       "codebook_id \"v1-lloyd-max-beta-d8-b7\" where \"v1-lloyd-max-beta-d8-b1\" belongs"},
      {"v3_prod", field("head_dim", "8"), field("head_dim", "4096"), kUnsupported,
       "head_dim 4096: outside 2 to 1024"},
      {"v3_prod", field("head_dim", "8"), field("head_dim", "null"), kUnsupported,
       "a cache that has seen no token"},
      {"v3_prod", field("num_kv_heads", "1"), field("num_kv_heads", "0"), kUnsupported,
       "num_kv_heads 0: outside 1 to 1024"},
      {"v3_prod", field("rotation_kind", text("qr")), field("rotation_kind", text("svd")),
       kUnsupported, "rotation_kind \"svd\""},
      {"v3_prod", field("rotation_seed", "0"), field("rotation_seed", "-1"), kCorrupt,
       "rotation_seed -1: below 0"},
      {"v3_prod", field("qjl_seed", "1"), field("qjl", "1"), kCorrupt, "qjl_seed: missing"},
      {"v3_prod", field("values_mode", text("dense")), field("values_mode", text("sparse")),
       kUnsupported, "values_mode \"sparse\""},
      {"v3_prod", text("oracle_preview"), text("other"), kUnsupported, "scorer_mode \"other\""},
      {"v3_prod", field("offset", "2"), field("offset", "-2"), kUnsupported, "offset -2"},
      {"v3_prod", text("disabled"), text("enabled"), kCorrupt,
       "mixed_precision_profile \"enabled\" where \"disabled\" belongs"},
      {"v3_prod", "\"{\\\"bits_mse", "\"[\\\"bits_mse", kCorrupt, "meta_state: not valid JSON"},
      {"v3_mixed", field("outlier_channels", "2"), field("outlier_channels", "7"), kUnsupported,
       "mixed_precision: outlier_channels 7: outside 2 to 6"},
      {"v3_mixed", field("regular_bits", "2"), field("regular_bits", "9"), kUnsupported,
       "codes of 9 bits"},
      {"v3_mixed", "calibration_variance\\\", \\\"", "other\\\", \\\"", kUnsupported,
       "outlier_selection_policy \"other\""},
      {"v3_mixed", "hi=3,lo=2", "hi=4,lo=2", kCorrupt, "mixed_precision_profile"},
      {"v3_hybrid", field("value_bits", "4"), field("value_bits", "0"), kUnsupported,
       "value_bits 0"},
      {"v3_hybrid", field("value_group_size", "8"), field("value_group_size", "5"), kCorrupt,
       "head_dim 16 in groups of 5"},
      {"v3_hybrid", field("value_group_size", "8"), field("value_group_size", "null"), kCorrupt,
       "head_dim 16 in groups of 0"},
      {"v3_hybrid", field("value_bits", "4"), field("value_bits", "3"), kCorrupt,
       "no whole words of codes"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.message);
    expect_error(V3(change.file).replace(change.from, change.to), change.code, change.message);
  }
}

TEST(TurboMlxErrors, ArraysAreHeldAgainstTheirShapes) {
  const std::vector<Change> changes = {
      {"v3_prod", "[1, 1, 2, 8]", "[2, 1, 1, 8]", kUnsupported, "a batch of 2"},
      {"v3_prod", "[1, 1, 2, 8]", "[1, 1, 4, 4]", kUnsupported,
       "values_main: head vectors of 4 beside 8"},
      {"v3_prod", "[1, 1, 2, 8]", "[1, 2, 1, 8]", kCorrupt,
       "values_main: of another shape than meta_state says"},
      {"v3_prod", "[1, 1, 2, 8]", "[1, 1, 16]", kCorrupt, "not four dimensions"},
      {"v3_prod", "[1, 1, 2, 8]", "[1, 1, 2, 9]", kCorrupt,
       "array \"entry_0000.000009\": a shape of another size"},
      {"v3_prod", "[1, 1, 2, 8]", "[1, 1, 2, -8]", kCorrupt, "shape: not numbers from 0 on"},
      {"v3_prod", "entry_0000.000009", "entry_0000.000099", kCorrupt,
       "array \"entry_0000.000099\": not in the file"},
      {"v3_prod", "entry_0000.000000", "entry_0000.000001", kCorrupt, "reg_idx \"F32\""},
      {"v3_prod", "[1, 1, 2]}", "[1, 2, 1]}", kCorrupt, "reg_residuals"},
      {"v3_prod", "entry_0000.000008\", \"dtype\": \"bool\", \"shape\": [0]",
       "entry_0000.000002\", \"dtype\": \"bool\", \"shape\": [1, 1, 2, 1]", kCorrupt,
       "outlier_mask: not allowed with these settings"},
      {"v3_prod", field("offset", "2"), field("offset", "3"), kCorrupt, "values_main"},
      {"v3_prod", field("offset", "2"), field("offset", "0"), kCorrupt,
       "reg_idx: not allowed with these settings"},
      {"v3_mixed", "\"shape\": [8]", "\"shape\": [2, 4]", kCorrupt,
       "not a yes or no for each channel"},
      {"v3_mixed", "entry_0000.000008\", \"dtype\": \"bool\", \"shape\": [8]",
       "entry_0000.000002\", \"dtype\": \"bool\", \"shape\": [0]", kCorrupt,
       "outlier_mask: missing"},
      {"v3_mixed", "entry_0000.000009", "entry_0000.000002", kCorrupt, "a shape of another size"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.message);
    expect_error(V3(change.file).replace(change.from, change.to), change.code, change.message);
  }
}

TEST(TurboMlxErrors, TheMaskHasTheRightCount) {
  V3 file("v3_mixed");
  // The booleans stand behind all wider values, the mask between codes of other arrays.
  std::size_t n_changed = 0;
  for (std::size_t i = file.blob.size() - 64; i < file.blob.size(); ++i) {
    V3 changed = file;
    changed.blob[i] ^= std::byte{1};
    const auto cache = test::import_bytes(changed.bytes());
    if (cache.ok()) continue;
    EXPECT_THAT(cache.error().message, HasSubstr("outlier_mask: "));
    ++n_changed;
  }
  EXPECT_EQ(n_changed, 8u);
}

TEST(TurboMlxErrors, CalibrationsAgreeWithTheRest) {
  const std::vector<Change> changes = {
      {"v3_calibrating", "\"outlier_mask_frozen\": false", "\"outlier_mask_frozen\": true",
       kCorrupt, "calibration_keys: not allowed with these settings"},
      {"v3_calibrating", "\"calibration_tokens_seen\": 3", "\"calibration_tokens_seen\": 2",
       kCorrupt, "calibration_tokens_seen 2 where offset is 3"},
      {"v3_calibrating", "\"calibration_values\"", "\"calibration\"", kCorrupt,
       "calibration_keys: not allowed"},
      {"v3_calibrating", "\"calibration_keys\"", "\"calibration\"", kCorrupt,
       "outlier_mask: missing"},
      {"v3_calibrating", "\"outlier_mask_frozen\": false", "\"outlier_mask_frozen\": 0", kCorrupt,
       "outlier_mask_frozen: expected true or false, found an integer"},
      {"v3_calibrating", "\"calibration_keys\": {\"__tq_array__\": true",
       "\"calibration_keys\": {\"__tq_array__\": false", kCorrupt,
       "calibration_keys: not an array"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.message);
    expect_error(V3(change.file).replace(change.from, change.to), change.code, change.message);
  }
}

TEST(TurboMlxErrors, ClassesAreKnownOrRefused) {
  const std::vector<Change> changes = {
      {"v3_hybrid", "\"class_path\": \"mlx_lm.models.cache.KVCache\"",
       "\"class_path\": \"mlx_lm.models.cache.CacheList\"", kUnsupported,
       "layer 2: class \"CacheList\""},
      {"v3_hybrid", "\"class_path\": \"mlx_lm.models.cache.KVCache\"",
       "\"class_path\": \"rogue.attacker.KVCache\"", kUnsupported,
       "layer 2: class \"rogue.attacker.KVCache\""},
      {"v3_hybrid", "\"class_path\": \"mlx_lm.models.cache.KVCache\"", "\"class\": 1", kCorrupt,
       "layer 2: class_path: missing"},
      {"v3_hybrid", "\"state\": [{", "\"state\": [7, {", kCorrupt,
       "layer 0: array 0: not an array"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.message);
    expect_error(V3(change.file).replace(change.from, change.to), change.code, change.message);
  }
}

TEST(TurboMlxErrors, LayersOfMlxLmAreHeldAgainstTheirShapes) {
  const std::vector<Change> changes = {
      {"v3_hybrid", "\"entry_0002.000001\", \"dtype\": \"float16\", \"shape\": [1, 2, 9, 16]",
       "\"entry_0002.000001\", \"dtype\": \"float16\", \"shape\": [1, 2, 18, 8]", kCorrupt,
       "layer 2: values: other shapes than the keys"},
      {"v3_hybrid", "\"entry_0002.000001\", \"dtype\": \"float16\", \"shape\": [1, 2, 9, 16]",
       "\"entry_0000.000000\", \"dtype\": \"float16\", \"shape\": [1, 2, 9, 1]", kUnsupported,
       "layer 2: keys of 16 and values of 1 components"},
      {"v3_hybrid", "\"items\": [\"9\", \"8\", \"8\"]", "\"items\": [\"9\", \"8\"]", kCorrupt,
       "layer 4: meta_state: not offset, group_size and bits"},
      {"v3_hybrid", "\"items\": [\"9\", \"8\", \"8\"]", "\"items\": [\"x\", \"8\", \"8\"]",
       kCorrupt, "layer 4: meta_state: not numbers"},
      {"v3_hybrid", "\"items\": [\"9\", \"8\", \"8\"]", "\"items\": [\"9\", \"8\", \"16\"]",
       kUnsupported, "layer 4: groups of 16 bits"},
      {"v3_hybrid", "\"items\": [\"9\", \"8\", \"8\"]", "\"items\": [\"8\", \"8\", \"8\"]",
       kCorrupt, "layer 4: keys "},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]", "\"items\": [\"2\", \"6\", \"9\"]",
       kCorrupt, "layer 5: meta_state: not keep, max_size, offset and _idx"},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]",
       "\"items\": [\"6\", \"6\", \"9\", \"5\"]", kCorrupt, "layer 5: "},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]",
       "\"items\": [\"2\", \"6\", \"9\", \"1\"]", kCorrupt,
       "layer 5: ring: _idx 1 among the 2 rows that stay"},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]",
       "\"items\": [\"2\", \"6\", \"9\", \"7\"]", kCorrupt,
       "layer 5: meta_state: _idx 7 in a ring of 6"},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]",
       "\"items\": [\"2\", \"9\", \"9\", \"5\"]", kCorrupt, "layer 5: ring: 6 tokens, expected 9"},
      {"v3_hybrid", "\"items\": [\"2\", \"6\", \"9\", \"5\"]",
       "\"items\": [\"2\", \"6\", \"10\", \"5\"]", kCorrupt,
       "layer 5: 10 tokens where other layers have 9"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.message);
    expect_error(V3(change.file).replace(change.from, change.to), change.code, change.message);
  }
}

// --- the file around it

TEST(TurboMlxErrors, TheHeaderIsWhole) {
  V3 file("v3_prod");
  Bytes bytes = file.bytes();
  const std::uint64_t large = std::uint64_t{1} << 40;
  std::memcpy(bytes.data() + 4, &large, sizeof large);
  EXPECT_EQ(test::import_bytes(bytes).error().message, "a header of 1099511627776 bytes");
  EXPECT_EQ(test::import_bytes(bytes).error().code, kTooLarge);
  const std::uint64_t more = bytes.size();
  std::memcpy(bytes.data() + 4, &more, sizeof more);
  EXPECT_EQ(test::import_bytes(bytes).error().code, ErrorCode::kTruncated);

  expect_error(V3("v3_prod").replace("\"schema_version\": 3", "\"schema_version\": 2"),
               kUnsupported, "schema_version 2 in a safetensors file");
  expect_error(V3("v3_prod").replace("\"schema_version\": 3", "\"schema\": 3"), kCorrupt,
               "schema_version: missing");
  expect_error(V3("v3_prod").replace("\"entries\"", "\"layers\""), kCorrupt, "entries: missing");
  expect_error(V3("v3_prod").replace("{\"schema", "[{\"schema"), kCorrupt, "not valid JSON");
  file.header = "[]";
  expect_error(file, kCorrupt, "not a TurboMLX prompt cache: not a dict");
  file.header = "{\"schema_version\": 3, \"entries\": []}";
  expect_error(file, kCorrupt, "no layers");
  file.header = "{\"schema_version\": 3, \"entries\": [7]}";
  expect_error(file, kCorrupt, "layer 0: not a dict");
  file.header = "{\"schema_version\": 3, \"schema_version\": 3, \"entries\": []}";
  expect_error(file, kCorrupt, "header: JSON with a key given twice");
  file.header = "{\"__tq_tuple__\": true}";
  expect_error(file, kCorrupt, "header: items: missing");
  std::string many = "{\"schema_version\": 3, \"entries\": [0";
  for (int i = 0; i < 1024; ++i) many += ",0";
  file.header = many + "]}";
  expect_error(file, kTooLarge, "1025 layers");
}

TEST(TurboMlxErrors, AFileWithoutArraysHasNoBlob) {
  V3 file("v3_prod");
  file.blob.clear();
  expect_error(file, kCorrupt, "not in the file");
  file.header =
      "{\"schema_version\": 3, \"entries\": [{\"class_path\": "
      "\"mlx_lm.models.cache.ArraysCache\", \"state\": [], \"meta_state\": \"\"}]}";
  expect_error(file, kUnsupported, "no layer that says how many tokens there are");
}

TEST(TurboMlxErrors, JsonIsKeptWithinBounds) {
  EXPECT_EQ(parse_json_tree(std::string(33, '[')).error().code, kTooLarge);
  EXPECT_EQ(parse_json_tree(std::string(32, '[') + std::string(32, ']')).ok(), true);
  std::string many = "[0";
  for (int i = 0; i < (1 << 18); ++i) many += ",0";
  EXPECT_EQ(parse_json_tree(many + "]").error().code, kTooLarge);
  EXPECT_EQ(parse_json_tree("").error().code, kCorrupt);
  EXPECT_EQ(parse_json_tree("{}x").error().code, kCorrupt);
  EXPECT_EQ(parse_json_tree("18446744073709551615")->at(0).kind, Value::Kind::kNumber);
  EXPECT_EQ(parse_json_tree("-5")->at(0).integer, -5);
  EXPECT_EQ(parse_json_tree("0.5")->at(0).number, 0.5);
  EXPECT_EQ(parse_turbomlx_meta("{\"a\": \"" + std::string(70000, 'x') + "\"}").error().code,
            kTooLarge);
  EXPECT_EQ(parse_turbomlx_meta("[]").error().message, "meta_state: not a JSON object");
}

TEST(TurboMlxErrors, PicklesOfOtherVersionsAreRefused) {
  Bytes file = test::turbomlx_file("v2_mse_p5");
  const std::string_view key = "schema_version";
  const auto at = std::search(file.begin(), file.end(), as_bytes(key).begin(), as_bytes(key).end());
  ASSERT_NE(at, file.end());
  *(at + 16) = std::byte{3};  // after MEMOIZE and BININT1
  EXPECT_THAT(test::import_bytes(file),
              test::FailsWith(kUnsupported, "schema_version 3 in a pickle"));
}

TEST(TurboMlxErrors, OtherFilesAreNone) {
  const ByteView text = as_bytes("{\"schema_version\": 3}");
  EXPECT_EQ(test::import_bytes({text.begin(), text.end()}).error().message,
            "not a TurboMLX prompt cache");
  EXPECT_EQ(test::import_bytes({}).error().code, kCorrupt);
}

}  // namespace turbomlx_errors_test
}  // namespace tqcache::interop
