// Prompt caches of TurboMLX of whole token blocks: their codes become ours, not quantized again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "interop/foreign_cache_reading.h"
#include "interop/turbomlx_builder.h"
#include "interop/turbomlx_files.h"
#include "support/failing_source.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"
#include "tqcache/format/type_names.h"
#include "tqcache/tqkv.h"

namespace tqcache::interop {
namespace turbomlx_packed_test {

using test::BuiltGroups;
using test::BuiltMixed;
using test::BuiltTurbo;
using test::must;
using test::TurboMlxBuilder;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kTokens = 600;  // two full blocks, and 88 tokens

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

ForeignCache import_built(const TurboMlxBuilder& builder) {
  return must(test::import_bytes(builder.file()));
}

const cache::AttentionDesc& attention(const ForeignCache& cache, std::size_t layer = 0) {
  return std::get<cache::AttentionDesc>(cache.layers[layer].description);
}

// A tensor of our cache, decoded: [n_kv_heads, n_tokens, head_dim].
std::vector<float> decoded(const cache::Tensor& tensor, cache::HeadShape shape,
                           std::int64_t n_tokens) {
  std::vector<float> all(to_size(shape.n_kv_heads * n_tokens * shape.head_dim));
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const std::int64_t n = cache::tokens_in_block(n_tokens, block);
      const std::int64_t first = head * n_tokens + block * cache::kTokenBlock;
      cache::read_block(
          tensor, shape, n_tokens, block, head,
          std::span(all).subspan(to_size(first * shape.head_dim), to_size(n * shape.head_dim)));
    }
  }
  return all;
}

// --- one layer of every kind

struct Kind {
  std::string name;
  BuiltTurbo layer;
};

std::vector<Kind> kinds() {
  BuiltTurbo mse{.bits = 4, .seed = 3};
  BuiltTurbo odd{.shape = {1, 80}, .bits = 3, .seed = 5};
  BuiltTurbo wht{.bits = 2, .is_wht = true, .seed = 7};
  BuiltTurbo eight{.shape = {1, 32}, .bits = 8};
  BuiltTurbo prod{.bits = 3, .is_prod = true};
  BuiltTurbo prod_wht{.shape = {3, 32}, .bits = 5, .is_prod = true, .is_wht = true};
  BuiltTurbo mixed{.mixed = BuiltMixed{16, 3, 2}};
  BuiltTurbo mixed_wht{.is_wht = true, .mixed = BuiltMixed{32, 5, 1}};
  return {{"mse", mse},   {"odd", odd},           {"wht", wht},     {"eight", eight},
          {"prod", prod}, {"prod_wht", prod_wht}, {"mixed", mixed}, {"mixed_wht", mixed_wht}};
}

class Keys : public ::testing::TestWithParam<Kind> {};

// Parts of ours, and where the file has their codes.
std::vector<std::string> arrays_of(const BuiltTurbo& layer) {
  if (layer.mixed) return {"0.out_idx", "0.reg_idx"};
  if (layer.is_prod) return {"0.reg_idx", "0.reg_signs"};
  return {"0.reg_idx"};
}

TEST_P(Keys, KeepTheirCodes) {
  const BuiltTurbo& layer = GetParam().layer;
  TurboMlxBuilder builder(kTokens);
  builder.turbo(layer);
  const cache::Cache cache = must(test::read_foreign(import_built(builder)));
  const auto& tensor =
      std::get<cache::TurboTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  ASSERT_EQ(tensor.packed.size(), 2u);
  const std::vector<std::string> arrays = arrays_of(layer);
  ASSERT_EQ(tensor.codec.parts().size(), arrays.size());
  for (std::int64_t token = 0; token < 512; token += 5) {
    for (std::int64_t head = 0; head < layer.shape.n_kv_heads; ++head) {
      const auto block = token / cache::kTokenBlock;
      const codec::PackedHead packed = test::packed_head(tensor, block, head);
      std::size_t at = 0;
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        const codec::BlockShape& shape = tensor.codec.layout(0).parts[i].shape;
        std::vector<std::uint8_t> ours(shape.dim()), theirs(shape.dim());
        codec::unpack_token(shape, packed.codes.subspan(at, shape.block_bytes()),
                            to_size(token % cache::kTokenBlock), ours);
        at += shape.block_bytes();
        const std::size_t row_bytes = codec::packed_size(shape.dim(), shape.bits);
        codec::unpack_codes(ByteView(builder.array(arrays[i]))
                                .subspan(to_size(head * kTokens + token) * row_bytes, row_bytes),
                            shape.bits, theirs);
        ASSERT_EQ(ours, theirs) << "part " << i << " token " << token << " head " << head;
      }
    }
  }
}

