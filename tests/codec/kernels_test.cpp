// The kernels of this CPU against the definition (docs/reference/codec.md, "Kernels").

#include "tqcache/codec/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "support/gaussian.h"
#include "support/long_tests.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/kernels/head_queries.h"

namespace tqcache::codec {
namespace kernels_test {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;

constexpr double kExactBound = 1e-6;
constexpr double kFastBound = 1e-2;

Quantizer make_quantizer(int head_dim, int bits) {
  PartSpec spec;
  spec.head_dim = head_dim;
  spec.bits = bits;
  return Quantizer::make(spec).value();
}

VectorRows rows_of(std::span<const float> x, std::size_t head_dim) {
  return {Dtype::kF32, std::as_bytes(x).data(), head_dim * sizeof(float)};
}

// A block of packed head vectors, and their values as the codes have them, in f64.
struct Packed {
  BlockCodec codec;
  std::vector<std::byte> codes;
  std::vector<std::uint16_t> scales;
  std::vector<double> rotated;  // [256, head_dim]: scale * c[codes]

  PackedBlock view(std::size_t n_tokens) const { return codec.view(codes, scales, n_tokens); }
  double at(std::size_t token, std::size_t i) const {
    return rotated[token * codec.shape().dim() + i];
  }
};

Packed pack(const Quantizer& quantizer, BlockOrder order, std::span<const float> x,
            const Kernels& kernels) {
  Packed packed{BlockCodec(quantizer, order, kernels), {}, {}, {}};
  const BlockShape& shape = packed.codec.shape();
  packed.codes.resize(shape.block_bytes());
  packed.scales.resize(kBlockTokens);
  EXPECT_TRUE(
      packed.codec
          .encode(rows_of(x, shape.dim()), {}, x.size() / shape.dim(), packed.codes, packed.scales)
          .ok());
  std::vector<std::uint8_t> codes(kBlockTokens * shape.dim());
  unpack_block(shape, packed.codes, codes);
  packed.rotated.resize(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const double scale = f16_to_f32(packed.scales[i / shape.dim()]);
    packed.rotated[i] = scale * static_cast<double>(quantizer.centroids()[codes[i]]);
  }
  return packed;
}

Packed pack(int head_dim, int bits, BlockOrder order, std::span<const float> x,
            const Kernels& kernels) {
  return pack(make_quantizer(head_dim, bits), order, x, kernels);
}

// Isotropic; and what breaks naive kernels: outlier channels, a common bias, lengths far apart.
enum class Data { kGaussian, kOutlierChannel, kBias, kUnequalLengths };

std::vector<float> make_vectors(Data data, std::size_t n, std::size_t head_dim,
                                std::uint64_t seed) {
  GaussianSource random(seed);
  std::vector<float> x = random.vector(n * head_dim);
  for (std::size_t v = 0; v < n; ++v) {
    for (std::size_t i = 0; i < head_dim; ++i) {
      float& value = x[v * head_dim + i];
      if (data == Data::kOutlierChannel && i == 5) value *= 100.0f;
      if (data == Data::kBias) value += i % 3 == 0 ? 10.0f : -7.0f;
      if (data == Data::kUnequalLengths) value *= std::exp2(static_cast<float>(v % 19) - 9.0f);
    }
  }
  return x;
}

struct Case {
  int head_dim;
  int bits;
  std::size_t n_queries;
  std::size_t n_tokens;
  Data data;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int head_dim : {8, 20, 32, 40, 64, 80, 96, 112, 128, 192, 256, 512, 576, 1024}) {
    for (int bits = 1; bits <= 8; ++bits) {
      cases.push_back({head_dim, bits, 1, 256, Data::kGaussian});
      cases.push_back({head_dim, bits, 3, 201, Data::kGaussian});
    }
  }
  for (const std::size_t n_queries : {1u, 2u, 4u, 5u, 7u, 8u, 11u, 16u}) {
    for (const int bits : {2, 3, 4, 8})
      cases.push_back({128, bits, n_queries, 256, Data::kGaussian});
  }
  // Keys that all look alike all get one query's error: only many queries show the usual error.
  for (const Data data : {Data::kOutlierChannel, Data::kBias, Data::kUnequalLengths}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) cases.push_back({128, bits, 64, 256, data});
  }
  for (const std::size_t n_tokens : {1u, 15u, 16u, 17u, 31u, 33u, 100u, 255u}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
      cases.push_back({64, bits, 2, n_tokens, Data::kGaussian});
    }
  }
  std::vector<Case> taken;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (test::takes_emulated_case(i, 5)) taken.push_back(cases[i]);
  }
  return taken;
}

