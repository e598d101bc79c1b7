#include "tqcache/cache/centring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cache/random_cache.h"
#include "support/gaussian.h"
#include "tqcache/cache/convert.h"

namespace tqcache::cache {
namespace {

using test::attention;
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
      turn(rope, token, std::span(k).subspan(static_cast<std::size_t>(head * 64), 64));
    }
    append(layer.k, kShape, token, k);
    append(layer.v, kShape, token, v);
    cache.tokens.push_back(0);
  }
  return cache;
}

// Mean square of q . (x^ - x) over random queries.
double score_error(const Side& exact, const Side& coded, std::int64_t n_tokens) {
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

TEST(Centring, MakesKeysWithABiasAsGoodAsKeysWithout) {
  const double without = key_error(biased_cache(1024, 0), {});
  const Cache biased = biased_cache(1024, 10);
  const double pre_rope = key_error(biased, {});
  const double post_rope = key_error(biased, {.center = Centring::kPostRope});
  const double none = key_error(biased, {.center = Centring::kNone});
  std::printf("error of q.k: no bias %.5f; bias centred before RoPE %.5f, after %.5f, not %.5f\n",
              without, pre_rope, post_rope, none);
  EXPECT_LT(pre_rope, 1.1 * without);
  EXPECT_GT(post_rope, 2 * without);
  EXPECT_GT(none, 50 * without);
}

TEST(Centring, WorksForPartialRope) {
  constexpr Rope kPartial{RopeStyle::kHalfSplit, 16, 1e4};
  const double without = key_error(biased_cache(512, 0, kPartial), {});
  const Cache biased = biased_cache(512, 10, kPartial);
  EXPECT_LT(key_error(biased, {}), 1.1 * without);
  EXPECT_GT(key_error(biased, {.center = Centring::kPostRope}), 1.1 * without);
}

TEST(Centring, WorksForKeysOfAnInterleavedModel) {
  constexpr Rope kInterleaved{RopeStyle::kInterleaved, 64, 1e4};
  const double without = key_error(biased_cache(512, 0, kInterleaved), {});
  EXPECT_LT(key_error(biased_cache(512, 10, kInterleaved), {}), 1.1 * without);
}

TEST(Centring, TakesTheMeanOutOfValues) {
  const auto value_error = [](const Cache& dense, Centring center) {
    const Cache turbo = convert(dense, {.center = center}).value();
    return score_error(attention(dense, 0).v, attention(turbo, 0).v, dense.n_tokens());
  };
  const double without = value_error(biased_cache(512, 0), Centring::kPreRope);
  EXPECT_LT(value_error(biased_cache(512, 10), Centring::kPreRope), 1.1 * without);
  EXPECT_GT(value_error(biased_cache(512, 10), Centring::kNone), 50 * without);
}

TEST(Centring, FindsTheMeanBeforeRope) {
  const Cache biased = biased_cache(2000, 10);
  const auto& side = std::get<DenseSide>(attention(biased, 0).k);
  const RopeTable table(kRope);
  const AlignedFloats mean = compute_mean(side.blocks, side.dtype, kShape, 2000, &table, 2);
  const std::vector<float> direction = test::GaussianSource(17).vector(128);
  // The mean of 2000 signals has a standard deviation of 0.022.
  for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(mean[i], 10 * direction[i], 0.12);
}

TEST(Centring, HasTheSameMeanOnAnyNumberOfThreads) {
  const Cache biased = biased_cache(1100, 3);
  const auto& side = std::get<DenseSide>(attention(biased, 0).k);
  const RopeTable table(kRope);
  EXPECT_EQ(compute_mean(side.blocks, side.dtype, kShape, 1100, &table, 1),
            compute_mean(side.blocks, side.dtype, kShape, 1100, &table, 4));
}

TEST(Centring, HasAZeroMeanOfNoTokens) {
  const RopeTable table(kRope);
  EXPECT_EQ(compute_mean({}, Dtype::kF16, kShape, 0, &table, 1), AlignedFloats(128));
}

TEST(Centring, HasAZeroMeanWhereAValueIsNotFinite) {
  Cache cache = biased_cache(3, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  append(std::get<AttentionLayer>(cache.layers[0]).k, kShape, 3, std::vector<float>(128, infinity));
  const auto& side = std::get<DenseSide>(attention(cache, 0).k);
  EXPECT_EQ(compute_mean(side.blocks, side.dtype, kShape, 4, nullptr, 1), AlignedFloats(128));
}

TEST(Centring, GivesTheSameBytesForAnyNumberOfThreads) {
  const Cache dense = biased_cache(600, 10);
  const Cache one = convert(dense, {.n_threads = 1}).value();
  const Cache four = convert(dense, {.n_threads = 4}).value();
  for (const auto side : {&AttentionLayer::k, &AttentionLayer::v}) {
    const auto& a = std::get<TurboSide>(attention(one, 0).*side);
    const auto& b = std::get<TurboSide>(attention(four, 0).*side);
    EXPECT_TRUE(a.mean == b.mean);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(a.packed[i].codes, b.packed[i].codes);
      EXPECT_EQ(a.packed[i].scales, b.packed[i].scales);
    }
  }
}

TEST(Centring, NoneGivesTheCodesOfTheVectorsThemselves) {
  const Cache dense = biased_cache(256, 1);
  const Cache turbo = convert(dense, {.center = Centring::kNone}).value();
  const auto& side = std::get<TurboSide>(attention(turbo, 0).k);
  EXPECT_EQ(side.mean.kind, Centring::kNone);
  const std::vector<float> rows = values_of(attention(dense, 0).k, kShape, 256);
  const std::size_t head_bytes = side.codec.shape().block_bytes();
  std::vector<std::byte> codes(head_bytes);
  std::vector<std::uint16_t> scales(256);
  for (std::size_t head = 0; head < 2; ++head) {
    const auto* first = std::as_bytes(std::span(rows)).data() + head * 256 * 64 * sizeof(float);
    ASSERT_TRUE(side.codec.encode({Dtype::kF32, first, 64 * sizeof(float)}, 256, codes, scales));
    const auto& packed = side.packed[0];
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(),
                           packed.codes.begin() + static_cast<std::ptrdiff_t>(head * head_bytes)));
    EXPECT_TRUE(std::equal(scales.begin(), scales.end(),
                           packed.scales.begin() + static_cast<std::ptrdiff_t>(head * 256)));
  }
}

