#include "tqcache/cache/centering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache/random_cache.h"
#include "support/gaussian.h"
#include "support/matchers.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace centring_test {

using test::attention;
using test::centered;
using test::full_block;
using test::full_blocks;
using test::values_of;

constexpr HeadShape kShape{2, 64};
constexpr Rope kRope{RopeStyle::kHalfSplit, 64, 1e6};

// Random keys with `bias` added before RoPE, turned to their positions; values get it as it is.
// The same seed gives the same signal whatever the bias.
Cache biased_cache(std::int64_t n_tokens, float bias, Rope rope = kRope,
                   Dtype dtype = Dtype::kF32) {
  test::GaussianSource random(17);
  Identity identity;
  identity.rope = rope;
  const std::vector<LayerPlan> plan(1, LayerPlan{kShape, dtype});
  Cache cache = make_cache(identity, plan).value();
  const auto row_size = static_cast<std::size_t>(kShape.n_kv_heads * kShape.head_dim);
  const std::vector<float> direction = random.vector(row_size);
  auto& layer = std::get<AttentionLayer>(cache.layers[0]);
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    std::vector<float> k = random.vector(row_size), v = random.vector(row_size);
    for (std::size_t i = 0; i < row_size; ++i) {
      k[i] += bias * direction[i];
      v[i] += bias * direction[i];
    }
    for (std::int64_t head = 0; head < kShape.n_kv_heads; ++head) {
      rotate(rope, token, std::span(k).subspan(static_cast<std::size_t>(head * 64), 64));
    }
    append(layer.k, kShape, token, k);
    append(layer.v, kShape, token, v);
    cache.tokens.push_back(0);
  }
  return cache;
}

// Mean square of q . (x^ - x) over random queries.
double score_error(const Tensor& exact, const Tensor& coded, std::int64_t n_tokens) {
  const std::vector<float> a = values_of(exact, kShape, n_tokens);
  const std::vector<float> b = values_of(coded, kShape, n_tokens);
  test::GaussianSource random(5);
  double sum = 0;
  for (std::size_t row = 0; row < a.size(); row += 64) {
    double error = 0;
    for (std::size_t i = row; i < row + 64; ++i) error += random.next() * (b[i] - a[i]);
    sum += error * error;
  }
  return sum / static_cast<double>(a.size() / 64);
}

double key_error(const Cache& dense, const ConvertOptions& options) {
  const Cache turbo = convert(dense, options).value();
  return score_error(attention(dense, 0).k, attention(turbo, 0).k, dense.n_tokens());
}

TEST(Centering, MakesKeysWithABiasAsGoodAsKeysWithout) {
  const double without = key_error(biased_cache(1024, 0), {});
  const Cache biased = biased_cache(1024, 10);
  const double pre_rope = key_error(biased, {});
  const double post_rope = key_error(biased, centered(Centering::kPostRope));
  const double none = key_error(biased, centered(Centering::kNone));
  std::printf("error of q.k: no bias %.5f; bias centered before RoPE %.5f, after %.5f, not %.5f\n",
              without, pre_rope, post_rope, none);
  EXPECT_LT(pre_rope, 1.1 * without);
  EXPECT_GT(post_rope, 2 * without);
  EXPECT_GT(none, 50 * without);
}

TEST(Centering, WorksForPartialRope) {
  constexpr Rope kPartial{RopeStyle::kHalfSplit, 16, 1e4};
  const double without = key_error(biased_cache(512, 0, kPartial), {});
  const Cache biased = biased_cache(512, 10, kPartial);
  EXPECT_LT(key_error(biased, {}), 1.1 * without);
  EXPECT_GT(key_error(biased, centered(Centering::kPostRope)), 1.1 * without);
}

TEST(Centering, WorksForKeysOfAnInterleavedModel) {
  constexpr Rope kInterleaved{RopeStyle::kInterleaved, 64, 1e4};
  const double without = key_error(biased_cache(512, 0, kInterleaved), {});
  EXPECT_LT(key_error(biased_cache(512, 10, kInterleaved), {}), 1.1 * without);
}