// What each channel may differ by. The length of a part is rounded to f16, to the nearest: by 2^-11
// of itself, and so is every value of the part. What two parts of mode prod add up to differs by so
// much of each. And both sides round to f32 after each of some 2 d operations.
std::vector<float> bounds(const cache::TurboTensor& tensor, cache::HeadShape shape,
                          const std::vector<float>& theirs) {
  constexpr double kHalf = 0x1p-11, kSingle = 0x1p-24;
  const auto dim = to_size(shape.head_dim);
  std::vector<float> result(theirs.size());
  std::vector<float> base(to_size(cache::kTokenBlock) * dim);
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t token = 0; token < 512; ++token) {
      const std::int64_t block = token / cache::kTokenBlock;
      const bool is_prod = tensor.codec.mode() == codec::Mode::kProd;
      if (token % cache::kTokenBlock == 0 && is_prod) {
        const auto packed = test::packed_head(tensor, block, head);
        const codec::BlockCodec& first = tensor.codec.state().codec.part(0);
        first.decode(packed.codes.first(first.shape().block_bytes()), packed.scales.first(256), 256,
                     {Dtype::kF32, reinterpret_cast<std::byte*>(base.data()), dim * sizeof(float)});
      }
      const std::size_t at = to_size(head * kTokens + token) * dim;
      double length = 0;
      for (std::size_t i = 0; i < dim; ++i) length += double{theirs[at + i]} * theirs[at + i];
      for (std::size_t i = 0; i < dim; ++i) {
        const double x = theirs[at + i];
        const double first = is_prod ? base[to_size(token % cache::kTokenBlock) * dim + i] : x;
        const double rounded = kHalf * (std::abs(first) * 1.001 + std::abs(x - first));
        result[at + i] = static_cast<float>(rounded + 4 * kSingle * static_cast<double>(dim) *
                                                          std::sqrt(length));
      }
    }
  }
  return result;
}

TEST_P(Keys, DecodeToTheSameButForTheRoundingOfLengths) {
  const cache::HeadShape shape = GetParam().layer.shape;
  TurboMlxBuilder builder(kTokens);
  builder.turbo(GetParam().layer);
  const ForeignCache foreign = import_built(builder);
  const std::vector<float> theirs =
      must(test::read_tensor(foreign.layers[0], cache::TensorKind::kKeys, kTokens));
  const cache::Cache cache = must(test::read_foreign(foreign));
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  const std::vector<float> ours = decoded(layer.k, shape, kTokens);
  const std::vector<float> bound = bounds(std::get<cache::TurboTensor>(layer.k), shape, theirs);
  double error = 0, length = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_LE(std::abs(ours[i] - theirs[i]), bound[i]) << i;  // 0 in the dense tail
    error += std::pow(double{ours[i]} - theirs[i], 2);
    length += std::pow(double{theirs[i]}, 2);
  }
  EXPECT_GT(error, 0);
  RecordProperty("relative_error", std::to_string(std::sqrt(error / length)));
}

