// Codebooks and queries as bytes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/kernels/code_tables.h"
#include "tqcache/codec/kernels/head_queries.h"

namespace tqcache::codec {
namespace query_group_test {

using test::GaussianSource;

Quantizer make_quantizer(int head_dim, int bits) {
  return Quantizer::make(PartSpec{.head_dim = head_dim, .bits = bits}).value();
}

double from_bytes(const CodeTables& tables, std::size_t code) {
  double steps = 0.0;
  for (int level = 0; level < tables.n_levels; ++level) {
    steps = 256.0 * steps + tables.bytes[level][code] - 128.0;
  }
  return static_cast<double>(tables.step) * steps;
}

TEST(CodeTables, GoRoundInEveryEntry) {
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<float> centroids = lloyd_max_centroids(128, bits);
    const CodeTables tables = make_code_tables(128, bits, centroids);
    for (std::size_t i = 0; i < 256; ++i) {
      const std::size_t code = i % centroids.size();
      EXPECT_EQ(tables.values[i], centroids[code]);
      EXPECT_EQ(tables.bytes[0][i], tables.bytes[0][code]);
      EXPECT_EQ(tables.bytes[1][i], tables.bytes[1][code]);
    }
  }
}

TEST(CodeTables, TakeASecondByteWhereOneIsTooCoarse) {
  for (const int head_dim : {64, 128, 256}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const std::vector<float> centroids = lloyd_max_centroids(head_dim, bits);
      const CodeTables tables = make_code_tables(head_dim, bits, centroids);
      EXPECT_EQ(tables.n_levels, bits <= 4 ? 1 : 2) << bits;
      const double coarsest = 0.51 * static_cast<double>(tables.step);
      for (std::size_t code = 0; code < centroids.size(); ++code) {
        EXPECT_NEAR(from_bytes(tables, code), static_cast<double>(centroids[code]), coarsest);
      }
    }
  }
}

TEST(CodeTables, ALineAndARemainderMakeEveryCentroidOfEightBits) {
  for (const int head_dim : {32, 128, 512}) {
    const std::vector<float> centroids = lloyd_max_centroids(head_dim, 8);
    const CodeTables tables = make_code_tables(head_dim, 8, centroids);
    for (int code = 0; code < 256; ++code) {
      const auto i = static_cast<std::size_t>(code);
      const double value = static_cast<double>(tables.linear_step) * (code - 128) +
                           static_cast<double>(tables.remainder_step) * (tables.remainder[i] - 128);
      EXPECT_NEAR(value, static_cast<double>(centroids[i]),
                  0.51 * static_cast<double>(tables.remainder_step));
    }
    // A third of the error that the codes themselves have.
    EXPECT_LT(tables.remainder_step * std::sqrt(static_cast<float>(head_dim) / 12.0f),
              0.33f * std::sqrt(4e-5f));
  }
}

TEST(CodeTables, NarrowEntriesStayInTheirRange) {
  for (int bits = 1; bits <= CodeTables::kMaxNarrowBits; ++bits) {
    const std::vector<float> centroids = lloyd_max_centroids(128, bits);
    const CodeTables tables = make_code_tables(128, bits, centroids);
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_LE(tables.narrow[i], 2 * CodeTables::kNarrowOffset);
      const double value =
          static_cast<double>(tables.narrow_step) * (tables.narrow[i] - CodeTables::kNarrowOffset);
      EXPECT_NEAR(value, static_cast<double>(centroids[i % centroids.size()]),
                  0.51 * static_cast<double>(tables.narrow_step));
    }
  }
}

// What the rows of bytes of a query stand for.
std::vector<double> from_bytes(const QueryRows& rows, std::size_t query) {
  std::vector<double> values(rows.stride, 0.0);
  for (std::size_t level = 0; level < rows.n_levels; ++level) {
    const std::size_t row = query * rows.n_levels + level;
    for (std::size_t i = 0; i < rows.stride; ++i) {
      values[i] += static_cast<double>(rows.multipliers[row]) * rows.bytes[row * rows.stride + i];
    }
  }
  return values;
}

void expect_sums_and_pairs(const QueryRows& rows) {
  for (std::size_t row = 0; row < rows.n_queries * rows.n_levels; ++row) {
    const std::int8_t* const bytes = rows.bytes + row * rows.stride;
    int sum = 0;
    for (std::size_t i = 0; i < rows.stride; ++i) sum += bytes[i];
    EXPECT_EQ(sum, rows.sums[row]);
    for (std::size_t i = 0; i < rows.stride; i += 2) {
      EXPECT_LE(std::abs(bytes[i]) + std::abs(bytes[i + 1]), CodeTables::kPairLimit);
    }
  }
}