TEST(Centering, TakesTheMeanOutOfValues) {
  const auto value_error = [](const Cache& dense, Centering center) {
    const Cache turbo = convert(dense, centered(center)).value();
    return score_error(attention(dense, 0).v, attention(turbo, 0).v, dense.n_tokens());
  };
  const double without = value_error(biased_cache(512, 0), Centering::kPreRope);
  EXPECT_LT(value_error(biased_cache(512, 10), Centering::kPreRope), 1.1 * without);
  EXPECT_GT(value_error(biased_cache(512, 10), Centering::kNone), 50 * without);
}

TEST(Centering, FindsTheMeanBeforeRope) {
  const Cache biased = biased_cache(1792, 10);
  const auto blocks = full_blocks(attention(biased, 0).k, kShape, 7);
  const RopeTable table(kRope);
  const AlignedFloats mean = compute_mean(blocks, 0, &table, 2);
  const std::vector<float> direction = test::GaussianSource(17).vector(128);
  // The mean of 1792 signals has a standard deviation of 0.024.
  for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(mean[i], 10 * direction[i], 0.12);
}

// Component by component in f64, over the tokens of some blocks from `first` on, rotated back one
// by one.
std::vector<double> mean_by_definition(const Cache& cache, const Tensor& tensor, bool rotates,
                                       std::span<const std::int64_t> blocks, std::int64_t first) {
  const std::vector<float> all = values_of(tensor, kShape, cache.n_tokens());
  std::vector<double> sum(128);
  double n = 0;
  for (const std::int64_t block : blocks) {
    for (std::int64_t p = std::max(first, block * 256); p < (block + 1) * 256; ++p, ++n) {
      for (std::int64_t head = 0; head < 2; ++head) {
        const auto at = static_cast<std::size_t>((head * cache.n_tokens() + p) * 64);
        std::vector<float> x(all.data() + at, all.data() + at + 64);
        if (rotates) rotate_back(kRope, p, x);
        for (std::size_t i = 0; i < 64; ++i) sum[static_cast<std::size_t>(head) * 64 + i] += x[i];
      }
    }
  }
  for (double& x : sum) x /= n;
  return sum;
}

TEST(Centering, HasTheMeanOfTheTokensGiven) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    const Cache cache = biased_cache(1024, 1, kRope, dtype);
    const RopeTable table(kRope);
    for (const bool rotates : {false, true}) {
      const Tensor& tensor = rotates ? attention(cache, 0).k : attention(cache, 0).v;
      for (const std::int64_t n_sinks : {0, 1, 16, 37}) {
        const std::vector<std::int64_t> indices = {0, 3};
        const std::vector<FullBlock> blocks = {full_block(tensor, kShape, 0),
                                               full_block(tensor, kShape, 3)};
        const AlignedFloats mean = compute_mean(blocks, n_sinks, rotates ? &table : nullptr, 1);
        const auto expected = mean_by_definition(cache, tensor, rotates, indices, n_sinks);
        for (std::size_t i = 0; i < 128; ++i) ASSERT_NEAR(mean[i], expected[i], 2e-6) << n_sinks;
      }
    }
  }
}

// docs/reference/codec.md §8, "The mean", step by step, of the first kv head.
TEST(Centering, HasTheDocumentedMeanToTheBit) {
  const Cache cache = biased_cache(768, 1, kRope, Dtype::kF16);
  const Tensor& tensor = attention(cache, 0).k;
  const RopeTable table(kRope);
  constexpr std::int64_t kSinks = 21;
  std::vector<double> total(64);
  for (const std::int64_t block : {0, 1, 2}) {
    std::vector<float> x(256 * 64);
    read_block(tensor, kShape, 768, block, 0, x);
    std::vector<double> of_block(64);
    for (std::int64_t sixteen = 0; sixteen < 256; sixteen += 16) {
      std::vector<float> sum(64, 0.0f);
      for (std::int64_t j = sixteen; j < sixteen + 16; ++j) {
        if (block == 0 && j < kSinks) continue;
        for (std::size_t i = 0; i < 32; ++i) {
          const float a = x[static_cast<std::size_t>(j) * 64 + i];
          const float b = x[static_cast<std::size_t>(j) * 64 + i + 32];
          const float cos = table.cos(j)[i], sin = table.sin(j)[i];
          sum[i] = sum[i] + (a * cos + b * sin);
          sum[i + 32] = sum[i + 32] + (b * cos - a * sin);
        }
      }
      for (std::size_t i = 0; i < 64; ++i) of_block[i] += static_cast<double>(sum[i]);
    }
    table.rotate_back_from(block * 256, of_block);
    for (std::size_t i = 0; i < 64; ++i) total[i] += of_block[i];
  }
  const AlignedFloats mean = compute_mean(full_blocks(tensor, kShape, 3), kSinks, &table, 2);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(mean[i], static_cast<float>(total[i] / (768 - kSinks))) << i;
  }
}

