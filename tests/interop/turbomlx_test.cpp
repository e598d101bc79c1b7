// Prompt caches of TurboMLX: what is read is what NumPy decodes by TurboMLX's recipe.

#include "tqcache/interop/turbomlx/turbomlx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "interop/foreign_cache_reading.h"
#include "interop/turbomlx_files.h"

namespace tqcache::interop {
namespace turbomlx_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

ForeignCache import_named(const std::string& name) {
  auto cache = test::import_bytes(test::turbomlx_file(name));
  EXPECT_TRUE(cache.ok()) << name << ": " << (cache.ok() ? "" : cache.error().message);
  return cache.ok() ? std::move(cache).value() : ForeignCache{};
}

// Keys are sums of up to 32 products of f32, of lengths up to 60.
constexpr float kTolerance = 1e-5f;

class Files : public ::testing::TestWithParam<std::string> {};

TEST_P(Files, HoldWhatNumpyDecodes) {
  const auto values = test::read_values(import_named(GetParam()));
  ASSERT_TRUE(values.ok()) << values.error().message;
  const std::vector<float> expected = test::expected_values(GetParam());
  ASSERT_EQ(values->size(), expected.size());
  float largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs((*values)[i] - expected[i]));
  }
  EXPECT_LE(largest, kTolerance);
  RecordProperty("largest_difference", std::to_string(largest));
}

TEST_P(Files, MakeAValidCache) {
  const auto cache = test::read_foreign(import_named(GetParam()));
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(cache->identity.source_format, "turbomlx");
  EXPECT_TRUE(cache->hidden_tokens.has_value());
}

INSTANTIATE_TEST_SUITE_P(TurboMlx, Files,
                         ::testing::Values("v2_mse_p2", "v2_mse_p3", "v2_mse_p4", "v2_mse_p5",
                                           "v2_mse_numpy2", "v1_prod_p4", "v2_mixed_p5",
                                           "v2_calibrating_p5", "v2_long_p5", "v2_hybrid_p5",
                                           "v3_hybrid", "v3_calibrating"),
                         [](const auto& each) { return each.param; });

TEST(TurboMlx, TellsItsFilesFromOthers) {
  EXPECT_EQ(*is_turbomlx(*test::as_source(test::turbomlx_file("v3_hybrid"))), TurboMlxFile::kV3);
  EXPECT_EQ(*is_turbomlx(*test::as_source(test::turbomlx_file("v2_mse_p2"))),
            TurboMlxFile::kPickle);
  for (const std::string text : {"", "T", "TQS2", "\x80", "\x80\x01", "\x80\x06", "{}"}) {
    const ByteView bytes = as_bytes(text);
    EXPECT_EQ(*is_turbomlx(*test::as_source({bytes.begin(), bytes.end()})), std::nullopt) << text;
  }
}

TEST(TurboMlx, KeepsTheDtypeOfWhatIsDense) {
  const ForeignCache cache = import_named("v2_calibrating_p5");
  const auto& layer = std::get<cache::AttentionDesc>(cache.layers[0].description);
  EXPECT_EQ(layer.k.dtype, Dtype::kF16);
  EXPECT_EQ(layer.v.dtype, Dtype::kF16);
  EXPECT_EQ(cache.n_tokens, 7);
}

TEST(TurboMlx, DecodesKeysToF32AndLeavesDenseValues) {
  const ForeignCache cache = import_named("v2_long_p5");
  const auto& layer = std::get<cache::AttentionDesc>(cache.layers[0].description);
  EXPECT_EQ(layer.k.dtype, Dtype::kF32);
  EXPECT_EQ(layer.v.dtype, Dtype::kF16);
  EXPECT_EQ(layer.shape, (cache::HeadShape{1, 8}));
  EXPECT_EQ(cache.n_tokens, 300);
}

TEST(TurboMlx, ReadsAnyTokens) {
  const ForeignCache cache = import_named("v2_long_p5");
  const interop::ForeignLayer& layer = cache.layers[0];
  const auto all = test::read_tensor(layer, cache::TensorKind::kKeys, cache.n_tokens);
  ASSERT_TRUE(all.ok());
  Bytes raw(3 * 8 * sizeof(float));
  ASSERT_TRUE(layer.read_k(297, 3, raw).ok());
  std::vector<float> rows;
  test::append_f32(Dtype::kF32, raw, rows);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all->end() - 24));
}

TEST(TurboMlx, SaysWhatTheFileSaysOfItself) {
  const ForeignCache cache = import_named("v2_mixed_p5");
  EXPECT_THAT(cache.metadata, Contains(Pair("TurboMLX", "version 2, a pickle of protocol 5")));
  EXPECT_THAT(cache.metadata, Contains(Pair("classes", "2 x TurboQuantKVCache")));
  EXPECT_THAT(cache.metadata,
              Contains(Pair("keys",
                            "1 x mse, calibration_variance:outliers=4,hi=3,lo=2, rotation qr of "
                            "seed 0; 1 x prod, rolling_variance:outliers=8,hi=3,lo=2, rotation "
                            "wht of seed 0, signs of seed 1")));
  const ForeignCache hybrid = import_named("v3_hybrid");
  EXPECT_THAT(hybrid.metadata, Contains(Pair("TurboMLX", "version 3")));
  EXPECT_THAT(hybrid.metadata,
              Contains(Pair("keys",
                            "1 x mse, 4 bits, codebook v1-lloyd-max-beta-d16-b4, rotation qr of "
                            "seed 0")));
  EXPECT_THAT(hybrid.metadata, Contains(Pair("values", "1 x affine, 4 bits in groups of 8")));
}