TEST(Centring, FallsBackToAfterRopeWhereRopeIsNotKnown) {
  for (const Rope& rope : {Rope{RopeStyle::kNone, 64, 1e6}, Rope{RopeStyle::kHalfSplit, 0, 1e6},
                           Rope{RopeStyle::kHalfSplit, 64, 0}}) {
    EXPECT_EQ(key_centring(Centring::kPreRope, rope, 64), Centring::kPostRope);
    EXPECT_EQ(key_centring(Centring::kNone, rope, 64), Centring::kNone);
    const Cache turbo = convert(biased_cache(300, 1, rope), {}).value();
    EXPECT_EQ(std::get<TurboSide>(attention(turbo, 0).k).mean.kind, Centring::kPostRope);
  }
  EXPECT_EQ(key_centring(Centring::kPreRope, kRope, 64), Centring::kPreRope);
  const Cache turbo = convert(biased_cache(300, 1), {}).value();
  EXPECT_EQ(std::get<TurboSide>(attention(turbo, 0).k).mean.kind, Centring::kPreRope);
  EXPECT_EQ(std::get<TurboSide>(attention(turbo, 0).v).mean.kind, Centring::kPostRope);
}

TEST(Centring, KeepsTheMeanForTokensAppendedLater) {
  const Cache dense = biased_cache(1025, 10);
  const std::vector<float> keys = values_of(attention(dense, 0).k, kShape, 1025);
  Cache turbo = convert(biased_cache(400, 10), {}).value();
  auto& side = std::get<AttentionLayer>(turbo.layers[0]).k;
  const Mean before = std::get<TurboSide>(side).mean;
  for (std::int64_t token = 400; token < 1025; ++token) {
    ASSERT_TRUE(pack_full_tail(side, kShape, token, 1));
    std::vector<float> row;
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto at = keys.begin() + (head * 1025 + token) * 64;
      row.insert(row.end(), at, at + 64);
    }
    append(side, kShape, token, row);
  }
  const auto& grown = std::get<TurboSide>(side);
  EXPECT_TRUE(grown.mean == before);
  ASSERT_EQ(grown.packed.size(), 4u);
  // Blocks packed later are as good as the first one: their position was right.
  const double error = score_error(attention(dense, 0).k, side, 1025);
  EXPECT_LT(error, 1.1 * key_error(biased_cache(1025, 0), {}));
}

