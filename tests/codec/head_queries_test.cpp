// Attention over packed blocks of every mode: scores and sums of values against decoded vectors in
// f64, by every table of kernels.

#include "tqcache/codec/kernels/head_queries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "codec/packed_head.h"
#include "tqcache/base/half.h"

namespace tqcache::codec {
namespace head_queries_test {

using test::decode;
using test::encode;
using test::GaussianSource;
using test::keys_of;
using test::kHeadDims;
using test::make_codec;
using test::name_of;
using test::order_for;
using test::Packed;
using test::specs_of_every_mode;

// How many queries over how many tokens: groups of each width of the kernels, and blocks cut short.
struct Size {
  std::size_t n_queries, n_tokens;
};
constexpr Size kSizes[] = {{1, 256}, {2, 17},  {3, 256}, {4, 1},  {5, 40},
                           {6, 255}, {7, 100}, {8, 256}, {11, 33}};

constexpr double kExactBound = 1e-5;  // codec.md §9 has 1e-6 a part; parts cancel each other
constexpr double kFastBound = 1e-2;

// Bounds are for keys in random directions: with a bias, the errors of all are alike.
constexpr float kNoBias = 0.0f;

// The bound is a mean over many queries and tokens. Few tokens are a small sample; and a single
// query may be one that is only just not coarse enough for two bytes (.009), beside the .0062 that
// AVX2 leaves of centroids of 4 bits.
double bound_of(const HeadCodec& codec, Precision precision, Size size) {
  if (precision == Precision::kExact) return kExactBound;
  if (size.n_tokens < 64) return 3.0 * kFastBound;
  // Straight lines through 16 of 256 centroids err most at the ends, and some vectors have more of
  // those codes than others.
  const bool is_eight_bits = codec.part(0).shape().bits == 8;
  if (codec.kernels().isa == Isa::kAvx2 && is_eight_bits) return 1.2 * kFastBound;
  return size.n_queries == 1 ? std::hypot(.009, .0062) : kFastBound;
}

// A block in one mode, and what it holds in f64.
struct Block {
  HeadCodec codec;
  std::vector<std::uint16_t> order;
  Packed packed;
  std::vector<float> decoded;                // [256, head_dim]
  std::vector<std::vector<double>> lengths;  // [part][256]: of the coded components

  Block(const CodecSpec& spec, BlockOrder block_order)
      : codec(make_codec(spec, block_order)),
        order(order_for(codec)),
        packed(encode(codec, keys_of(kBlockTokens, codec.head_dim(), 21, kNoBias), order)),
        decoded(decode(codec, packed, kBlockTokens, order)) {
    for (std::size_t i = 0; i < codec.n_parts(); ++i) lengths.push_back(lengths_of(i));
  }

  std::vector<double> lengths_of(std::size_t part) const {
    const PackedBlock block = codec.view(packed.head(), part, kBlockTokens);
    const auto bytes = std::as_bytes(std::span(block.codes, block.shape.block_bytes()));
    std::vector<std::uint8_t> codes(block.shape.dim());
    std::vector<double> result;
    for (std::size_t t = 0; t < kBlockTokens; ++t) {
      unpack_token(block.shape, bytes, t, codes);
      double energy = 0.0;
      for (const std::uint8_t code : codes) {
        const double c = codec.part(part).quantizer().centroids()[code];
        energy += c * c;
      }
      result.push_back(std::sqrt(energy) * static_cast<double>(f16_to_f32(block.scales[t])));
    }
    return result;
  }

  double value(std::size_t t, std::size_t i) const {
    return static_cast<double>(decoded[t * codec.head_dim() + i]);
  }
};

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// The square of what a score of random directions is: of each part, |turned query| |coded key| /
// sqrt(dim); and of its bias.
double amplitude(const Block& block, std::span<const float> query, std::size_t t) {
  const HeadCodec& codec = block.codec;
  std::vector<float> ordered(query.size()), turned;
  take_channels(block.order, query, ordered);
  double sum = 0.0;
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    const std::size_t dim = codec.part(i).shape().dim();
    const auto slice = std::span(ordered).subspan(codec.first_channel(i), dim);
    turned.resize(dim);
    codec.part(i).quantizer().rotation().rotate(slice, turned);
    sum += dot(turned, turned) * std::pow(block.lengths[i][t], 2) / static_cast<double>(dim);
    if (!codec.parts()[i].has_bias) continue;
    sum += dot(slice, slice) *
           std::pow(static_cast<double>(f16_to_f32(codec.biases(block.packed.head(), i)[t])), 2);
  }
  return sum;
}

// Scores and amplitudes of queries, in f64; the kernels only change what they are compared with.
struct Expected {
  std::vector<double> scores;      // [n, 256]
  std::vector<double> amplitudes;  // squares

