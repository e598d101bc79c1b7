// TurboQuantKVCache: codes are carried over as they are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>

#include "migrations/v1_to_v2.h"
#include "support/matchers.h"
#include "support/v1_builder.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/rotation.h"

namespace tqcache::test {
namespace v1_turbo_test {

using cache::AttentionLayer;
using cache::DenseTensor;
using cache::HeadShape;
using cache::TurboTensor;
using migrations::check_migrated;
using migrations::Migration;
using migrations::v1_to_v2;
using migrations::V1Entry;
using migrations::V1File;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Migration migrated(const V1File& file) {
  Migration migration = must(v1_to_v2(file));
  must(check_migrated(file, migration.cache, 2));
  return migration;
}

V1File turbo_file(std::int64_t n_tokens, HeadShape shape, const V1Turbo& options) {
  return V1Builder(n_tokens).turbo(shape, options).build();
}

const AttentionLayer& only_layer(const Migration& migration) {
  return std::get<AttentionLayer>(migration.cache.layers.at(0));
}

struct Case {
  const char* name;
  HeadShape shape;
  V1Turbo options;
  codec::Mode mode = codec::Mode::kMse;
};

std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }

class TurboLayers : public testing::TestWithParam<Case> {};

TEST_P(TurboLayers, KeepTheirCodes) {
  const Case& each = GetParam();
  for (const std::int64_t n_tokens : {0, 1, 256, 515}) {
    const V1File file = turbo_file(n_tokens, each.shape, each.options);
    const Migration migration = migrated(file);
    const AttentionLayer& layer = only_layer(migration);
    EXPECT_EQ(layer.shape, each.shape);
    ASSERT_TRUE(std::holds_alternative<TurboTensor>(layer.k)) << n_tokens;
    const auto& k = std::get<TurboTensor>(layer.k);
    EXPECT_EQ(k.codec.mode(), each.mode);
    EXPECT_EQ(cache::packed_block_count(layer.k), n_tokens / 256);
    EXPECT_EQ(k.tail.dtype, Dtype::kF32);
    EXPECT_EQ(k.codec.centering(), cache::Centering::kNone);
    EXPECT_EQ(k.codec.n_sinks(), 0);
    for (const codec::PartSpec& part : k.codec.parts()) {
      EXPECT_EQ(part.scale, codec::ScaleRule::kRaw);
    }
    EXPECT_EQ(std::holds_alternative<TurboTensor>(layer.v), each.options.affine_values.has_value());
    EXPECT_THAT(migration.notes, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TurboLayers,
    testing::Values(
        Case{"mse_1_wht", {2, 64}, {.bits = 1, .wht = true}},
        Case{"mse_2_qr", {2, 32}, {.bits = 2, .rotation_seed = 7}},
        Case{"mse_3_qr", {1, 40}, {.bits = 3}},
        Case{"mse_4_wht", {2, 96}, {.bits = 4, .wht = true, .norms = V1Dtype::kF16}},
        Case{"mse_5_no_power_of_two", {1, 36}, {.bits = 5, .wht = true}},
        Case{"mse_8", {1, 64}, {.bits = 8, .affine_values = V1Affine{8, 32}}},
        Case{"prod_2", {2, 64}, {.bits = 2, .prod = true, .wht = true}, codec::Mode::kProd},
        Case{"prod_4", {1, 36}, {.bits = 4, .prod = true, .qjl_seed = 3}, codec::Mode::kProd},
        Case{"mixed_2.5", {2, 64}, {.mixed = V1Mixed{16, 3, 2}}, codec::Mode::kMixed},
        Case{"mixed_3.5",
             {1, 96},
             {.wht = true, .mixed = V1Mixed{12, 4, 3}, .affine_values = V1Affine{1, 32}},
             codec::Mode::kMixed}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

// The definition once more, for one head vector in plain sight.
TEST(TurboLayer, HasTheValuesOfTheDefinition) {
  const V1File file = turbo_file(300, {1, 32}, {.bits = 3, .prod = true, .rotation_seed = 9});
  V1Entry entry = file.entries[0];
  const Migration migration = migrated(file);
  for (const std::size_t token : {0u, 255u, 256u, 299u}) {
    std::vector<std::uint8_t> codes(32), signs(32);
    codec::unpack_codes(ByteView(v1_tensor(entry, "reg_idx").data).subspan(8 * token, 8), 2, codes);
    codec::unpack_codes(ByteView(v1_tensor(entry, "reg_signs").data).subspan(4 * token, 4), 1,
                        signs);
    float norm = 0, residual = 0;
    std::memcpy(&norm, v1_tensor(entry, "reg_norms").data.data() + 4 * token, 4);
    std::memcpy(&residual, v1_tensor(entry, "reg_residuals").data.data() + 4 * token, 4);
    const codec::Rotation r(
        {.head_dim = 32, .bits = 2, .seed = 9, .rotation = codec::TransformKind::kDenseQr});
    const codec::Rotation s(
        {.head_dim = 32, .bits = 1, .seed = 1, .rotation = codec::TransformKind::kGaussian});
    const std::vector<float> c = codec::lloyd_max_centroids(32, 2);
    std::vector<double> expected(32, 0.0);
    for (std::size_t row = 0; row < 32; ++row) {
      for (std::size_t i = 0; i < 32; ++i) {
        expected[i] += norm * c[codes[row]] * static_cast<double>(r.matrix()[row * 32 + i]);
        expected[i] += residual * std::sqrt(std::acos(-1.0) / 2) / 32 * (signs[row] ? 1 : -1) *
                       static_cast<double>(s.matrix()[row * 32 + i]);
      }
    }
    const auto block = static_cast<std::int64_t>(token / 256);
    std::vector<float> rows(static_cast<std::size_t>(cache::tokens_in_block(300, block)) * 32);
    cache::read_block(only_layer(migration).k, {1, 32}, 300, block, 0, rows);
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_NEAR(rows[token % 256 * 32 + i], expected[i], 2e-5);
    }
  }
}

TEST(TurboLayer, TakesTheOutlierChannelsOfItsMask) {
  const V1File file = turbo_file(300, {2, 64}, {.mixed = V1Mixed{16, 3, 2}});
  V1Entry entry = file.entries[0];
  const auto& mask = v1_tensor(entry, "outlier_mask").data;
  const Migration migration = migrated(file);
  const auto loud = std::get<TurboTensor>(only_layer(migration).k).codec.describe().quant->outliers;
  ASSERT_EQ(loud.size(), 32u);
  for (const std::uint16_t channel : loud) EXPECT_EQ(mask[channel], std::byte{1});
}

// --- what version 2 has no words for

struct Misfit {
  const char* name;
  HeadShape shape;
  V1Turbo options;
  const char* note;
};

std::ostream& operator<<(std::ostream& out, const Misfit& each) { return out << each.name; }

class TurboMisfits : public testing::TestWithParam<Misfit> {};

TEST_P(TurboMisfits, AreKeptDenseAndSaySo) {
  const V1File file = turbo_file(300, GetParam().shape, GetParam().options);
  const Migration migration = migrated(file);
  const auto& layer = only_layer(migration);
  ASSERT_TRUE(std::holds_alternative<DenseTensor>(layer.k));
  EXPECT_EQ(cache::dense_dtype(layer.k), Dtype::kF32);
  EXPECT_THAT(migration.notes, ElementsAre(HasSubstr(GetParam().note)));
  EXPECT_THAT(migration.notes, Each(testing::StartsWith("layer 0 k: ")));
  EXPECT_THAT(migration.notes, Each(testing::EndsWith("; kept dense")));
}

INSTANTIATE_TEST_SUITE_P(
    All, TurboMisfits,
    testing::Values(
        Misfit{"odd_norms", {2, 64}, {.odd_norms = true}, "a scale that f16 does not hold"},
        Misfit{"small_head_dim", {1, 16}, {.bits = 2}, "head_dim 16"},
        Misfit{"mixed_prod",
               {1, 64},
               {.bits = 3, .prod = true, .mixed = V1Mixed{16, 4, 3}},
               "mixed precision with signs"},
        Misfit{"quiet_outliers", {1, 64}, {.mixed = V1Mixed{16, 2, 3}}, "part 0: not more bits"},
        Misfit{"equal_outliers", {1, 64}, {.mixed = V1Mixed{16, 2, 2}}, "part 0: not more bits"},
        Misfit{"prod_9", {1, 32}, {.bits = 9, .prod = true}, "beside 8 bits"}),
    [](const auto& test) { return std::string(test.param.name); });

// --- before the outlier channels are chosen

TEST(CalibratingLayer, GoesOnDense) {
  for (const std::int64_t n_tokens : {0, 1, 255, 256}) {
    const V1File file = turbo_file(
        n_tokens, {2, 64},
        {.mixed = V1Mixed{16, 3, 2}, .affine_values = V1Affine{4, 64}, .calibrating = true});
    const Migration migration = migrated(file);
    const auto& layer = only_layer(migration);
    for (const cache::Tensor* tensor : {&layer.k, &layer.v}) {
      ASSERT_TRUE(std::holds_alternative<TurboTensor>(*tensor));
      EXPECT_EQ(cache::packed_block_count(*tensor), 0);
    }
    const auto& k = std::get<TurboTensor>(layer.k);
    EXPECT_EQ(k.codec.mode(), codec::Mode::kMixed);
    EXPECT_FALSE(k.codec.is_fixed());
    EXPECT_EQ(std::get<TurboTensor>(layer.v).codec.mode(), codec::Mode::kAffine);
    EXPECT_EQ(k.tail.dtype, n_tokens == 0 ? Dtype::kF32 : Dtype::kF16);
    EXPECT_THAT(migration.notes, IsEmpty());
  }
}

TEST(CalibratingLayer, IsPackedWhenTheNextTokenComes) {
  const V1File file = turbo_file(256, {2, 64}, {.mixed = V1Mixed{16, 3, 2}, .calibrating = true});
  Migration migration = migrated(file);
  auto& layer = std::get<AttentionLayer>(migration.cache.layers.at(0));
  must(cache::pack_full_tail(layer.k, 256, 1));
  EXPECT_EQ(cache::packed_block_count(layer.k), 1);
  EXPECT_TRUE(std::get<TurboTensor>(layer.k).codec.is_fixed());
}

TEST(CalibratingLayer, StaysDenseWithSignsOfResiduals) {
  const V1File file =
      turbo_file(100, {2, 64}, {.prod = true, .mixed = V1Mixed{16, 3, 2}, .calibrating = true});
  const Migration migration = migrated(file);
  EXPECT_TRUE(std::holds_alternative<DenseTensor>(only_layer(migration).k));
  EXPECT_THAT(migration.notes, ElementsAre(HasSubstr("mixed precision with signs of residuals")));
}

TEST(CalibratingLayer, StaysDenseWhereVersion2HasNoSuchParts) {
  const V1File file =
      turbo_file(100, {1, 24},
                 {.mixed = V1Mixed{8, 3, 2}, .affine_values = V1Affine{4, 8}, .calibrating = true});
  const Migration migration = migrated(file);
  EXPECT_TRUE(std::holds_alternative<DenseTensor>(only_layer(migration).k));
  EXPECT_TRUE(std::holds_alternative<DenseTensor>(only_layer(migration).v));
  EXPECT_THAT(migration.notes, ElementsAre(HasSubstr("layer 0 k: head_dim 24"),
                                           HasSubstr("layer 0 v: head_dim 24")));
}

// --- contradictions

void expect_refused(const V1File& file, ErrorCode code, const std::string& message) {
  EXPECT_THAT(v1_to_v2(file),
              test::FailsWith(code, AllOf(HasSubstr("layer 0: "), HasSubstr(message))));
}

using Change = std::function<void(V1Entry&)>;

void refused(const V1Turbo& options, const std::string& message, const Change& change,
             ErrorCode code = ErrorCode::kCorrupt) {
  V1File file = turbo_file(5, {2, 32}, options);
  change(file.entries[0]);
  expect_refused(file, code, message);
}

TEST(TurboLayer, IsRefusedWhenTensorsContradictMetaState) {
  const auto meta = [](HeadShape shape, std::int64_t n_tokens, const V1Turbo& options) {
    return [=](V1Entry& e) { e.meta_state = v1_turbo_meta(shape, n_tokens, options); };
  };
  refused({}, "\"reg_idx\", 1 x 2 x 5 x 16, expected 1 x 2 x 6 x 16", meta({2, 32}, 6, {}));
  refused({}, "reg_idx", meta({1, 32}, 5, {}));
  refused({}, "reg_idx", meta({2, 64}, 5, {}));
  refused({}, "reg_idx", meta({2, 32}, 5, {.bits = 3}));
  refused({.bits = 3}, "\"reg_signs\": missing", meta({2, 32}, 5, {.bits = 4, .prod = true}));
  refused({.bits = 4, .prod = true}, "\"reg_signs\": not expected here",
          meta({2, 32}, 5, {.bits = 3}));
  refused({}, "\"outlier_mask\": missing", meta({2, 32}, 5, {.mixed = V1Mixed{}}));
  refused({.mixed = V1Mixed{}}, "\"out_idx\": not expected here", meta({2, 32}, 5, {}));
  refused({.mixed = V1Mixed{8, 3, 2}}, "8 channels where 9 belong",
          meta({2, 32}, 5, {.mixed = V1Mixed{9, 3, 2}}));
  refused({}, "\"values_main\": not expected here",
          meta({2, 32}, 5, {.affine_values = V1Affine{}}));
  refused({.affine_values = V1Affine{}}, "\"values_main.packed\": not expected here",
          meta({2, 32}, 5, {}));
  refused({.affine_values = V1Affine{4, 32}}, "v: head_dim 32 in groups of 24",
          meta({2, 32}, 5, {.affine_values = V1Affine{4, 24}}));
}

TEST(TurboLayer, IsRefusedWhenTensorsAreNotWhatTheyShouldBe) {
  refused({}, "\"other\": not a tensor of this class", [](V1Entry& e) {
    e.state.push_back({"other", V1Dtype::kU8});
  });
  refused({}, "\"reg_norms\": missing", [](V1Entry& e) { v1_tensor(e, "reg_norms").data = {}; });
  refused({}, "\"reg_idx\": of another dtype",
          [](V1Entry& e) { v1_tensor(e, "reg_idx").dtype = V1Dtype::kBool; });
  refused({}, "not floating-point numbers",
          [](V1Entry& e) { v1_tensor(e, "reg_norms").dtype = V1Dtype::kU32; });
  refused({.mixed = V1Mixed{}}, "not a boolean for each channel",
          [](V1Entry& e) { v1_tensor(e, "outlier_mask").dtype = V1Dtype::kU8; });
  refused({.mixed = V1Mixed{}}, "not a boolean for each channel", [](V1Entry& e) {
    v1_tensor(e, "outlier_mask").shape = {1, 32};
  });
  refused({}, "unlike the keys", [](V1Entry& e) {
    v1_tensor(e, "values_main").shape = {1, 2, 10, 16};
  });
  refused(
      {}, "a batch of 2",
      [](V1Entry& e) {
        v1_tensor(e, "reg_idx").shape = {2, 1, 5, 16};
      },
      ErrorCode::kUnsupported);
}

TEST(TurboLayer, NeedsAllOfItsTensors) {
  const V1Turbo all{.bits = 3, .prod = true, .mixed = V1Mixed{8, 4, 3}};
  for (const char* name :
       {"reg_idx", "reg_norms", "reg_signs", "reg_residuals", "out_idx", "out_norms", "out_signs",
        "out_residuals", "outlier_mask", "values_main"}) {
    refused(all, std::string("\"").append(name).append("\": missing"),
            [&](V1Entry& e) { v1_tensor(e, name).data = {}; });
  }
  for (const char* name : {"values_main.packed", "values_main.scales", "values_main.biases"}) {
    refused({.affine_values = V1Affine{}}, std::string("\"").append(name).append("\": missing"),
            [&](V1Entry& e) { v1_tensor(e, name).data = {}; });
  }
}

TEST(TurboLayer, HasLengthsThatAreLengths) {
  for (const float bad : {-1.0f, INFINITY, NAN}) {
    refused({}, "\"reg_norms\": a length that is no",
            [&](V1Entry& e) { std::memcpy(v1_tensor(e, "reg_norms").data.data() + 8, &bad, 4); });
  }
}

TEST(TurboLayer, HasFiniteValues) {
  const float infinity = INFINITY;
  refused({.values = V1Dtype::kF32}, "v: head 0 token 1: not finite", [&](V1Entry& e) {
    std::memcpy(v1_tensor(e, "values_main").data.data() + 4 * 32, &infinity, 4);
  });
  for (const char* name : {"calibration_keys", "calibration_values"}) {
    refused(
        {.mixed = V1Mixed{}, .values = V1Dtype::kF32, .calibrating = true}, "not finite",
        [&](V1Entry& e) { std::memcpy(v1_tensor(e, name).data.data() + 4 * 32, &infinity, 4); });
  }
}

TEST(CalibratingLayer, IsRefusedWhenItContradictsItself) {
  const V1Turbo calibrating{.mixed = V1Mixed{}, .calibrating = true};
  refused(calibrating, "calibration_tokens_seen 4 where offset is 5", [](V1Entry& e) {
    e.extra_meta = R"({"calibration_tokens_seen": 4, "outlier_mask_frozen": false})";
  });
  refused(calibrating, "\"calibration_keys\": not expected here", [](V1Entry& e) {
    e.extra_meta = R"({"calibration_tokens_seen": 5, "outlier_mask_frozen": true})";
  });
  refused(calibrating, "\"calibration_values\": missing",
          [](V1Entry& e) { e.extra_state.pop_back(); });
  refused(calibrating, "not a tensor of this class", [](V1Entry& e) {
    e.extra_state.push_back(e.extra_state[0]);
    e.extra_state.back().name = "another";
  });
  refused(calibrating, "unlike meta_state", [](V1Entry& e) {
    for (auto& tensor : e.extra_state) tensor.shape = {1, 1, 5, 64};
  });
  refused(calibrating, "\"values_main\": not expected here", [](V1Entry& e) {
    e.state.push_back(e.extra_state[0]);
    e.state.back().name = "values_main";
  });
  refused({.mixed = V1Mixed{}}, "not expected here", [](V1Entry& e) {
    e.extra_meta = R"({"calibration_tokens_seen": 5, "outlier_mask_frozen": false})";
  });
  expect_refused(turbo_file(257, {1, 32}, calibrating), ErrorCode::kCorrupt,
                 "a calibration of 257 tokens");
}

// Each different map takes time to make, and memory.
TEST(TurboLayer, HasNoMoreDifferentMapsThanVersion2) {
  const auto nine_layers = [](bool different) {
    V1Builder builder(1);
    for (int i = 0; i < 9; ++i) {
      builder.turbo({1, 1024},
                    {.bits = 2, .prod = true, .wht = true, .qjl_seed = different ? i : 0});
    }
    return builder.build();
  };
  EXPECT_TRUE(v1_to_v2(nine_layers(false)).ok());
  const auto migration = v1_to_v2(nine_layers(true));
  ASSERT_FALSE(migration.ok());
  EXPECT_EQ(migration.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(migration.error().message, HasSubstr("layer 8: "));
  EXPECT_THAT(migration.error().message, HasSubstr("values of matrices"));
}

}  // namespace v1_turbo_test
}  // namespace tqcache::test