// A conversation that begins with an empty cache has its mean from the first block.
TEST(Centring, FixesTheMeanOfAnEmptySideWithItsFirstBlock) {
  const Cache dense = biased_cache(513, 10);
  const std::vector<float> keys = values_of(attention(dense, 0).k, kShape, 513);
  Cache turbo = convert(biased_cache(0, 10), {}).value();
  auto& side = std::get<AttentionLayer>(turbo.layers[0]).k;
  EXPECT_FALSE(std::get<TurboSide>(side).mean.is_fixed());
  AlignedFloats fixed;
  for (std::int64_t token = 0; token < 513; ++token) {
    ASSERT_TRUE(pack_full_tail(side, kShape, token, 1));
    if (token == 256) fixed = std::get<TurboSide>(side).mean.values;
    std::vector<float> row;
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto at = keys.begin() + (head * 513 + token) * 64;
      row.insert(row.end(), at, at + 64);
    }
    append(side, kShape, token, row);
  }
  const auto& blocks = std::get<DenseSide>(attention(dense, 0).k).blocks;
  const RopeTable table(kRope);
  EXPECT_EQ(fixed, compute_mean(blocks, Dtype::kF32, kShape, 256, &table, 1));
  EXPECT_EQ(std::get<TurboSide>(side).mean.values, fixed);
  EXPECT_LT(score_error(attention(dense, 0).k, side, 513),
            1.1 * key_error(biased_cache(513, 0), {}));
}

// docs/codec.md §8.
TEST(Centring, DoesTheWorkedExample) {
  constexpr Rope kSmall{RopeStyle::kHalfSplit, 4, 10000};
  const Mean mean{Centring::kPreRope, AlignedFloats{1, 2, 3, 4},
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

TEST(Centring, ReadsCodesWithAndWithoutTheMean) {
  const Cache turbo = convert(biased_cache(512, 10), {}).value();
  const auto& side = std::get<TurboSide>(attention(turbo, 0).k);
  std::vector<float> with(256 * 64), without(256 * 64);
  read_block(attention(turbo, 0).k, kShape, 512, 1, 1, with);
  read_centred_block(side, kShape, 1, 1, without);
  for (std::int64_t token = 0; token < 256; ++token) {
    std::vector<float> mean(side.mean.values.begin() + 64, side.mean.values.end());
    turn(kRope, 256 + token, mean);
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t at = static_cast<std::size_t>(token) * 64 + i;
      ASSERT_NEAR(with[at], without[at] + mean[i], 1e-5);
    }
  }
}

TEST(Centring, AddsBackExactlyWhatItSubtracted) {
  const Mean mean{Centring::kPreRope, AlignedFloats(128, 0.75f),
                  std::make_shared<const RopeTable>(kRope)};
  const BlockMean of_all(mean, kShape, 3), of_one(mean, kShape, 3, 1);
  std::vector<float> a(5 * 64), b(5 * 64);
  of_all.subtract_from(1, 100, a);
  of_one.add_to(1, 100, b);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], -b[i]);
  EXPECT_NE(a[0], 0);
}

TEST(Centring, CountsTheBytesOfTheMean) {
  const Cache none = convert(biased_cache(256, 1), {.center = Centring::kNone}).value();
  const Cache centred = convert(biased_cache(256, 1), {}).value();
  EXPECT_EQ(byte_count(centred).used, byte_count(none).used + 2 * 128 * sizeof(float));
}

TEST(Validate, RefusesAMeanThatDoesNotFit) {
  const Cache good = convert(biased_cache(300, 1), {}).value();
  ASSERT_TRUE(validate(good));
  const auto expect_refused = [&](std::string_view part, auto change) {
    Cache cache = good;
    auto& layer = std::get<AttentionLayer>(cache.layers[0]);
    change(std::get<TurboSide>(layer.k).mean, std::get<TurboSide>(layer.v).mean, cache);
    const auto checked = validate(cache);
    ASSERT_FALSE(checked) << part;
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(checked.error().message, testing::HasSubstr(part));
  };
  expect_refused("layer 0: k: a mean without centring",
                 [](Mean& k, Mean&, Cache&) { k.kind = Centring::kNone; });
  expect_refused("packed, but without its mean", [](Mean& k, Mean&, Cache&) { k.values.clear(); });
  expect_refused("a mean of 127 values", [](Mean& k, Mean&, Cache&) { k.values.pop_back(); });
  expect_refused("not finite", [](Mean& k, Mean&, Cache&) { k.values[5] = std::nanf(""); });
  expect_refused("layer 0: v: centring before RoPE",
                 [](Mean&, Mean& v, Cache&) { v.kind = Centring::kPreRope; });
  expect_refused("centring before RoPE where there is none",
                 [](Mean&, Mean&, Cache& cache) { cache.identity.rope.n_dims = 66; });
  expect_refused("another model", [](Mean&, Mean&, Cache& cache) { cache.identity.rope.base = 5; });
  expect_refused("another model", [](Mean& k, Mean&, Cache&) { k.rope = nullptr; });
}

}  // namespace
}  // namespace tqcache::cache