  Expected(const Block& block, std::span<const float> queries) {
    const std::size_t dim = block.codec.head_dim();
    for (std::size_t q = 0; q < queries.size() / dim; ++q) {
      const auto query = queries.subspan(q * dim, dim);
      for (std::size_t t = 0; t < kBlockTokens; ++t) {
        scores.push_back(dot(query, std::span(block.decoded).subspan(t * dim, dim)));
        amplitudes.push_back(amplitude(block, query, t));
      }
    }
  }
};

void expect_scores(const Block& block, const HeadCodec& codec, std::span<const float> queries,
                   const Expected& expected, Size size, Precision precision) {
  HeadQueries group;
  group.set(codec, block.order, queries.first(size.n_queries * codec.head_dim()));
  ASSERT_EQ(group.n_queries(), size.n_queries);
  constexpr std::size_t kStride = kBlockTokens + 3;
  std::vector<float> scores(size.n_queries * kStride, -7.0f);
  group.score(codec, block.packed.head(), size.n_tokens, precision, {scores.data(), kStride});
  double error = 0.0, total = 0.0;
  for (std::size_t q = 0; q < size.n_queries; ++q) {
    for (std::size_t t = 0; t < kStride; ++t) {
      const float score = scores[q * kStride + t];
      if (t >= size.n_tokens) {
        EXPECT_EQ(score, -7.0f);  // nothing is written behind the last token
        continue;
      }
      error += std::pow(static_cast<double>(score) - expected.scores[q * kBlockTokens + t], 2);
      total += expected.amplitudes[q * kBlockTokens + t];
    }
  }
  EXPECT_LT(std::sqrt(error / total), bound_of(codec, precision, size))
      << size.n_queries << " queries, " << size.n_tokens << " tokens, " << codec.kernels().name;
}

constexpr Precision kPrecisions[] = {Precision::kExact, Precision::kFast};

TEST(HeadQueries, ScoresAreThoseOfDecodedKeysInEveryMode) {
  for (const int head_dim : kHeadDims) {
    const std::vector<float> queries =
        GaussianSource(22).vector(11 * static_cast<std::size_t>(head_dim));
    for (const CodecSpec& spec : specs_of_every_mode(head_dim)) {
      const Block block(spec, BlockOrder::kKeys);
      const Expected expected(block, queries);
      SCOPED_TRACE(name_of(spec));
      for (const Kernels* kernels : all_kernels()) {
        const HeadCodec codec =
            HeadCodec::make(head_dim, block.codec.parts(), BlockOrder::kKeys, *kernels).value();
        for (const Precision precision : kPrecisions) {
          for (const Size size : kSizes) {
            expect_scores(block, codec, queries, expected, size, precision);
          }
        }
      }
    }
  }
}

// Weights as softmax makes them, of both signs for the sake of the test.
std::vector<float> weights_of(std::size_t n, std::uint64_t seed) {
  std::vector<float> weights = GaussianSource(seed).vector(n);
  for (float& weight : weights) weight = std::copysign(std::exp(2.0f * weight), weight) / 50.0f;
  return weights;
}

// The square of what a sum of values is made of, over all its channels: of each part, what
// independent vectors would add up to and its own length, times what the map back multiplies
// lengths with; and of its bias.
double amplitude(const Block& block, std::span<const float> weights, std::span<const float> coded) {
  double sum = 0.0;
  for (std::size_t i = 0; i < block.codec.n_parts(); ++i) {
    const Quantizer& quantizer = block.codec.part(i).quantizer();
    const auto dim = quantizer.rotation().head_dim();
    const auto part = coded.subspan(block.codec.coded_offset(i), dim);
    const bool stretches = quantizer.spec().rotation == TransformKind::kGaussian;
    const double gain = stretches ? static_cast<double>(dim) : 1.0;
    sum += gain * dot(part, part);
    for (std::size_t t = 0; t < weights.size(); ++t) {
      const double weight = static_cast<double>(weights[t]);
      sum += gain * std::pow(weight * block.lengths[i][t], 2);
    }
  }
  return sum;
}

// Sums of decoded values in f64: [n_queries, head_dim].
std::vector<double> expected_sums(const Block& block, std::span<const float> weights, Size size) {
  const std::size_t dim = block.codec.head_dim();
  std::vector<double> sums(size.n_queries * dim);
  for (std::size_t q = 0; q < size.n_queries; ++q) {
    for (std::size_t t = 0; t < size.n_tokens; ++t) {
      const double weight = static_cast<double>(weights[q * kBlockTokens + t]);
      for (std::size_t i = 0; i < dim; ++i) sums[q * dim + i] += weight * block.value(t, i);
    }
  }
  return sums;
}

void expect_sums(const Block& block, const HeadCodec& codec, std::span<const float> weights,
                 std::span<const double> expected, Size size, Precision precision) {
  const std::size_t dim = codec.head_dim(), stride = codec.coded_dim() + 5;
  constexpr float kAlready = 0.5f;  // sums are added to what is there
  std::vector<float> sums(size.n_queries * stride, kAlready);
  std::vector<float> nothing(codec.coded_dim(), kAlready), before(dim), out(dim);
  codec.rotate_back(nothing, block.order, before);
  accumulate(codec, block.packed.head(), size.n_tokens, precision,
             {size.n_queries, kBlockTokens, weights.data()}, {sums.data(), stride});
  double error = 0.0, total = 0.0;
  for (std::size_t q = 0; q < size.n_queries; ++q) {
    const auto coded = std::span(sums).subspan(q * stride, codec.coded_dim());
    for (std::size_t i = codec.coded_dim(); i < stride; ++i) {
      EXPECT_EQ(sums[q * stride + i], kAlready);  // nothing is written there
    }
    total += amplitude(block, weights.subspan(q * kBlockTokens, size.n_tokens), coded);
    codec.rotate_back(coded, block.order, out);
    for (std::size_t i = 0; i < dim; ++i) {
      const double sum = static_cast<double>(out[i]) - static_cast<double>(before[i]);
      error += std::pow(sum - expected[q * dim + i], 2);
    }
  }
  EXPECT_LT(std::sqrt(error / total), bound_of(codec, precision, size))
      << size.n_queries << " queries, " << size.n_tokens << " tokens, " << codec.kernels().name;
}

TEST(HeadQueries, SumsAreThoseOfDecodedValuesInEveryMode) {
  const std::vector<float> weights = weights_of(11 * kBlockTokens, 23);
  for (const int head_dim : kHeadDims) {
    for (const CodecSpec& spec : specs_of_every_mode(head_dim)) {
      const Block block(spec, BlockOrder::kValues);
      SCOPED_TRACE(name_of(spec));
      std::vector<HeadCodec> codecs;
      for (const Kernels* kernels : all_kernels()) {
        codecs.push_back(
            HeadCodec::make(head_dim, block.codec.parts(), BlockOrder::kValues, *kernels).value());
      }
      for (const Size size : kSizes) {
        const std::vector<double> expected = expected_sums(block, weights, size);
        for (const HeadCodec& codec : codecs) {
          for (const Precision precision : kPrecisions) {
            expect_sums(block, codec, weights, expected, size, precision);
          }
        }
      }
    }
  }
}

// The way around the parts costs a single part nothing: it is the kernel's own answer.
TEST(HeadQueries, ASinglePartIsTheKernelAlone) {
  const Block keys({.head_dim = 128, .bits = 4}, BlockOrder::kKeys);
  const std::vector<float> queries = GaussianSource(24).vector(4 * 128);
  const Kernels& kernels = keys.codec.kernels();
  QueryGroup group;
  group.set_for_packed(keys.codec.part(0).quantizer(), queries);
  HeadQueries head;
  head.set(keys.codec, {}, queries);
  std::vector<float> expected(4 * kBlockTokens), scores(4 * kBlockTokens);
  kernels.score_fast(keys.codec.view(keys.packed.head(), 0, 250), keys.codec.part(0).tables(),
                     group.rows(), {expected.data(), kBlockTokens});
  head.score(keys.codec, keys.packed.head(), 250, Precision::kFast, {scores.data(), kBlockTokens});
  EXPECT_EQ(scores, expected);

  const Block values({.head_dim = 128, .bits = 4}, BlockOrder::kValues);
  const std::vector<float> weights = weights_of(4 * kBlockTokens, 25);
  const WeightRows rows = {4, kBlockTokens, weights.data()};
  std::vector<float> expected_sums(4 * 128), sums(4 * 128);
  kernels.accumulate_fast(values.codec.view(values.packed.head(), 0, 250),
                          values.codec.part(0).tables(), rows, {expected_sums.data(), 128});
  accumulate(values.codec, values.packed.head(), 250, Precision::kFast, rows, {sums.data(), 128});
  EXPECT_EQ(sums, expected_sums);
}

TEST(HeadQueries, SkippedTokensScoreZeroAndAddNothing) {
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    for (const Precision precision : kPrecisions) {
      const HeadCodec keys = make_codec(spec, BlockOrder::kKeys);
      const auto order = order_for(keys);
      const std::vector<float> x = keys_of(20, 64, 26);
      HeadQueries group;
      group.set(keys, order, GaussianSource(27).vector(2 * 64));
      std::vector<float> scores(2 * kBlockTokens);
      const Packed packed = encode(keys, x, order, 4);
      group.score(keys, packed.head(), 20, precision, {scores.data(), kBlockTokens});
      for (std::size_t t = 0; t < 4; ++t) {
        EXPECT_EQ(scores[t], 0.0f) << name_of(spec);
        EXPECT_EQ(scores[kBlockTokens + t], 0.0f) << name_of(spec);
      }
      const HeadCodec values = make_codec(spec, BlockOrder::kValues);
      const Packed packed_values = encode(values, x, order, 4);
      std::vector<float> weights(kBlockTokens, 0.0f), sums(values.coded_dim(), 0.0f);
      std::fill_n(weights.begin(), 4, 1000.0f);
      accumulate(values, packed_values.head(), 20, precision, {1, kBlockTokens, weights.data()},
                 {sums.data(), sums.size()});
      for (const float sum : sums) EXPECT_EQ(sum, 0.0f) << name_of(spec);
    }
  }
}