std::string name_of(const Case& c) {
  return "head_dim " + std::to_string(c.head_dim) + " bits " + std::to_string(c.bits) +
         " queries " + std::to_string(c.n_queries) + " tokens " + std::to_string(c.n_tokens) +
         " data " + std::to_string(static_cast<int>(c.data));
}

constexpr float kUntouched = -12345.0f;

// What the scores are, in f64; and what scores of random vectors of these lengths are: their
// errors are told in parts of it.
struct ExpectedScores {
  std::vector<double> scores;  // [n_queries, n_tokens]
  std::vector<double> units;
};

ExpectedScores expect_scores(const Packed& packed, const QueryRows& rows, std::size_t n_tokens) {
  const std::size_t head_dim = packed.codec.shape().dim();
  ExpectedScores expected;
  for (std::size_t q = 0; q < rows.n_queries; ++q) {
    for (std::size_t t = 0; t < n_tokens; ++t) {
      double score = 0.0, query_energy = 0.0, key_energy = 0.0;
      for (std::size_t i = 0; i < head_dim; ++i) {
        const double query = rows.values[q * rows.stride + i];
        score += query * packed.at(t, i);
        query_energy += query * query;
        key_energy += packed.at(t, i) * packed.at(t, i);
      }
      expected.scores.push_back(score);
      expected.units.push_back(
          std::sqrt(query_energy * key_energy / static_cast<double>(head_dim)));
    }
  }
  return expected;
}

// Root mean square error.
double score_error(Kernels::Score score, const Packed& packed, const QueryRows& rows,
                   std::size_t n_tokens, const ExpectedScores& expected) {
  const std::size_t stride = n_tokens + 3;
  std::vector<float> scores(rows.n_queries * stride, kUntouched);
  score(packed.view(n_tokens), packed.codec.tables(), rows, {scores.data(), stride});
  double squares = 0.0;
  for (std::size_t i = 0; i < expected.scores.size(); ++i) {
    const double got = scores[i / n_tokens * stride + i % n_tokens];
    const double error = (got - expected.scores[i]) / expected.units[i];
    squares += error * error;
  }
  for (std::size_t q = 0; q < rows.n_queries; ++q) {
    EXPECT_EQ(scores[q * stride + n_tokens], kUntouched) << "wrote beyond the last token";
  }
  return std::sqrt(squares / static_cast<double>(expected.scores.size()));
}

double score_error(Kernels::Score score, const Packed& packed, const QueryGroup& queries,
                   std::size_t n_tokens) {
  return score_error(score, packed, queries.rows(), n_tokens,
                     expect_scores(packed, queries.rows(), n_tokens));
}

TEST(Kernels, ScoresAreWithinTheirBounds) {
  for (const Case& c : all_cases()) {
    const auto head_dim = static_cast<std::size_t>(c.head_dim);
    const Packed packed = pack(c.head_dim, c.bits, BlockOrder::kKeys,
                               make_vectors(c.data, 256, head_dim, 11), best_kernels());
    QueryGroup queries;
    queries.set_for_packed(packed.codec.quantizer(),
                           make_vectors(Data::kGaussian, c.n_queries, head_dim, 12));
    const QueryRows rows = queries.rows();
    const ExpectedScores expected = expect_scores(packed, rows, c.n_tokens);
    for (const Kernels* kernels : all_kernels()) {
      EXPECT_LT(score_error(kernels->score_exact, packed, rows, c.n_tokens, expected), kExactBound)
          << kernels->name << " " << name_of(c);
      // Few scores are a small sample: their error may be three times the usual.
      const double bound = c.n_tokens < 64 ? 3.0 * kFastBound : kFastBound;
      EXPECT_LT(score_error(kernels->score_fast, packed, rows, c.n_tokens, expected), bound)
          << kernels->name << " " << name_of(c);
    }
  }
}

// After the rotation nearly all of this query's length is in one component.
std::vector<float> spiky_query(const Quantizer& quantizer, std::size_t component) {
  std::vector<float> rotated = GaussianSource(13).vector(quantizer.rotation().head_dim());
  rotated[component] = 300.0f;
  std::vector<float> query(rotated.size());
  quantizer.rotation().unrotate(rotated, query);
  return query;
}