TEST(Centering, HasTheSameMeanOnAnyNumberOfThreads) {
  const Cache biased = biased_cache(1024, 3);
  const auto blocks = full_blocks(attention(biased, 0).k, kShape, 4);
  const RopeTable table(kRope);
  EXPECT_EQ(compute_mean(blocks, 0, &table, 1), compute_mean(blocks, 0, &table, 4));
}

TEST(Centering, TakesTheMeanOfTheFirstBlockOrOfUpToThirtyTwo) {
  for (const Fit fit : {Fit::kFirstBlock, Fit::kPrompt}) {
    EXPECT_TRUE(fit_blocks(fit, 0).empty());
    EXPECT_TRUE(fit_blocks(fit, 255).empty());
    EXPECT_EQ(fit_blocks(fit, 256), std::vector<std::int64_t>{0});
  }
  EXPECT_EQ(fit_blocks(Fit::kFirstBlock, 256 * 100), std::vector<std::int64_t>{0});
  EXPECT_EQ(fit_blocks(Fit::kPrompt, 256 * 3 + 255), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(fit_blocks(Fit::kPrompt, 256 * 32).back(), 31);
  const std::vector<std::int64_t> of_100 = fit_blocks(Fit::kPrompt, 256 * 100);
  ASSERT_EQ(of_100.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(of_100[i], static_cast<std::int64_t>(i * 100 / 32));
  }
}

TEST(Centering, ConvertsALongCacheWithTheMeanOfThoseBlocks) {
  const Cache dense = test::random_cache(3, 256 * 40 + 5, Dtype::kF16, {1, 32}, 1);
  for (const Fit fit : {Fit::kFirstBlock, Fit::kPrompt}) {
    const Cache turbo = convert(dense, {.fit = fit}).value();
    std::vector<FullBlock> blocks;
    for (const std::int64_t index : fit_blocks(fit, dense.n_tokens())) {
      blocks.push_back(full_block(attention(dense, 0).v, {1, 32}, index));
    }
    ASSERT_EQ(blocks.size(), fit == Fit::kPrompt ? 32u : 1u);
    EXPECT_EQ(std::get<TurboTensor>(attention(turbo, 0).v).codec.state().mean.values,
              compute_mean(blocks, 0, nullptr, 1));
  }
}

TEST(Centering, HasAZeroMeanWhenAllTokensAreSinks) {
  const Cache cache = biased_cache(256, 1);
  const auto blocks = full_blocks(attention(cache, 0).k, kShape, 1);
  EXPECT_EQ(compute_mean(blocks, 256, nullptr, 1), AlignedFloats(128));
}

TEST(Centering, HasAZeroMeanWhereAValueIsNotFinite) {
  Cache cache = biased_cache(255, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  append(attention(cache, 0).k, kShape, 255, std::vector<float>(128, infinity));
  const auto blocks = full_blocks(attention(cache, 0).k, kShape, 1);
  EXPECT_EQ(compute_mean(blocks, 0, nullptr, 1), AlignedFloats(128));
}

TEST(Centering, GivesTheSameBytesForAnyNumberOfThreads) {
  const Cache dense = biased_cache(600, 10);
  const Cache one = convert(dense, {{}, {}, {}, 1}).value();
  const Cache four = convert(dense, {{}, {}, {}, 4}).value();
  for (const auto tensor : {&AttentionLayer::k, &AttentionLayer::v}) {
    const auto& a = std::get<TurboTensor>(attention(one, 0).*tensor);
    const auto& b = std::get<TurboTensor>(attention(four, 0).*tensor);
    EXPECT_TRUE(a.codec.state().mean == b.codec.state().mean);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(test::packed_bytes(a, i), test::packed_bytes(b, i));
    }
  }
}

TEST(Centering, NoneGivesTheCodesOfTheVectorsThemselves) {
  const Cache dense = biased_cache(256, 1);
  const Cache turbo = convert(dense, centered(Centering::kNone)).value();
  const auto& tensor = std::get<TurboTensor>(attention(turbo, 0).k);
  EXPECT_EQ(tensor.codec.centering(), Centering::kNone);
  const std::vector<float> rows = values_of(attention(dense, 0).k, kShape, 256);
  const codec::HeadCodec& codec = tensor.codec.state().codec;
  std::vector<std::byte> codes(codec.code_bytes());
  std::vector<std::uint16_t> scales(256);
  for (std::int64_t head = 0; head < 2; ++head) {
    const auto* first = std::as_bytes(std::span(rows)).data() +
                        static_cast<std::size_t>(head) * 256 * 64 * sizeof(float);
    ASSERT_TRUE(
        codec.encode({Dtype::kF32, first, 64 * sizeof(float)}, {}, {}, 256, 0, codes, scales));
    const codec::PackedHead packed = test::packed_head(tensor, 0, head);
    EXPECT_TRUE(std::ranges::equal(codes, packed.codes));
    EXPECT_TRUE(std::ranges::equal(scales, packed.scales));
  }
}

TEST(Centering, FallsBackToAfterRopeWhereRopeIsNotKnown) {
  for (const Rope& rope : {Rope{RopeStyle::kNone, 64, 1e6}, Rope{RopeStyle::kHalfSplit, 0, 1e6},
                           Rope{RopeStyle::kHalfSplit, 64, 0}}) {
    EXPECT_EQ(key_centering(Centering::kPreRope, rope, 64), Centering::kPostRope);
    EXPECT_EQ(key_centering(Centering::kNone, rope, 64), Centering::kNone);
    const Cache turbo = convert(biased_cache(300, 1, rope), {}).value();
    EXPECT_EQ(std::get<TurboTensor>(attention(turbo, 0).k).codec.centering(), Centering::kPostRope);
  }
  EXPECT_EQ(key_centering(Centering::kPreRope, kRope, 64), Centering::kPreRope);
  const Cache turbo = convert(biased_cache(300, 1), {}).value();
  EXPECT_EQ(std::get<TurboTensor>(attention(turbo, 0).k).codec.centering(), Centering::kPreRope);
  EXPECT_EQ(std::get<TurboTensor>(attention(turbo, 0).v).codec.centering(), Centering::kPostRope);
}

TEST(Centering, KeepsTheMeanForTokensAppendedLater) {
  const Cache dense = biased_cache(1025, 10);
  const std::vector<float> keys = values_of(attention(dense, 0).k, kShape, 1025);
  Cache turbo = convert(biased_cache(400, 10), {}).value();
  auto& tensor = std::get<AttentionLayer>(turbo.layers[0]).k;
  const Mean before = std::get<TurboTensor>(tensor).codec.state().mean;
  for (std::int64_t token = 400; token < 1025; ++token) {
    ASSERT_TRUE(pack_full_tail(tensor, token, 1));
    std::vector<float> row;
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto at = keys.begin() + (head * 1025 + token) * 64;
      row.insert(row.end(), at, at + 64);
    }
    append(tensor, kShape, token, row);
  }
  const auto& grown = std::get<TurboTensor>(tensor);
  EXPECT_TRUE(grown.codec.state().mean == before);
  ASSERT_EQ(grown.packed.size(), 4u);
  // Blocks packed later are as good as the first one: their position was right.
  const double error = score_error(attention(dense, 0).k, tensor, 1025);
  EXPECT_LT(error, 1.1 * key_error(biased_cache(1025, 0), {}));
}