TEST(HeadQueries, NaNInAQueryIsNaNInItsScoresAlone) {
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    for (const Kernels* kernels : all_kernels()) {
      const HeadCodec codec = make_codec(spec, BlockOrder::kKeys, *kernels);
      const auto order = order_for(codec);
      const Packed packed = encode(codec, keys_of(20, 64, 28), order);
      std::vector<float> queries = GaussianSource(29).vector(3 * 64);
      queries[64 + 9] = std::numeric_limits<float>::quiet_NaN();
      HeadQueries group;
      group.set(codec, order, queries);
      for (const Precision precision : kPrecisions) {
        std::vector<float> scores(3 * kBlockTokens);
        group.score(codec, packed.head(), 20, precision, {scores.data(), kBlockTokens});
        for (std::size_t t = 0; t < 20; ++t) {
          EXPECT_TRUE(std::isfinite(scores[t])) << name_of(spec) << ", " << kernels->name;
          EXPECT_TRUE(std::isnan(scores[kBlockTokens + t])) << name_of(spec) << kernels->name;
          EXPECT_TRUE(std::isfinite(scores[2 * kBlockTokens + t])) << name_of(spec);
        }
      }
    }
  }
}

TEST(HeadQueries, MaySetForOneCodecAfterAnother) {
  const std::vector<float> queries = GaussianSource(30).vector(3 * 128);
  HeadQueries used;
  for (const CodecSpec& spec : specs_of_every_mode(128)) {
    const Block block(spec, BlockOrder::kKeys);
    HeadQueries fresh;
    fresh.set(block.codec, block.order, queries);
    used.set(block.codec, block.order, queries);
    std::vector<float> expected(3 * kBlockTokens), scores(3 * kBlockTokens);
    fresh.score(block.codec, block.packed.head(), kBlockTokens, Precision::kFast,
                {expected.data(), kBlockTokens});
    used.score(block.codec, block.packed.head(), kBlockTokens, Precision::kFast,
               {scores.data(), kBlockTokens});
    EXPECT_EQ(scores, expected) << name_of(spec);
  }
}

// A codec that rotates nothing may be given an order as well, and gives the same scores.
TEST(HeadQueries, TakeTheChannelOrderOfTheirBlock) {
  const std::vector<float> x = keys_of(30, 80, 31);
  const std::vector<float> query = GaussianSource(32).vector(80);
  std::vector<std::uint16_t> order(80);
  for (std::size_t i = 0; i < 80; ++i) order[i] = static_cast<std::uint16_t>((i * 7 + 3) % 80);
  for (const CodecSpec& spec : specs_of_every_mode(80)) {
    const HeadCodec codec = make_codec(spec);
    const Packed packed = encode(codec, x, order);
    const std::vector<float> decoded = decode(codec, packed, 30, order);
    HeadQueries group;
    group.set(codec, order, query);
    std::vector<float> scores(kBlockTokens);
    group.score(codec, packed.head(), 30, Precision::kExact, {scores.data(), kBlockTokens});
    for (std::size_t t = 0; t < 30; ++t) {
      EXPECT_NEAR(static_cast<double>(scores[t]),
                  dot(query, std::span(decoded).subspan(t * 80, 80)), 2e-4)
          << name_of(spec);
    }
  }
}

}  // namespace head_queries_test
}  // namespace tqcache::codec