TEST_P(Keys, DecodeToTheSameWhereF16HoldsTheLengths) {
  BuiltTurbo built = GetParam().layer;
  built.length = 5.25f;
  TurboMlxBuilder builder(kTokens);
  builder.turbo(built);
  if (built.is_prod) {
    for (std::size_t at = 0; at < builder.array("0.reg_residuals").size(); at += sizeof(float)) {
      const float residual = 0.375f;
      std::memcpy(builder.array("0.reg_residuals").data() + at, &residual, sizeof residual);
    }
  }
  const ForeignCache foreign = import_built(builder);
  EXPECT_THAT(foreign.dropped_fields, Not(Contains(HasSubstr("rounded"))));
  const std::vector<float> theirs =
      must(test::read_tensor(foreign.layers[0], cache::TensorKind::kKeys, kTokens));
  const cache::Cache cache = must(test::read_foreign(foreign));
  const auto ours =
      decoded(std::get<cache::AttentionLayer>(cache.layers[0]).k, built.shape, kTokens);
  // Two ways to add up d numbers in f32, of at most the vector's length together with its signs'.
  const float bound = 5.25f * 2 * static_cast<float>(built.shape.head_dim) * 0x1p-22f;
  for (std::size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], bound) << i;
}

INSTANTIATE_TEST_SUITE_P(TurboMlx, Keys, ::testing::ValuesIn(kinds()),
                         [](const auto& each) { return each.param.name; });

TEST(TurboMlxPacked, SaysWhatIsRounded) {
  TurboMlxBuilder builder(kTokens);
  builder.turbo({.values = BuiltGroups{4, 32, Dtype::kF16}});
  const ForeignCache cache = import_built(builder);
  EXPECT_TRUE(cache.is_quantized);
  EXPECT_THAT(
      cache.dropped_fields,
      ElementsAre("The lengths of TurboQuant keys are rounded to f16; their codes are kept.",
                  "The codes of the last 88 tokens, which fill no block, are decoded to f32.",
                  "The settings of TurboQuant caches are not kept."));
}

TEST(TurboMlxPacked, NamesTheModeAndHasTheMapByValue) {
  TurboMlxBuilder builder(kTokens);
  builder.turbo({.bits = 4})
      .turbo({.bits = 3, .is_prod = true})
      .turbo({.mixed = BuiltMixed{16, 3, 2}, .values = BuiltGroups{2, 64, Dtype::kBF16}});
  const auto sections = must(reader_of(import_built(builder)));
  const auto tensor = [&](std::size_t layer) {
    return std::get<cache::AttentionDesc>(sections->description().layers[layer]);
  };
  EXPECT_EQ(format::type_name(tensor(0).k), "tqcache.turbo_mse.v1");
  EXPECT_EQ(format::type_name(tensor(0).v), "tqcache.dense.v1");
  EXPECT_EQ(format::type_name(tensor(1).k), "tqcache.turbo_prod.v1");
  EXPECT_EQ(format::type_name(tensor(2).k), "tqcache.turbo_mixed.v1");
  EXPECT_EQ(format::type_name(tensor(2).v), "tqcache.affine.v1");
  const codec::PartSpec first = tensor(0).k.quant->parts[0];
  const codec::PartSpec second = tensor(1).k.quant->parts[0];
  EXPECT_EQ(first.rotation, codec::TransformKind::kMatrix);
  EXPECT_EQ(first.matrix.values().data(), second.matrix.values().data());  // one matrix for both
  EXPECT_FALSE(tensor(1).k.quant->parts[1].matrix == second.matrix);
  EXPECT_EQ(tensor(2).k.quant->outliers.size(), 32u);
}

// --- groups

struct Groups {
  std::string name;
  BuiltGroups groups;
};

class ExactGroups : public ::testing::TestWithParam<Groups> {};

