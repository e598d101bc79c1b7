// The kernels of this CPU against the definition (docs/codec.md, "Kernels").

#include "tqcache/codec/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/query_group.h"

namespace tqcache::codec {
namespace {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;

constexpr double kExactBound = 1e-6;
constexpr double kFastBound = 1e-2;

Quantizer make_quantizer(int head_dim, int bits) {
  return Quantizer::make(CodecSpec{.head_dim = head_dim, .bits = bits}).value();
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

Packed pack(int head_dim, int bits, BlockOrder order, std::span<const float> x,
            const Kernels& kernels) {
  const Quantizer quantizer = make_quantizer(head_dim, bits);
  Packed packed{BlockCodec(quantizer, order, kernels), {}, {}, {}};
  const BlockShape& shape = packed.codec.shape();
  packed.codes.resize(shape.block_bytes());
  packed.scales.resize(kBlockTokens);
  EXPECT_TRUE(
      packed.codec
          .encode(rows_of(x, shape.dim()), x.size() / shape.dim(), packed.codes, packed.scales)
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

// Isotropic; and what breaks naive kernels: loud channels, a common bias, lengths far apart.
enum class Data { kGaussian, kLoudChannel, kBias, kUnequalLengths };

std::vector<float> make_vectors(Data data, std::size_t n, std::size_t head_dim,
                                std::uint64_t seed) {
  GaussianSource random(seed);
  std::vector<float> x = random.vector(n * head_dim);
  for (std::size_t v = 0; v < n; ++v) {
    for (std::size_t i = 0; i < head_dim; ++i) {
      float& value = x[v * head_dim + i];
      if (data == Data::kLoudChannel && i == 5) value *= 100.0f;
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
  for (const int head_dim : {32, 64, 80, 96, 112, 128, 192, 256, 512}) {
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
  for (const Data data : {Data::kLoudChannel, Data::kBias, Data::kUnequalLengths}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) cases.push_back({128, bits, 64, 256, data});
  }
  for (const std::size_t n_tokens : {1u, 15u, 16u, 17u, 31u, 33u, 100u, 255u}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
      cases.push_back({64, bits, 2, n_tokens, Data::kGaussian});
    }
  }
  return cases;
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

enum class Weights { kEqual, kSoftmax, kOneToken, kSigned, kZero };
constexpr Weights kAllWeights[] = {Weights::kEqual, Weights::kSoftmax, Weights::kOneToken,
                                   Weights::kSigned, Weights::kZero};

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

// Root mean square error of the worst query's sum.
double accumulate_error(Kernels::Accumulate accumulate, const Packed& packed,
                        const WeightRows& weights, std::size_t n_tokens,
                        const ExpectedSums& expected) {
  const std::size_t head_dim = packed.codec.shape().dim();
  const std::size_t stride = head_dim + 3;
  std::vector<float> out(weights.n_queries * stride, 1.0f);
  accumulate(packed.view(n_tokens), packed.codec.tables(), weights, {out.data(), stride});
  double worst = 0.0;
  for (std::size_t q = 0; q < weights.n_queries; ++q) {
    double squares = 0.0;
    for (std::size_t i = 0; i < head_dim; ++i) {
      const double error =
          static_cast<double>(out[q * stride + i]) - expected.sums[q * head_dim + i];
      squares += error * error;
    }
    worst = std::max(worst, std::sqrt(squares / expected.energies[q]));
    EXPECT_EQ(out[q * stride + head_dim], 1.0f) << "wrote beyond the last component";
  }
  return worst;
}

void expect_sums_within_bounds(const Packed& packed, const WeightRows& weights,
                               std::size_t n_tokens, const std::string& where) {
  const ExpectedSums expected = expect_sums(packed, weights, n_tokens);
  for (const Kernels* kernels : all_kernels()) {
    EXPECT_LT(accumulate_error(kernels->accumulate_exact, packed, weights, n_tokens, expected),
              kExactBound)
        << kernels->name << " " << where;
    EXPECT_LT(accumulate_error(kernels->accumulate_fast, packed, weights, n_tokens, expected),
              kFastBound)
        << kernels->name << " " << where;
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

TEST(Kernels, SumsAreWithinTheirBoundsForAnyWeights) {
  for (const Weights kind : kAllWeights) {
    for (const int bits : {2, 3, 4, 8}) {
      const Packed packed = pack(128, bits, BlockOrder::kValues,
                                 make_vectors(Data::kGaussian, 256, 128, 23), best_kernels());
      const auto weights = make_weights(kind, 3, 256);
      expect_sums_within_bounds(
          packed, {3, 256, weights.data()}, 256,
          "bits " + std::to_string(bits) + " weights " + std::to_string(static_cast<int>(kind)));
    }
  }
}

TEST(Kernels, NotANumberIsNeverHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : all_kernels()) {
    for (const float bad : {nan, infinity}) {
      const auto vectors = make_vectors(Data::kGaussian, 256, 64, 24);
      const Packed keys = pack(64, 4, BlockOrder::kKeys, vectors, *kernels);
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
      const Packed values = pack(64, 4, BlockOrder::kValues, vectors, *kernels);
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
  for (const Kernels* kernels : all_kernels()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      for (const std::size_t head_dim : {32u, 33u, 64u, 80u, 100u, 128u, 256u}) {
        for (const std::size_t n_queries : {1u, 2u, 3u, 4u, 8u, 13u}) {
          for (const std::size_t n_tokens : {1u, 7u, 16u, 37u, 256u}) {
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

TEST(Kernels, TheScalarTableIsAlwaysThereAndTheBestIsTheLast) {
  ASSERT_FALSE(all_kernels().empty());
  EXPECT_STREQ(all_kernels().front()->name, "scalar");
  EXPECT_EQ(&best_kernels(), all_kernels().back());
}

TEST(Kernels, AreFoundByNameAndAreThoseThatRun) {
  for (const Kernels* kernels : all_kernels()) {
    const Result<const Kernels*> found = find_kernels(kernels->name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, kernels);
    const BlockCodec codec(make_quantizer(64, 4), BlockOrder::kKeys, **found);
    EXPECT_STREQ(codec.kernels().name, kernels->name);
  }
  EXPECT_EQ(find_kernels("").value(), &best_kernels());
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

}  // namespace
}  // namespace tqcache::codec
