// Factors of keys (docs/reference/codec.md §8, "Factors").

#include "tqcache/cache/key_factors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace key_factors_test {

using cache::Centering;
using testing::HasSubstr;

constexpr cache::HeadShape kShape = {2, 64};
constexpr std::size_t kDim = 64;
const cache::Rope kRope = {cache::RopeStyle::kHalfSplit, 64, 1e4};

// One pair of components, 5, is 16 times as large as the others before RoPE, and all have a mean.
AlignedBytes uneven_block(std::int64_t block) {
  Random random(static_cast<std::uint64_t>(41 + block));
  AlignedBytes bytes(2 * 256 * kDim * sizeof(std::uint16_t));
  std::vector<float> x(kDim);
  for (std::size_t row = 0; row < 512; ++row) {
    for (std::size_t i = 0; i < kDim; ++i) {
      x[i] = random.bell() * (i % 32 == 5 ? 16.0f : 1.0f) + static_cast<float>(i % 7);
    }
    cache::rotate(kRope, block * 256 + static_cast<std::int64_t>(row % 256), x);
    store_f32(Dtype::kF16, x, bytes.data() + row * kDim * sizeof(std::uint16_t));
  }
  return bytes;
}

// 1/4 for the large pair: then it is 4 times as large as the others, as c^4 = w / s^2 says.
std::vector<std::int8_t> right_factors() {
  std::vector<std::int8_t> factors(2 * kDim, 0);
  for (const std::size_t i : {5u, 37u, 69u, 101u}) factors[i] = -16;
  return factors;
}

cache::KvCodec codec_with(std::vector<std::int8_t> factors, codec::CodecSpec spec = {.bits = 4},
                          Centering center = Centering::kPreRope) {
  cache::TensorPlan plan;
  plan.codec = spec;
  plan.center = center;
  plan.n_sinks = 3;
  plan.factors = std::move(factors);
  return must(cache::make_codec(plan, codec::BlockOrder::kKeys, kShape, Dtype::kF16, kRope));
}

TEST(KeyFactors, ArePowersOfAnEighthOfAnOctave) {
  std::vector<std::int8_t> all(255);
  std::iota(all.begin(), all.end(), std::int8_t{-127});
  const cache::KeyFactors factors = cache::make_key_factors(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_FLOAT_EQ(factors.values[i], static_cast<float>(std::exp2(all[i] / 8.0)));
    EXPECT_EQ(factors.inverses[i], factors.values[all.size() - 1 - i]);
  }
  EXPECT_EQ(factors.values[127], 1.0f);
  EXPECT_EQ(factors.values[127 - 8 * 3], 0.125f);
}

// Mean squared error of the pair and of all other components.
std::pair<double, double> errors(const cache::KvCodec& fresh) {
  cache::KvCodec codec = fresh;
  double of_pair = 0, of_others = 0;
  for (const std::int64_t index : {0, 1}) {
    const AlignedBytes values = uneven_block(index);
    const cache::FullBlock block{kShape, Dtype::kF16, index, values};
    codec.fit(std::span(&block, 1), 1);
    const SharedBytes packed = must(codec.encode(block, 2));
    AlignedFloats decoded(256 * kDim), dense(256 * kDim);
    for (std::int64_t head = 0; head < 2; ++head) {
      codec.decode(packed.view(), index, head, decoded);
      load_f32(Dtype::kF16, block.head(head).data(), dense);
      for (std::size_t i = 0; i < dense.size(); ++i) {
        const double error = static_cast<double>(decoded[i]) - static_cast<double>(dense[i]);
        (i % 32 == 5 ? of_pair : of_others) += error * error;
        if (index == 0 && i < 3 * kDim) {
          EXPECT_EQ(error, 0);  // sink tokens
        }
      }
    }
  }
  return {of_pair, of_others};
}