TEST_P(ExactGroups, DecodeToTheSameBits) {
  const cache::HeadShape shape{2, 128};
  TurboMlxBuilder builder(kTokens);
  builder.quantized(shape, GetParam().groups);
  const ForeignCache foreign = import_built(builder);
  const cache::Cache cache = must(test::read_foreign(foreign));
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  ASSERT_EQ(cache::packed_block_count(layer.k), 2);
  ASSERT_EQ(cache::packed_block_count(layer.v), 2);
  EXPECT_EQ(decoded(layer.k, shape, kTokens),
            must(test::read_tensor(foreign.layers[0], cache::TensorKind::kKeys, kTokens)));
  EXPECT_EQ(decoded(layer.v, shape, kTokens),
            must(test::read_tensor(foreign.layers[0], cache::TensorKind::kValues, kTokens)));
  EXPECT_THAT(foreign.dropped_fields, ElementsAre(HasSubstr("The codes of the last 88 tokens")));
}

INSTANTIATE_TEST_SUITE_P(TurboMlx, ExactGroups,
                         ::testing::Values(Groups{"f16_2", {2, 64, Dtype::kF16}},
                                           Groups{"f16_3", {3, 32, Dtype::kF16}},
                                           Groups{"f16_4", {4, 64, Dtype::kF16}},
                                           Groups{"f16_8", {8, 128, Dtype::kF16}},
                                           Groups{"bf16_4", {4, 32, Dtype::kBF16}},
                                           Groups{"bf16_8", {8, 64, Dtype::kBF16}}),
                         [](const auto& each) { return each.param.name; });

TEST(TurboMlxGroups, OfF32MoveByASixteenthOfAStepAtMost) {
  const cache::HeadShape shape{1, 64};
  TurboMlxBuilder builder(kTokens);
  builder.quantized(shape, {4, 32, Dtype::kF32});
  const ForeignCache foreign = import_built(builder);
  EXPECT_THAT(foreign.dropped_fields,
              Contains("The scales and biases of groups are rounded to f16; codes are kept."));
  const std::vector<float> theirs =
      must(test::read_tensor(foreign.layers[0], cache::TensorKind::kValues, kTokens));
  const cache::Cache cache = must(test::read_foreign(foreign));
  const auto ours = decoded(std::get<cache::AttentionLayer>(cache.layers[0]).v, shape, kTokens);
  std::vector<float> scales(to_size(kTokens) * 2);
  load_f32(Dtype::kF32, builder.array("0.values.scales").data(), scales);
  float largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const float error = std::abs(ours[i] - theirs[i]) / std::abs(scales[i / 32]);
    ASSERT_LE(error, 1.0f / 16 + 1e-5f) << i;
    largest = std::max(largest, error);
  }
  EXPECT_GT(largest, 0);
  RecordProperty("largest_share_of_a_step", std::to_string(largest));
}

TEST(TurboMlxGroups, WhoseBiasIsFarBeyondTheirStepsAreDecoded) {
  const cache::HeadShape shape{1, 64};
  TurboMlxBuilder builder(kTokens);
  builder.quantized(shape, {4, 32, Dtype::kF32});
  const float far = 1000.1f;  // f16 has steps of half a unit there
  std::memcpy(builder.array("0.values.biases").data() + 511 * 2 * sizeof(float), &far, sizeof far);
  const ForeignCache foreign = import_built(builder);
  EXPECT_TRUE(attention(foreign).k.quant);
  EXPECT_FALSE(attention(foreign).v.quant);
  EXPECT_THAT(foreign.dropped_fields,
              Contains("Keys and values in groups are decoded to f32 (1 x f16 does "
                       "not hold their scales)."));
  // Only full blocks are packed, and so only these are looked at.
  TurboMlxBuilder behind(kTokens);
  behind.quantized(shape, {4, 32, Dtype::kF32});
  std::memcpy(behind.array("0.values.biases").data() + 512 * 2 * sizeof(float), &far, sizeof far);
  EXPECT_TRUE(attention(import_built(behind)).v.quant);
}

// --- what our codec does not have

struct Misfit {
  BuiltTurbo layer;
  std::string reason;
};