TEST(Kernels, FastScoresOfASpikyQueryAreWithinTheirBound) {
  for (const Kernels* kernels : all_kernels()) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const Packed packed = pack(128, bits, BlockOrder::kKeys,
                                 make_vectors(Data::kGaussian, 256, 128, 14), best_kernels());
      QueryGroup queries;
      queries.set_for_packed(packed.codec.quantizer(), spiky_query(packed.codec.quantizer(), 77));
      EXPECT_EQ(queries.rows().n_levels, 2u);
      EXPECT_LT(score_error(kernels->score_fast, packed, queries, 256), kFastBound)
          << kernels->name << " bits " << bits;
    }
  }
}

enum class Weights { kEqual, kSoftmax, kSharp, kOneToken, kSomeTokens, kSigned, kTiny, kZero };
constexpr Weights kAllWeights[] = {Weights::kEqual,    Weights::kSoftmax,    Weights::kSharp,
                                   Weights::kOneToken, Weights::kSomeTokens, Weights::kSigned,
                                   Weights::kTiny,     Weights::kZero};

std::vector<float> make_weights(Weights kind, std::size_t n_queries, std::size_t stride) {
  GaussianSource random(21);
  std::vector<float> weights(n_queries * stride);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float value = random.next();
    switch (kind) {
      case Weights::kEqual:
        weights[i] = 1.0f / 256.0f;
        break;
      case Weights::kSoftmax:
        weights[i] = std::exp(2.0f * value) / 1000.0f;
        break;
      case Weights::kSharp:
        weights[i] = std::exp(6.0f * value);
        break;
      case Weights::kSomeTokens:  // as many as can be too loud for a byte, and small ones
        weights[i] = i % stride % 19 == 3 ? 1.0f : 1e-4f;
        break;
      case Weights::kTiny:  // their squares are not numbers of f32
        weights[i] = 1e-30f * std::exp(value);
        break;
      case Weights::kOneToken:  // the others are just too small to count, each alone
        weights[i] = i % stride == 7 ? 1.0f : 0.5f / 255.0f;
        break;
      case Weights::kSigned:
        weights[i] = value;
        break;
      case Weights::kZero:
        weights[i] = 0.0f;
        break;
    }
  }
  return weights;
}

// What sums of values are, in f64, beginning with 1; and their energy with that of what independent
// values would add up to: errors are told in parts of it.
struct ExpectedSums {
  std::vector<double> sums;      // [n_queries, head_dim]
  std::vector<double> energies;  // [n_queries]
};

ExpectedSums expect_sums(const Packed& packed, const WeightRows& weights, std::size_t n_tokens) {
  ExpectedSums expected;
  for (std::size_t q = 0; q < weights.n_queries; ++q) {
    double energy = 0.0;
    for (std::size_t i = 0; i < packed.codec.shape().dim(); ++i) {
      double sum = 1.0;
      for (std::size_t t = 0; t < n_tokens; ++t) {
        const double term =
            static_cast<double>(weights.values[q * weights.stride + t]) * packed.at(t, i);
        sum += term;
        energy += term * term;
      }
      expected.sums.push_back(sum);
      energy += sum * sum;
    }
    expected.energies.push_back(energy);
  }
  return expected;
}

struct SumErrors {
  double root_mean_square = 0.0;
  double worst = 0.0;  // of a query
};

SumErrors accumulate_error(Kernels::Accumulate accumulate, const Packed& packed,
                           const WeightRows& weights, std::size_t n_tokens,
                           const ExpectedSums& expected) {
  const std::size_t head_dim = packed.codec.shape().dim();
  const std::size_t stride = head_dim + 3;
  std::vector<float> out(weights.n_queries * stride, 1.0f);
  accumulate(packed.view(n_tokens), packed.codec.tables(), weights, {out.data(), stride});
  SumErrors errors;
  for (std::size_t q = 0; q < weights.n_queries; ++q) {
    double squares = 0.0;
    for (std::size_t i = 0; i < head_dim; ++i) {
      const double error =
          static_cast<double>(out[q * stride + i]) - expected.sums[q * head_dim + i];
      squares += error * error;
    }
    const double of_query = squares / expected.energies[q];
    errors.root_mean_square += of_query / static_cast<double>(weights.n_queries);
    errors.worst = std::max(errors.worst, std::sqrt(of_query));
    EXPECT_EQ(out[q * stride + head_dim], 1.0f) << "wrote beyond the last component";
  }
  errors.root_mean_square = std::sqrt(errors.root_mean_square);
  return errors;
}