TEST(KeyFactors, MoveTheErrorToWhereItHurtsLeast) {
  const auto [pair, others] = errors(codec_with({}));
  const auto [pair_with, others_with] = errors(codec_with(right_factors()));
  EXPECT_LT(others_with, 0.2 * others);
  EXPECT_GT(pair_with, pair);
  // Equal weights: the sum of all errors falls, too.
  EXPECT_LT(pair_with + others_with, 0.4 * (pair + others));
}

TEST(KeyFactors, LowerTheErrorOfEveryModeThatHasThem) {
  const codec::CodecSpec specs[] = {
      {.bits = 4},
      {.mode = codec::Mode::kProd, .bits = 4},
      // Its outlier channels are the large pair already, so it has nothing to gain.
      {.mode = codec::Mode::kMixed, .bits = 4, .outlier_channels = 16, .outlier_bits = 5}};
  for (const codec::CodecSpec& spec : specs) {
    for (const Centering center : {Centering::kPreRope, Centering::kPostRope}) {
      const auto [pair, others] = errors(codec_with({}, spec, center));
      const auto [pair_with, others_with] = errors(codec_with(right_factors(), spec, center));
      EXPECT_LT(others_with, others) << codec::mode_word(spec.mode);
      // Without centering before RoPE the mean is left, which is large in the other components.
      const double most = spec.mode == codec::Mode::kMixed ? 1.2
                          : center == Centering::kPreRope  ? 0.5
                                                           : 0.9;
      EXPECT_LT(pair_with + others_with, most * (pair + others)) << codec::mode_word(spec.mode);
    }
  }
}

TEST(KeyFactors, AreThoseOfTheDescription) {
  const cache::KvCodec codec = codec_with(right_factors());
  const cache::TensorDesc tensor = codec.describe();
  EXPECT_EQ(tensor.quant->factors, right_factors());
  const auto again =
      must(cache::KvCodec::make(tensor, kShape, codec::BlockOrder::kKeys, cache::KvTables(kRope)));
  EXPECT_TRUE(cache::same_bits(*again.describe().quant, *tensor.quant));
  // Blocks with and without factors are never mixed.
  EXPECT_FALSE(cache::same_encoding(tensor, codec_with({}).describe()));
  EXPECT_FALSE(cache::same_bits(*tensor.quant, *codec_with({}).describe().quant));
}

TEST(KeyFactors, AreRefusedWhereTheyDoNotBelong) {
  const auto expect_refused = [](const auto& change, codec::BlockOrder order) {
    cache::TensorDesc tensor = codec_with(right_factors()).describe();
    change(*tensor.quant);
    EXPECT_THAT(cache::KvCodec::make(tensor, kShape, order, cache::KvTables(kRope)),
                test::FailsWith(ErrorCode::kCorrupt, HasSubstr("factor")));
  };
  expect_refused([](auto& quant) { quant.factors.pop_back(); }, codec::BlockOrder::kKeys);
  expect_refused([](auto& quant) { quant.factors[9] = -128; }, codec::BlockOrder::kKeys);
  expect_refused([](auto& quant) { quant.centering = Centering::kNone; }, codec::BlockOrder::kKeys);
  expect_refused([](auto& quant) { quant.centering = Centering::kPostRope; },
                 codec::BlockOrder::kValues);
}

// --- Keys with huge biases, as those of Qwen2.5, whose norms are 600 to 900

cache::Cache biased_cache(float bias) {
  cache::Cache cache = CacheBuilder(512).dense(kShape, Dtype::kF32).build();
  cache.identity.rope = kRope;
  auto& tensor = std::get<cache::DenseTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  std::vector<float> row(kDim);
  Random random(5);
  for (std::size_t block = 0; block < tensor.blocks.size(); ++block) {
    for (std::size_t i = 0; i < 2 * 256; ++i) {
      for (std::size_t c = 0; c < kDim; ++c) {
        row[c] = random.bell() + (c % 32 == 30 ? bias : 0.0f);
      }
      cache::rotate(kRope, static_cast<std::int64_t>(256 * block + i % 256), row);
      store_f32(Dtype::kF32, row, tensor.blocks[block].data() + i * kDim * sizeof(float));
    }
  }
  return cache;
}