// A conversation that begins with an empty cache has its mean from the first block.
TEST(Centering, FixesTheMeanOfAnEmptyTensorWithItsFirstBlock) {
  const Cache dense = biased_cache(513, 10);
  const std::vector<float> keys = values_of(attention(dense, 0).k, kShape, 513);
  Cache turbo = convert(biased_cache(0, 10), {}).value();
  auto& tensor = std::get<AttentionLayer>(turbo.layers[0]).k;
  EXPECT_FALSE(std::get<TurboTensor>(tensor).codec.is_fixed());
  AlignedFloats fixed;
  for (std::int64_t token = 0; token < 513; ++token) {
    ASSERT_TRUE(pack_full_tail(tensor, token, 1));
    if (token == 256) fixed = std::get<TurboTensor>(tensor).codec.state().mean.values;
    std::vector<float> row;
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto at = keys.begin() + (head * 513 + token) * 64;
      row.insert(row.end(), at, at + 64);
    }
    append(tensor, kShape, token, row);
  }
  const RopeTable table(kRope);
  EXPECT_EQ(fixed, compute_mean(full_blocks(attention(dense, 0).k, kShape, 1), 0, &table, 1));
  EXPECT_EQ(std::get<TurboTensor>(tensor).codec.state().mean.values, fixed);
  EXPECT_LT(score_error(attention(dense, 0).k, tensor, 513),
            1.1 * key_error(biased_cache(513, 0), {}));
}