// Of values that all look alike, have few components, or of which one outweighs the rest, a query's
// whole sum has one error, drawn once; the worst of 64 queries is then some times the usual.
constexpr double kWorstOfMany = 4.0;

void expect_sums_within_bounds(const Packed& packed, const WeightRows& weights,
                               std::size_t n_tokens, const std::string& where) {
  const ExpectedSums expected = expect_sums(packed, weights, n_tokens);
  for (const Kernels* kernels : all_kernels()) {
    const auto errors_of = [&](Kernels::Accumulate accumulate) {
      return accumulate_error(accumulate, packed, weights, n_tokens, expected);
    };
    EXPECT_LT(errors_of(kernels->accumulate_exact).worst, kExactBound)
        << kernels->name << " " << where;
    const SumErrors fast = errors_of(kernels->accumulate_fast);
    const bool is_small_sample = weights.n_queries * packed.codec.shape().dim() < 128;
    EXPECT_LT(fast.root_mean_square, is_small_sample ? kWorstOfMany * kFastBound : kFastBound)
        << kernels->name << " " << where;
    EXPECT_LT(fast.worst, kWorstOfMany * kFastBound) << kernels->name << " " << where;
  }
}

TEST(Kernels, SumsOfValuesAreWithinTheirBounds) {
  for (const Case& c : all_cases()) {
    const auto head_dim = static_cast<std::size_t>(c.head_dim);
    const Packed packed = pack(c.head_dim, c.bits, BlockOrder::kValues,
                               make_vectors(c.data, 256, head_dim, 22), best_kernels());
    const auto weights = make_weights(Weights::kSoftmax, c.n_queries, 259);
    expect_sums_within_bounds(packed, {c.n_queries, 259, weights.data()}, c.n_tokens, name_of(c));
  }
}

// Values that all look alike show what rounding does to the sum of the weights.
TEST(Kernels, SumsAreWithinTheirBoundsForAnyWeights) {
  for (const Data data : {Data::kGaussian, Data::kBias}) {
    for (int bits = 1; bits <= 8; ++bits) {
      if (!test::takes_emulated_case(static_cast<std::size_t>(bits - 1), 3)) continue;
      const Packed packed =
          pack(128, bits, BlockOrder::kValues, make_vectors(data, 256, 128, 23), best_kernels());
      for (const Weights kind : kAllWeights) {
        for (const std::size_t n_tokens : {256u, 99u}) {
          const auto weights = make_weights(kind, 3, 256);
          expect_sums_within_bounds(packed, {3, 256, weights.data()}, n_tokens,
                                    "bits " + std::to_string(bits) + " weights " +
                                        std::to_string(static_cast<int>(kind)) + " data " +
                                        std::to_string(static_cast<int>(data)));
        }
      }
    }
  }
}

TEST(Kernels, NegativeScalesAreNegative) {
  Packed packed =
      pack(64, 4, BlockOrder::kValues, make_vectors(Data::kGaussian, 256, 64, 28), best_kernels());
  for (std::size_t t = 0; t < kBlockTokens; t += 3) {
    packed.scales[t] |= 0x8000;
    for (std::size_t i = 0; i < 64; ++i) packed.rotated[t * 64 + i] *= -1.0;
  }
  const auto weights = make_weights(Weights::kSoftmax, 2, 256);
  expect_sums_within_bounds(packed, {2, 256, weights.data()}, 256, "negative scales");
}

// A file may have any centroids. These lie on no straight pieces.
TEST(Kernels, ScoresAndSumsOfAnyCodebookAreWithinTheirBounds) {
  for (int bits = 5; bits <= 8; ++bits) {
    SplitMix64 random(29);
    std::vector<float> centroids(std::size_t{1} << bits);
    for (float& c : centroids) c = static_cast<float>(0.4 * random.uniform() - 0.2);
    std::sort(centroids.begin(), centroids.end());
    const Quantizer quantizer = Quantizer::make(make_quantizer(64, bits).spec(), centroids).value();
    const auto vectors = make_vectors(Data::kGaussian, 256, 64, 30);
    const Packed keys = pack(quantizer, BlockOrder::kKeys, vectors, best_kernels());
    QueryGroup queries;
    queries.set_for_packed(quantizer, make_vectors(Data::kGaussian, 3, 64, 31));
    for (const Kernels* kernels : all_kernels()) {
      EXPECT_LT(score_error(kernels->score_exact, keys, queries, 256), kExactBound)
          << kernels->name << " " << bits;
      EXPECT_LT(score_error(kernels->score_fast, keys, queries, 256), kFastBound)
          << kernels->name << " " << bits;
    }
    const Packed values = pack(quantizer, BlockOrder::kValues, vectors, best_kernels());
    const auto weights = make_weights(Weights::kSoftmax, 2, 256);
    expect_sums_within_bounds(values, {2, 256, weights.data()}, 256, "any codebook");
  }
}