TEST(TurboMlx, SaysWhatIsLost) {
  EXPECT_THAT(import_named("v3_hybrid").dropped_fields,
              ElementsAre("The codes, lengths and signs of TurboQuant keys are decoded to f32 (1 x "
                          "head_dim 16: outside 32 to 1024).",
                          "Keys and values in groups are decoded to f32 (3 x head_dim 16: outside "
                          "32 to 1024; 2 x part 0: a group of 16).",
                          "The settings of TurboQuant caches are not kept."));
  EXPECT_THAT(import_named("v3_calibrating").dropped_fields,
              ElementsAre("The settings of TurboQuant caches are not kept.",
                          "The calibration that 1 layers are in is not kept; their tokens are."));
}

TEST(TurboMlx, BringsARingIntoTheOrderOfPositions) {
  const ForeignCache cache = import_named("v3_hybrid");
  const auto& ring = std::get<cache::WindowDesc>(cache.layers[5].description);
  EXPECT_EQ(ring.window, (cache::Window{6, 2}));
  EXPECT_EQ(ring.attention.shape, (cache::HeadShape{2, 16}));
  EXPECT_EQ(cache.layers[5].arrays[0].description.shape, (std::vector<std::uint64_t>{2, 6, 16}));
}

TEST(TurboMlx, NamesArraysBySlot) {
  const ForeignCache cache = import_named("v3_hybrid");
  for (const std::size_t layer : {0u, 3u}) {
    const auto& arrays = std::get<cache::StateDesc>(cache.layers[layer].description);
    ASSERT_EQ(arrays.arrays.size(), 2u);
    EXPECT_EQ(arrays.arrays[0].name, "0");
    EXPECT_EQ(arrays.arrays[0].dtype, Dtype::kF16);
    EXPECT_EQ(arrays.arrays[1].name, "1");
    EXPECT_EQ(arrays.arrays[1].shape, (std::vector<std::uint64_t>{1, 2, 4, 4}));
  }
}

// --- artifacts

// Whether all are odd multiples, up to 15, of one number.
bool are_even_steps(std::span<const float> x) {
  for (int first = 1; first <= 15; first += 2) {
    const auto is_odd = [&](float value) {
      const float steps = std::abs(value / x[0] * static_cast<float>(first));
      const float half = (steps - 1) / 2;
      return std::abs(half - std::round(half)) < 1e-4f && steps < 15.1f;
    };
    if (std::all_of(x.begin(), x.end(), is_odd)) return true;
  }
  return false;
}

// The folder has a unit matrix as rotation and even steps as codebook of the first layer.
TEST(TurboMlx, TakesArtifactsInsteadOfComputingThem) {
  auto cache = import_turbomlx(test::as_source(test::turbomlx_file("v2_mse_p5")),
                               {.artifacts = test::turbomlx_folder() / "artifacts"});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const auto keys = test::read_tensor(cache->layers[0], cache::TensorKind::kKeys, cache->n_tokens);
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(are_even_steps(std::span(*keys).first(16)));
  const auto computed = test::expected_values("v2_mse_p5");
  EXPECT_FALSE(are_even_steps(std::span(computed).first(16)));
  // What is not in the folder is computed: the second layer has another seed and other bits.
  const auto others =
      test::read_tensor(cache->layers[1], cache::TensorKind::kKeys, cache->n_tokens);
  ASSERT_TRUE(others.ok());
  for (std::size_t i = 0; i < others->size(); ++i) {
    EXPECT_NEAR((*others)[i], computed[2 * 2 * 5 * 16 + i], kTolerance);
  }
}

TEST(TurboMlx, RefusesAFolderOfArtifactsThatIsNone) {
  const auto cache = import_turbomlx(test::as_source(test::turbomlx_file("v2_mse_p5")),
                                     {.artifacts = test::turbomlx_folder() / "nowhere"});
  EXPECT_EQ(cache.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(cache.error().message, "no folder of artifacts");
}

TEST(TurboMlx, RefusesArtifactsThatAreNone) {
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "codebooks");
  test::write_all(folder / "codebooks/v1-lloyd-max-beta-d16-b4.npz", "no zip file");
  const auto cache = import_turbomlx(test::as_source(test::turbomlx_file("v2_mse_p5")),
                                     {.artifacts = folder.path()});
  ASSERT_FALSE(cache.ok());
  EXPECT_THAT(cache.error().message, HasSubstr("v1-lloyd-max-beta-d16-b4.npz, array centroids: "));
}

}  // namespace turbomlx_test
}  // namespace tqcache::interop