// docs/reference/codec.md §8.
TEST(Centering, DoesTheWorkedExample) {
  constexpr Rope kSmall{RopeStyle::kHalfSplit, 4, 10000};
  const Mean mean{Centering::kPreRope, AlignedFloats{1, 2, 3, 4},
                  std::make_shared<const RopeTable>(kSmall)};
  const BlockMean in_block(mean, {1, 4}, 1);
  std::vector<float> at_256(4), at_258(4);
  in_block.add_to(0, 0, at_256);
  in_block.add_to(0, 2, at_258);
  const auto near = [](std::vector<float> expected) {
    return testing::Pointwise(testing::FloatNear(1e-6f), expected);
  };
  EXPECT_THAT(at_256, near({2.957833f, -3.868599f, -1.118580f, -2.243644f}));
  EXPECT_THAT(at_258, near({-0.213771f, -3.822956f, 3.155044f, -2.320562f}));
}

TEST(Centering, ReadsCodesWithTheMeanOfEachTokenAddedBack) {
  const Cache turbo = convert(biased_cache(512, 10), {}).value();
  const auto& tensor = std::get<TurboTensor>(attention(turbo, 0).k);
  std::vector<float> with(256 * 64), without(256 * 64);
  read_block(attention(turbo, 0).k, kShape, 512, 1, 1, with);
  tensor.codec.state().codec.decode(test::packed_head(tensor, 1, 1), {}, 256, without);
  const AlignedFloats& means = tensor.codec.state().mean.values;
  for (std::int64_t token = 0; token < 256; ++token) {
    std::vector<float> mean(means.begin() + 64, means.end());
    rotate(kRope, 256 + token, mean);
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t at = static_cast<std::size_t>(token) * 64 + i;
      ASSERT_NEAR(with[at], without[at] + mean[i], 1e-5);
    }
  }
}

// What the codec is told to take out is what subtract_from() takes out.
TEST(Centering, TellsTheCodecWhatToTakeOut) {
  test::GaussianSource random(3);
  for (const Centering kind : {Centering::kNone, Centering::kPostRope, Centering::kPreRope}) {
    Mean mean{kind, {}, std::make_shared<const RopeTable>(Rope{RopeStyle::kHalfSplit, 16, 1e4})};
    if (kind != Centering::kNone) mean.values.resize(128);
    random.fill(mean.values);
    const BlockMean in_block(mean, kShape, 3);
    const std::vector<float> rows = random.vector(256 * 64);
    std::vector<float> expected = rows, centered_rows(rows.size());
    in_block.subtract_from(1, 0, expected);
    codec::best_kernels().center_rows(
        {Dtype::kF32, std::as_bytes(std::span(rows)).data(), 64 * sizeof(float)}, 256, 64,
        in_block.center(1), 0, centered_rows.data());
    EXPECT_EQ(centered_rows, expected);
    EXPECT_EQ(rows == expected, kind == Centering::kNone);
  }
}