TEST(TurboMlxMisfits, AreDecodedAndSaid) {
  const std::vector<Misfit> misfits = {
      {{.shape = {1, 16}}, "1 x head_dim 16: outside 32 to 1024"},
      {{.length = 1e-5f}, "1 x f16 does not hold their scales"},
      {{.length = 65520.0f}, "1 x f16 does not hold their scales"},
      {{.bits = 9, .is_prod = true}, "1 x part 1: a residual of 1 bit beside 8 bits"},
      {{.is_prod = true, .mixed = BuiltMixed{16, 4, 3}},
       "1 x mixed precision with signs of residuals"},
      {{.mixed = BuiltMixed{16, 2, 2}}, "1 x part 0: not more bits than the regular channels"},
      {{.mixed = BuiltMixed{4, 3, 2}}, "1 x part 0: head_dim 4: outside 8 to 1024"}};
  for (const Misfit& misfit : misfits) {
    SCOPED_TRACE(misfit.reason);
    TurboMlxBuilder builder(300);
    builder.turbo(misfit.layer);
    const ForeignCache foreign = import_built(builder);
    EXPECT_FALSE(attention(foreign).k.quant);
    EXPECT_TRUE(foreign.is_quantized);
    EXPECT_THAT(foreign.dropped_fields,
                Contains("The codes, lengths and signs of TurboQuant keys are decoded to f32 (" +
                         misfit.reason + ")."));
    EXPECT_TRUE(test::read_foreign(foreign).ok());
  }
}

TEST(TurboMlxMisfits, LengthsThatF16HoldsToTheEndAreKept) {
  for (const float length : {0.0f, 0x1p-14f, 65504.0f, 65519.0f}) {
    TurboMlxBuilder builder(256);
    builder.turbo({.length = length});
    EXPECT_TRUE(attention(import_built(builder)).k.quant) << length;
  }
}

TEST(TurboMlxMisfits, LengthsThatAreNoneAreFoundAsBefore) {
  TurboMlxBuilder builder(256);
  builder.turbo({.length = -1.0f});
  const ForeignCache foreign = import_built(builder);
  EXPECT_FALSE(attention(foreign).k.quant);
  const auto read = test::read_foreign(foreign);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, HasSubstr("a length that is no finite number from 0 on"));
}

TEST(TurboMlxMisfits, WhoeverWantsNoCodesGetsNone) {
  TurboMlxBuilder builder(300);
  builder.turbo({.values = BuiltGroups{}});
  const auto source = test::as_source(builder.file());
  const ForeignCache keys =
      must(import_turbomlx(source, {.artifacts = {}, .keep_value_codes = false}));
  EXPECT_TRUE(attention(keys).k.quant);
  EXPECT_FALSE(attention(keys).v.quant);
  EXPECT_THAT(keys.dropped_fields,
              Contains("Keys and values in groups are decoded to f32 (1 x as asked for)."));
  const ForeignCache values =
      must(import_turbomlx(source, {.artifacts = {}, .keep_key_codes = false}));
  EXPECT_FALSE(attention(values).k.quant);
  EXPECT_TRUE(attention(values).v.quant);
}

// A file may have matrices of 8 Mi values, and nine of 1,024 channels are more than that.
TEST(TurboMlxMisfits, MoreMatricesThanAFileMayHaveAreNotKept) {
  TurboMlxBuilder builder(2);
  for (std::uint64_t seed = 0; seed < 9; ++seed) {
    builder.turbo({.shape = {1, 1024}, .bits = 1, .is_wht = true, .seed = seed});
  }
  const ForeignCache foreign = import_built(builder);
  EXPECT_TRUE(attention(foreign, 8).k.quant);
  const auto sections = must(reader_of(foreign));
  for (const cache::LayerDesc& layer : sections->description().layers) {
    EXPECT_FALSE(cache::is_quantized(std::get<cache::AttentionDesc>(layer).k));
  }
}