TEST(Kernels, NotANumberIsNeverHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : all_kernels()) {
    for (const auto& [bad, bits] : {std::pair(nan, 4), {infinity, 4}, {nan, 8}, {infinity, 8}}) {
      const auto vectors = make_vectors(Data::kGaussian, 256, 64, 24);
      const Packed keys = pack(64, bits, BlockOrder::kKeys, vectors, *kernels);
      std::vector<float> query = GaussianSource(25).vector(2 * 64);
      query[64 + 9] = bad;  // of the second query alone
      QueryGroup queries;
      queries.set_for_packed(keys.codec.quantizer(), query);
      for (const Kernels::Score score : {kernels->score_exact, kernels->score_fast}) {
        std::vector<float> scores(2 * 256);
        score(keys.view(256), keys.codec.tables(), queries.rows(), {scores.data(), 256});
        EXPECT_TRUE(std::isfinite(scores[100])) << kernels->name;
        EXPECT_TRUE(std::isnan(scores[256 + 100])) << kernels->name;
      }
      const Packed values = pack(64, bits, BlockOrder::kValues, vectors, *kernels);
      std::vector<float> weights(256, 0.01f);
      weights[33] = bad;
      for (const Kernels::Accumulate sum : {kernels->accumulate_exact, kernels->accumulate_fast}) {
        std::vector<float> out(64, 0.0f);
        sum(values.view(256), values.codec.tables(), {1, 256, weights.data()}, {out.data(), 64});
        EXPECT_FALSE(std::isfinite(out[5])) << kernels->name;
      }
    }
  }
}

// Of head_dim 80, the last unit has 16 components and 32 places. Where no code stands, a hostile
// file may have what it likes.
TEST(Kernels, BitsBeyondHeadDimDoNotCount) {
  struct Strays {
    int bits;
    std::size_t n_lines;
    std::byte strays;
  };
  for (const Strays& stray : {Strays{1, 1, std::byte{0xf0}}, Strays{3, 2, std::byte{0xc0}},
                              Strays{5, 1, std::byte{0xf0}}, Strays{7, 1, std::byte{0xf0}}}) {
    Packed packed = pack(80, stray.bits, BlockOrder::kKeys,
                         make_vectors(Data::kGaussian, 256, 80, 26), best_kernels());
    const BlockShape& shape = packed.codec.shape();
    std::vector<std::uint8_t> before(kBlockTokens * 80), after(before.size());
    unpack_block(shape, packed.codes, before);
    for (std::size_t g = 0; g < shape.groups(); ++g) {
      const std::size_t tail =
          g * shape.group_bytes() + (shape.group_lines() - shape.tail_lines()) * kLineBytes;
      for (std::size_t i = 0; i < stray.n_lines * kLineBytes; ++i) {
        packed.codes[tail + i] |= stray.strays;
      }
    }
    unpack_block(shape, packed.codes, after);
    ASSERT_EQ(after, before) << "bits " << stray.bits;
    QueryGroup queries;
    queries.set_for_packed(packed.codec.quantizer(), GaussianSource(27).vector(80));
    for (const Kernels* kernels : all_kernels()) {
      EXPECT_LT(score_error(kernels->score_exact, packed, queries, 256), kExactBound);
      EXPECT_LT(score_error(kernels->score_fast, packed, queries, 256), kFastBound);
    }
  }
}

std::vector<std::byte> dense_bytes(Dtype dtype, std::span<float> values) {
  std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
  store_f32(dtype, values, bytes.data());
  load_f32(dtype, bytes.data(), values);  // the values that the bytes stand for
  return bytes;
}