TEST(Centering, AddsBackExactlyWhatItSubtracted) {
  const Mean mean{Centering::kPreRope, AlignedFloats(128, 0.75f),
                  std::make_shared<const RopeTable>(kRope)};
  const BlockMean of_all(mean, kShape, 3), of_one(mean, kShape, 3, 1);
  std::vector<float> a(5 * 64), b(5 * 64);
  of_all.subtract_from(1, 100, a);
  of_one.add_to(1, 100, b);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], -b[i]);
  EXPECT_NE(a[0], 0);
}

TEST(Centering, CountsTheBytesOfTheMean) {
  const Cache none = convert(biased_cache(256, 1), centered(Centering::kNone)).value();
  const Cache centered = convert(biased_cache(256, 1), {}).value();
  EXPECT_EQ(byte_count(centered).used, byte_count(none).used + 2 * 128 * sizeof(float));
}

TEST(Validate, RefusesAMeanThatDoesNotFit) {
  const Cache good = convert(biased_cache(300, 1), {}).value();
  ASSERT_TRUE(validate(good));
  const auto expect_refused = [&](std::string_view part, auto change) {
    Cache cache = good;
    auto& layer = std::get<AttentionLayer>(cache.layers[0]);
    test::edit_codec(std::get<TurboTensor>(layer.k).codec, [&](KvCodec::State& k) {
      test::edit_codec(std::get<TurboTensor>(layer.v).codec,
                       [&](KvCodec::State& v) { change(k.mean, v.mean, cache); });
    });
    EXPECT_THAT(validate(cache), test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr(part)));
  };
  expect_refused("layer 0: k: packed, but without its mean",
                 [](Mean& k, Mean&, Cache&) { k.values.clear(); });
  expect_refused("layer 0: v: centering before RoPE",
                 [](Mean&, Mean& v, Cache&) { v.kind = Centering::kPreRope; });
  expect_refused("centering before RoPE where there is none",
                 [](Mean&, Mean&, Cache& cache) { cache.identity.rope.n_dims = 66; });
  expect_refused("another model", [](Mean&, Mean&, Cache& cache) { cache.identity.rope.base = 5; });
  expect_refused("another model", [](Mean& k, Mean&, Cache&) { k.rope = nullptr; });
}

TEST(KvCodec, RefusesAMeanThatDoesNotFit) {
  const Cache good = convert(biased_cache(300, 1), {}).value();
  const auto expect_refused = [&](std::string_view message, const Tensor& tensor, const Rope& rope,
                                  auto change) {
    EXPECT_THAT(test::remade(std::get<TurboTensor>(tensor).codec, rope, change),
                test::FailsWith(ErrorCode::kCorrupt, message));
  };
  const Tensor& k = attention(good, 0).k;
  const Tensor& v = attention(good, 0).v;
  expect_refused("a mean without centering", k, kRope,
                 [](QuantSpec& q) { q.centering = Centering::kNone; });
  expect_refused("a mean of 127 values", k, kRope, [](QuantSpec& q) { q.mean.pop_back(); });
  expect_refused("a mean that is not finite", k, kRope,
                 [](QuantSpec& q) { q.mean[5] = std::nanf(""); });
  expect_refused("centering before RoPE where there is none", v, kRope,
                 [](QuantSpec& q) { q.centering = Centering::kPreRope; });
  Rope wide = kRope;
  wide.n_dims = 66;
  expect_refused("centering before RoPE where there is none", k, wide, [](QuantSpec&) {});
}

}  // namespace centring_test
}  // namespace tqcache::cache
