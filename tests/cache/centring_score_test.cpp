#include "tqcache/cache/centring_score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/gaussian.h"

namespace tqcache::cache {
namespace {

double length(std::span<const float> x) {
  double sum = 0;
  for (const float each : x) sum += static_cast<double>(each) * each;
  return std::sqrt(sum);
}

// query . R_p mean by the definition, in long double.
class Definition {
 public:
  Definition(const Rope& rope, std::span<const float> mean, std::span<const float> query) {
    const auto half = static_cast<std::size_t>(rope.n_dims / 2);
    for (std::size_t i = 0; i < half; ++i) {
      const double qa = query[i], qb = query[i + half], ma = mean[i], mb = mean[i + half];
      cos_.push_back(qa * ma + qb * mb);
      sin_.push_back(qb * ma - qa * mb);
      frequencies_.push_back(std::pow(static_cast<long double>(rope.base),
                                      -2.0L * static_cast<long double>(i) / rope.n_dims));
    }
    for (std::size_t i = 2 * half; i < mean.size(); ++i) {
      constant_ += static_cast<double>(query[i]) * mean[i];
    }
  }
  double at(std::int64_t position) const {
    double sum = constant_;
    for (std::size_t i = 0; i < cos_.size(); ++i) {
      const long double angle = position * frequencies_[i];
      sum += cos_[i] * static_cast<double>(std::cos(angle)) +
             sin_[i] * static_cast<double>(std::sin(angle));
    }
    return sum;
  }