// --- as a file of ours

class Converted : public ::testing::Test {
 protected:
  // A layer of each kind, converted without touching what is packed.
  std::filesystem::path convert(const TurboMlxBuilder& builder) const {
    cache::ConvertOptions options;
    options.keys.dense = options.values.dense = true;
    options.keys.keep_packed = options.values.keep_packed = true;
    const auto path = dir_ / "a.tqkv";
    must(format::convert_file(*must(reader_of(import_built(builder))), path, options,
                              {.compression = format::Compression::kNone}));
    return path;
  }

  static TurboMlxBuilder every_kind(std::int64_t n_tokens) {
    TurboMlxBuilder builder(n_tokens);
    builder.turbo({.shape = {1, 32}, .values = BuiltGroups{4, 32, Dtype::kF16}})
        .turbo({.shape = {1, 32}, .bits = 3, .is_prod = true})
        .turbo({.shape = {2, 32}, .mixed = BuiltMixed{8, 3, 2}})
        .quantized({1, 64}, {2, 64, Dtype::kBF16});
    return builder;
  }

  test::TempDir dir_;
};

TEST_F(Converted, HoldsTheSame) {
  const TurboMlxBuilder builder = every_kind(300);
  const auto path = convert(builder);
  const cache::Cache expected = must(test::read_foreign(import_built(builder)));
  const auto file = memory_source(test::read_all(path));
  const cache::Cache cache = must(format::read_cache(*file));
  EXPECT_TRUE(must(format::verify_cache(*file)).damage.empty());
  ASSERT_EQ(cache.layers.size(), 4u);
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto& layer = std::get<cache::AttentionLayer>(cache.layers[i]);
    const auto& before = std::get<cache::AttentionLayer>(expected.layers[i]);
    EXPECT_EQ(decoded(layer.k, layer.shape, 300), decoded(before.k, layer.shape, 300)) << i;
    EXPECT_EQ(decoded(layer.v, layer.shape, 300), decoded(before.v, layer.shape, 300)) << i;
  }
  const auto matrix = [&](std::size_t layer) {
    const auto& k = std::get<cache::AttentionLayer>(cache.layers[layer]).k;
    return std::get<cache::TurboTensor>(k).codec.parts()[0].matrix.values().data();
  };
  EXPECT_EQ(matrix(0), matrix(1));  // one in the file, and one in memory
}