TEST(QueryGroup, RotatesAndRoundsEachQuery) {
  const Quantizer quantizer = make_quantizer(80, 4);
  const std::vector<float> queries = GaussianSource(1).vector(3 * 80);
  QueryGroup group;
  group.set_for_packed(quantizer, queries);
  const QueryRows rows = group.rows();
  ASSERT_EQ(rows.n_queries, 3u);
  ASSERT_EQ(rows.stride, 96u);
  expect_sums_and_pairs(rows);
  for (std::size_t q = 0; q < 3; ++q) {
    std::vector<float> rotated(80);
    quantizer.rotation().rotate(std::span(queries).subspan(q * 80, 80), rotated);
    const std::vector<double> rounded = from_bytes(rows, q);
    for (std::size_t i = 0; i < 96; ++i) {
      const float expected = i < 80 ? rotated[i] : 0.0f;
      EXPECT_EQ(rows.values[q * 96 + i], expected);
      EXPECT_NEAR(rounded[i], static_cast<double>(expected),
                  0.51 * static_cast<double>(rows.multipliers[(q + 1) * rows.n_levels - 1]));
    }
  }
}

// Parts of a codec may have few channels, and other maps than a rotation.
TEST(QueryGroup, TakesAnyMapAndAnyNumberOfChannels) {
  for (const TransformKind kind : {TransformKind::kHadamard, TransformKind::kDenseQr,
                                   TransformKind::kGaussian, TransformKind::kNone}) {
    for (const int dim : {8, 12, 33, 60}) {
      const auto n = static_cast<std::size_t>(dim);
      const std::vector<float> centroids = {-0.1f, 0.1f};
      const Quantizer quantizer =
          Quantizer::make({.head_dim = dim, .bits = 1, .rotation = kind}, centroids).value();
      const std::vector<float> query = GaussianSource(5).vector(n);
      std::vector<float> turned(n);
      quantizer.rotation().rotate(query, turned);
      EXPECT_EQ(turned == query, kind == TransformKind::kNone);
      QueryGroup group;
      group.set_for_packed(quantizer, query);
      ASSERT_EQ(group.rows().stride, (n + 31) / 32 * 32);
      expect_sums_and_pairs(group.rows());
      double error = 0.0, energy = 0.0;
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_EQ(group.rows().values[i], turned[i]);
        const double difference = from_bytes(group.rows(), 0)[i] - static_cast<double>(turned[i]);
        error += difference * difference;
        energy += static_cast<double>(turned[i]) * static_cast<double>(turned[i]);
      }
      EXPECT_LT(error, 0.01 * 0.01 * energy) << "map " << static_cast<int>(kind) << ", " << dim;
    }
  }
}

TEST(QueryGroup, PairsOfLargeNeighborsLimitTheStep) {
  const Quantizer quantizer = make_quantizer(64, 4);
  std::vector<float> rotated(64, 1.0f), query(64);  // every pair is as large as it can be
  quantizer.rotation().unrotate(rotated, query);
  QueryGroup group;
  group.set_for_packed(quantizer, query);
  EXPECT_EQ(group.rows().n_levels, 1u);
  expect_sums_and_pairs(group.rows());
  EXPECT_NEAR(from_bytes(group.rows(), 0)[5], 1.0, 0.006);
}

TEST(QueryGroup, TakesTwoLevelsForSpikes) {
  QueryGroup group;
  group.set_for_packed(make_quantizer(128, 4), GaussianSource(2).vector(4 * 128));
  EXPECT_EQ(group.rows().n_levels, 1u);
  const Quantizer quantizer = make_quantizer(128, 4);
  std::vector<float> rotated = GaussianSource(3).vector(128), query(128);
  rotated[40] = -200.0f;
  quantizer.rotation().unrotate(rotated, query);
  group.set_for_packed(quantizer, query);
  EXPECT_EQ(group.rows().n_levels, 2u);
  expect_sums_and_pairs(group.rows());
  EXPECT_NEAR(from_bytes(group.rows(), 0)[3], static_cast<double>(rotated[3]), 0.02);
}

TEST(QueryGroup, AQueryOfZerosIsZeros) {
  QueryGroup group;
  group.set_for_packed(make_quantizer(64, 4), std::vector<float>(64, 0.0f));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(from_bytes(group.rows(), 0)[i], 0.0);
}

TEST(QueryGroup, TakesQueriesForDenseKeysAsTheyAre) {
  const std::vector<float> queries = GaussianSource(4).vector(2 * 33);
  QueryGroup group;
  group.set_for_dense(33, queries);
  const QueryRows rows = group.rows();
  ASSERT_EQ(rows.n_queries, 2u);
  ASSERT_EQ(rows.stride, 64u);
  EXPECT_EQ(rows.values[64 + 32], queries[33 + 32]);
  EXPECT_EQ(rows.values[64 + 33], 0.0f);
}

}  // namespace query_group_test
}  // namespace tqcache::codec