double key_error(const cache::Cache& dense, const char* configuration) {
  const auto options = must(cache::parse_configuration(configuration)).options;
  const cache::Cache packed = must(cache::convert(dense, options));
  const auto& a = std::get<cache::AttentionLayer>(dense.layers[0]);
  const auto& b = std::get<cache::AttentionLayer>(packed.layers[0]);
  double error = 0;
  std::vector<float> x(256 * kDim), y(256 * kDim);
  for (std::int64_t head = 0; head < 2; ++head) {
    cache::read_block(a.k, kShape, 512, 1, head, x);
    cache::read_block(b.k, kShape, 512, 1, head, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
      error += difference * difference / static_cast<double>(2 * 256 * kDim);
    }
  }
  return error;
}

TEST(HugeBiases, OfKeysAreSavedByCentering) {
  const double without_bias = key_error(biased_cache(0), "turbo4");
  const cache::Cache dense = biased_cache(600);
  EXPECT_LT(key_error(dense, "turbo4"), 1.1 * without_bias);
  EXPECT_LT(key_error(dense, "turbo4,sink=4"), 1.1 * without_bias);
  // What centering saves them from: 800 times the variance of what is left.
  EXPECT_GT(key_error(dense, "turbo4,center=none"), 1000 * without_bias);
}

double key_loss(const cache::Cache& dense, const char* configuration) {
  auto options = must(cache::parse_configuration(configuration)).options;
  options.losses = std::make_shared<cache::LossLog>();
  must(cache::convert(dense, options));
  for (const cache::TensorLoss& loss : options.losses->losses()) {
    if (loss.kind == cache::TensorKind::kKeys) return loss.share;
  }
  return -1;
}

TEST(TensorLoss, IsThatOfTheCodeUnlessTheMeanStays) {
  const cache::Cache dense = biased_cache(600);
  // Independent components lose what 4 and 2 bits lose of anything.
  EXPECT_NEAR(key_loss(dense, "turbo4"), .0095, .002);
  EXPECT_NEAR(key_loss(dense, "turbo2"), .117, .02);
  EXPECT_GT(key_loss(dense, "turbo4,center=none"), cache::kHeavyLoss);
  EXPECT_EQ(key_loss(dense, "kfv4"), -1);  // dense keys lose nothing
}

// Components that are zero in every token tell nothing apart, whatever error they have.
TEST(TensorLoss, LeavesOutPaddedComponents) {
  cache::Cache dense = biased_cache(0);
  auto& tensor = std::get<cache::DenseTensor>(std::get<cache::AttentionLayer>(dense.layers[0]).k);
  for (AlignedBytes& block : tensor.blocks) {
    std::vector<float> rows(block.size() / sizeof(float));
    load_f32(Dtype::kF32, block.data(), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % (kDim / 2) >= 8) rows[i] = 0;  // whole pairs of RoPE
    }
    store_f32(Dtype::kF32, rows, block.data());
  }
  const double loss = key_loss(dense, "turbo4");
  EXPECT_GT(loss, 0);
  EXPECT_LT(loss, .02);
}

// A mean is f32 and not rounded to f16.
TEST(HugeBiases, BeyondF16AreSavedByCentering) {
  EXPECT_LT(key_error(biased_cache(1e6f), "turbo4"), 1.5 * key_error(biased_cache(0), "turbo4"));
  const auto options = must(cache::parse_configuration("turbo4,center=none")).options;
  EXPECT_THAT(cache::convert(biased_cache(1e6f), options),
              test::FailsWith(ErrorCode::kUnsupported, HasSubstr("beyond f16")));
}

}  // namespace key_factors_test
}  // namespace tqcache::test