// The other program, written from the documents, decodes the maps that the file brings along.
TEST_F(Converted, IsReadAlikeByTheOtherProgram) {
  if (std::system("python3 --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const auto path = convert(every_kind(256));
  const std::string command = "python3 '" TQCACHE_PYTHON_READER "' '" + path.string() + "' 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  ASSERT_EQ(::pclose(pipe), 0) << output;
  const auto told = nlohmann::json::parse(output);
  const cache::Cache cache = must(format::read_cache(*memory_source(test::read_all(path))));
  ASSERT_EQ(told["sections"].size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto& layer = std::get<cache::AttentionLayer>(cache.layers[i / 2]);
    const auto& row = told["sections"][i];
    EXPECT_EQ(row["form"] == 1, i != 3 && i != 5) << i;  // but for dense values
    EXPECT_EQ(row["values"].get<std::vector<float>>(),
              decoded(i % 2 == 0 ? layer.k : layer.v, layer.shape, 256))
        << i;
  }
}

// A conversation that goes on: what comes later is coded with the same parts.
TEST_F(Converted, GrowsWithTheSameParts) {
  cache::Cache cache = must(test::read_foreign(import_built(every_kind(300))));
  test::Random random(4);
  // Parts of the length. 4 bits leave .0093 of the energy (docs/reference/codec.md §7), prod of 3
  // bits .18, and a quarter at 3 bits beside 2 bits .095; groups of 2 bits no more than a uniform
  // error of a fourth of the range, which is 6: all with a fifth on top.
  const std::vector<double> most = {0.116, 0.51, 0.37, 0.52};
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto& layer = std::get<cache::AttentionLayer>(cache.layers[i]);
    const auto width = to_size(layer.shape.n_kv_heads * layer.shape.head_dim);
    std::vector<float> rows(212 * width);  // up to the end of the block
    for (float& value : rows) value = random.bell();
    cache::append(layer.k, layer.shape, 300, rows);
    const std::vector<float> before = decoded(layer.k, layer.shape, 512);
    must(cache::pack_full_tail(layer.k, 512, 1));
    EXPECT_EQ(cache::packed_block_count(layer.k), 2);
    const std::vector<float> after = decoded(layer.k, layer.shape, 512);
    double error = 0, length = 0;
    for (std::size_t head = 0; head < to_size(layer.shape.n_kv_heads); ++head) {
      const std::size_t dim = to_size(layer.shape.head_dim);
      for (std::size_t at = (head * 512 + 300) * dim; at < (head + 1) * 512 * dim; ++at) {
        error += std::pow(double{after[at]} - before[at], 2);
        length += std::pow(double{before[at]}, 2);
      }
    }
    EXPECT_LT(std::sqrt(error / length), most[i]) << i;
    RecordProperty("error_" + std::to_string(i), std::to_string(std::sqrt(error / length)));
  }
}

// --- damage

TEST(TurboMlxPacked, EveryReadMayFail) {
  TurboMlxBuilder builder(260);
  builder.turbo({.shape = {1, 32}, .bits = 3, .is_prod = true, .values = BuiltGroups{}});
  const Bytes file = builder.file();
  for (std::size_t failing = 0;; ++failing) {
    auto source = std::make_shared<test::FailingSource>(file, failing);
    auto foreign = import_turbomlx(source);
    const auto read = foreign.ok() ? test::read_foreign(std::move(foreign).value())
                                   : Result<cache::Cache>(std::move(foreign).error());
    if (!source->has_failed()) {
      EXPECT_TRUE(read.ok());
      break;
    }
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kIo);
  }
}

TEST(TurboMlxPacked, AChangedBitDoesNoHarm) {
  TurboMlxBuilder builder(256);
  builder.turbo({.shape = {1, 32}, .mixed = BuiltMixed{8, 3, 2}, .values = BuiltGroups{}});
  const Bytes file = builder.file();
  for (std::size_t bit = 0; bit < 8 * file.size(); bit += 211) {
    Bytes changed = file;
    changed[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    auto foreign = test::import_bytes(std::move(changed));
    if (!foreign.ok()) continue;
    const auto read = test::read_foreign(std::move(foreign).value());
    EXPECT_TRUE(read.ok() || !read.error().message.empty());
  }
}

// Whoever reads a file twice may find another one: a length that has become infinite is told.
TEST(TurboMlxPacked, AFileThatChangesMeanwhileIsRefused) {
  TurboMlxBuilder builder(256);
  builder.turbo({.length = 2.0f});
  struct Changing : ByteSource {
    explicit Changing(Bytes given) : bytes(std::move(given)) {}
    std::uint64_t size() const override { return bytes.size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
      return {};
    }
    Bytes bytes;
  };
  const auto source = std::make_shared<Changing>(builder.file());
  const auto sections = must(reader_of(must(import_turbomlx(source))));
  const float infinity = HUGE_VALF;
  for (std::size_t at = 0; at < builder.array("0.reg_norms").size(); at += sizeof infinity) {
    std::memcpy(builder.array("0.reg_norms").data() + at, &infinity, sizeof infinity);
  }
  source->bytes = builder.file();
  AlignedBytes raw;
  EXPECT_THAT(sections->read(0, raw),
              test::FailsWith(ErrorCode::kCorrupt,
                              HasSubstr("layer 0 k: head 0: a scale or bias beyond f16")));
}

}  // namespace turbomlx_packed_test
}  // namespace tqcache::interop