TEST(Kernels, DenseScoresAndSumsAreThoseOfF64) {
  std::size_t i_case = 0;
  for (const Kernels* kernels : all_kernels()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      for (const std::size_t head_dim : {32u, 33u, 64u, 80u, 100u, 128u, 256u}) {
        for (const std::size_t n_queries : {1u, 2u, 3u, 4u, 8u, 13u}) {
          for (const std::size_t n_tokens : {1u, 7u, 16u, 37u, 256u}) {
            if (!test::takes_emulated_case(i_case++, 4)) continue;
            std::vector<float> x = GaussianSource(31).vector(n_tokens * head_dim);
            const std::vector<std::byte> bytes = dense_bytes(dtype, x);
            const DenseBlock block = {dtype, bytes.data(), head_dim, n_tokens};
            const std::vector<float> q = GaussianSource(32).vector(n_queries * head_dim);
            QueryGroup queries;
            queries.set_for_dense(head_dim, q);
            std::vector<float> scores(n_queries * 300, kUntouched);
            kernels->score_dense(block, queries.rows(), {scores.data(), 300});
            const std::vector<float> weights = GaussianSource(33).vector(n_queries * 256);
            std::vector<float> sums(n_queries * 300, 1.0f);
            kernels->accumulate_dense(block, {n_queries, 256, weights.data()}, {sums.data(), 300});
            for (std::size_t query = 0; query < n_queries; ++query) {
              const std::string where = std::string(kernels->name) + " " +
                                        std::string(dtype_name(dtype)) + " " +
                                        std::to_string(head_dim) + " x " + std::to_string(n_tokens);
              for (std::size_t t = 0; t < n_tokens; ++t) {
                double expected = 0.0;
                for (std::size_t i = 0; i < head_dim; ++i) {
                  expected += static_cast<double>(q[query * head_dim + i]) *
                              static_cast<double>(x[t * head_dim + i]);
                }
                ASSERT_NEAR(scores[query * 300 + t], expected, 1e-4) << where;
              }
              ASSERT_EQ(scores[query * 300 + n_tokens], kUntouched) << where;
              for (std::size_t i = 0; i < head_dim; ++i) {
                double expected = 1.0;
                for (std::size_t t = 0; t < n_tokens; ++t) {
                  expected += static_cast<double>(weights[query * 256 + t]) *
                              static_cast<double>(x[t * head_dim + i]);
                }
                ASSERT_NEAR(sums[query * 300 + i], expected, 1e-4) << where;
              }
              ASSERT_EQ(sums[query * 300 + head_dim], 1.0f) << where;
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, TheScalarTableIsAlwaysThereAndTheFastestIsTheLast) {
  ASSERT_FALSE(all_kernels().empty());
  EXPECT_STREQ(all_kernels().front()->name, "scalar");
  EXPECT_EQ(find_kernels("").value(), all_kernels().back());
}

// What best_kernels() says in a new process with this environment; dies of the wrong answer.
void expect_best(const char* isa, const char* name) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto answer = [&] {
    setenv("TQCACHE_ISA", isa, 1);
    std::exit(std::string_view(best_kernels().name) == name ? 0 : 1);
  };
  EXPECT_EXIT(answer(), testing::ExitedWithCode(0), "") << isa;
}

TEST(Kernels, TheEnvironmentNamesTheBest) {
  for (const Kernels* kernels : all_kernels()) expect_best(kernels->name, kernels->name);
  expect_best("sse9", all_kernels().back()->name);
  expect_best("", all_kernels().back()->name);
}

TEST(Kernels, AreFoundByNameAndAreThoseThatRun) {
  for (const Kernels* kernels : all_kernels()) {
    const Result<const Kernels*> found = find_kernels(kernels->name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, kernels);
    const BlockCodec codec(make_quantizer(64, 4), BlockOrder::kKeys, **found);
    EXPECT_STREQ(codec.kernels().name, kernels->name);
  }
}

TEST(Kernels, ANameUnknownIsRefusedWithTheNamesThatAre) {
  const Result<const Kernels*> found = find_kernels("sse9");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(found.error().message, HasSubstr("sse9"));
  EXPECT_THAT(found.error().message, HasSubstr("scalar"));
}

TEST(Kernels, ANameOfAnotherCpuIsUnsupported) {
  std::size_t there = 0;
  for (const char* name : {"scalar", "avx2", "avx512", "neon"}) {
    const Result<const Kernels*> found = find_kernels(name);
    if (found.ok()) {
      ++there;
    } else {
      EXPECT_EQ(found.error().code, ErrorCode::kUnsupported) << name;
    }
  }
  EXPECT_EQ(there, all_kernels().size());
}

}  // namespace kernels_test
}  // namespace tqcache::codec