 private:
  std::vector<double> cos_, sin_;
  std::vector<long double> frequencies_;
  double constant_ = 0;
};

struct Case {
  std::int64_t head_dim;
  Rope rope;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = [] {
    std::vector<Case> all;
    for (const double base : {1e4, 1e6, 5e6}) {
      for (const std::int64_t head_dim : {64, 80, 96, 128, 256}) {
        all.push_back({head_dim, {RopeStyle::kHalfSplit, head_dim, base}});
      }
      all.push_back({256, {RopeStyle::kHalfSplit, 64, base}});  // partial rotary
      all.push_back({80, {RopeStyle::kHalfSplit, 32, base}});
    }
    all.push_back({32, {RopeStyle::kHalfSplit, 2, 1e4}});  // no pair is slow
    all.push_back({1024, {RopeStyle::kHalfSplit, 1024, 1e4}});
    return all;
  }();
  return kCases;
}

// The largest error over whole blocks, of |query| |mean|.
double largest_error(const CentringTable& table, const Rope& rope, std::span<const float> mean,
                     std::span<const float> query, std::span<const std::int64_t> blocks) {
  CentringScore score;
  score.set(&table, mean, query);
  const Definition definition(rope, mean, query);
  double largest = 0;
  for (const std::int64_t block : blocks) {
    std::vector<float> scores(kTokenBlock);
    score.add_to(block, scores.data(), scores.size());
    for (std::int64_t t = 0; t < kTokenBlock; ++t) {
      const double error =
          scores[static_cast<std::size_t>(t)] - definition.at(block * kTokenBlock + t);
      largest = std::max(largest, std::abs(error));
    }
  }
  return largest / (length(query) * length(mean));
}

// Up to a million tokens.
constexpr std::int64_t kBlocks[] = {0, 1, 127, 4095};

TEST(CentringScore, IsTheQueryTimesTheTurnedMean) {
  test::GaussianSource random(1);
  double largest = 0;
  for (const Case& c : cases()) {
    CentringTable table(c.rope);
    table.extend(4096);
    const auto head_dim = static_cast<std::size_t>(c.head_dim);
    const double error =
        largest_error(table, c.rope, random.vector(head_dim), random.vector(head_dim), kBlocks);
    EXPECT_LT(error, 1e-6) << c.head_dim << " " << c.rope.n_dims << " " << c.rope.base;
    largest = std::max(largest, error);
  }
  std::printf("largest error, of |query| |mean|: %.2e\n", largest);
}

// All of a query's and a mean's length in one pair: the worst case of the polynomials.
TEST(CentringScore, IsPreciseForEveryPairAlone) {
  double largest = 0;
  for (const Rope& rope :
       {Rope{RopeStyle::kHalfSplit, 64, 1e4}, Rope{RopeStyle::kHalfSplit, 128, 5e6}}) {
    CentringTable table(rope);
    table.extend(4096);
    const auto half = static_cast<std::size_t>(rope.n_dims / 2);
    for (std::size_t i = 0; i < half; ++i) {
      std::vector<float> query(2 * half), mean(2 * half);
      query[i] = 0.6f;
      query[i + half] = -0.8f;
      mean[i] = 2;
      mean[i + half] = 1;
      const double error = largest_error(table, rope, mean, query, std::span(kBlocks).last(1));
      EXPECT_LT(error, 1e-6) << "pair " << i;
      largest = std::max(largest, error);
    }
  }
  std::printf("largest error of a pair alone: %.2e\n", largest);
}

TEST(CentringScore, AddsToWhatIsThereForAnyNumberOfQueries) {
  test::GaussianSource random(2);
  constexpr std::size_t kStride = kTokenBlock + 3;
  const Rope rope{RopeStyle::kHalfSplit, 64, 1e6};
  CentringTable table(rope);
  table.extend(3);
  const std::vector<float> mean = random.vector(80);
  for (std::size_t n = 1; n <= 9; ++n) {
    const std::vector<float> queries = random.vector(n * 80);
    std::vector<float> scores(n * kStride, 5.0f);
    CentringScore score;
    score.set(&table, mean, queries);
    score.add_to(2, scores.data(), kStride);
    for (std::size_t q = 0; q < n; ++q) {
      const auto query = std::span(queries).subspan(q * 80, 80);
      const Definition definition(rope, mean, query);
      const double bound = 2e-6 * length(query) * length(mean);
      for (std::size_t t = 0; t < kTokenBlock; ++t) {
        ASSERT_NEAR(scores[q * kStride + t],
                    5 + definition.at(2 * kTokenBlock + static_cast<std::int64_t>(t)), bound);
      }
      if (q + 1 < n) {
        EXPECT_EQ(scores[q * kStride + kTokenBlock], 5.0f);
      }
    }
  }
}

TEST(CentringScore, IsOneValueForAMeanThatDoesNotTurn) {
  test::GaussianSource random(3);
  const std::vector<float> mean = random.vector(64), query = random.vector(64);
  std::vector<float> scores(kTokenBlock);
  CentringScore score;
  score.set(nullptr, mean, query);
  score.add_to(11, scores.data(), scores.size());
  double expected = 0;
  for (std::size_t i = 0; i < 64; ++i) expected += static_cast<double>(mean[i]) * query[i];
  for (const float each : scores) EXPECT_NEAR(each, expected, 1e-6 * length(mean) * length(query));
}

// docs/codec.md §8.
TEST(CentringScore, DoesTheWorkedExample) {
  CentringTable table({RopeStyle::kHalfSplit, 4, 10000});
  table.extend(2);
  const std::vector<float> mean = {1, 2, 3, 4}, query = {1, 0, 0, 1};
  std::vector<float> scores(kTokenBlock);
  CentringScore score;
  score.set(&table, mean, query);
  score.add_to(1, scores.data(), scores.size());
  EXPECT_NEAR(scores[2], -2.534333, 1e-5);
}

TEST(CentringTable, KeepsWhatItHasWhenItGrows) {
  const Rope rope{RopeStyle::kHalfSplit, 128, 1e6};
  CentringTable grown(rope), whole(rope);
  grown.extend(2);
  grown.extend(1);
  grown.extend(9);
  whole.extend(9);
  for (std::int64_t block = 0; block < 9; ++block) {
    EXPECT_TRUE(std::equal(grown.block_phasors(block), grown.block_phasors(block) + 128,
                           whole.block_phasors(block)));
  }
}

}  // namespace
}  // namespace tqcache::cache
