#include "tqcache/cache/centering_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "support/gaussian.h"

namespace tqcache::cache {
namespace centring_score_test {

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
      const long double factor = rope.factors.empty() ? 1.0f : rope.factors[i];
      frequencies_.push_back(std::pow(static_cast<long double>(rope.base),
                                      -2.0L * static_cast<long double>(i) / rope.n_dims) /
                             factor);
    }
    for (std::size_t i = 2 * half; i < mean.size(); ++i) {
      constant_ += static_cast<double>(query[i]) * mean[i];
    }
  }
  double constant() const { return std::abs(constant_); }  // of what does not rotate
  double amplitude() const {
    double sum = 0;
    for (std::size_t i = 0; i < cos_.size(); ++i) sum += cos_[i] * cos_[i] + sin_[i] * sin_[i];
    return std::sqrt(sum);
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
    // Scaled: linear, as llama3 does it, and in no order, so that slow pairs stand before fast
    // ones.
    all.push_back({64, {RopeStyle::kHalfSplit, 64, 1e4, std::vector<float>(32, 4.0f)}});
    std::vector<float> factors(64, 8.0f);
    for (std::size_t i = 0; i < 40; ++i)
      factors[i] = i < 29 ? 1.0f : 1.0f + 0.6f * static_cast<float>(i - 29);
    all.push_back({128, {RopeStyle::kHalfSplit, 128, 5e5, factors}});
    for (std::size_t i = 0; i < factors.size(); i += 3) factors[i] = 1000.0f;
    all.push_back({128, {RopeStyle::kHalfSplit, 128, 1e4, factors}});
    all.push_back({1024, {RopeStyle::kHalfSplit, 1024, 1e4}});
    return all;
  }();
  return kCases;
}

// What there is of add_to(): each kind of kernels, exact and fast.
struct Way {
  const codec::Kernels* kernels;
  codec::Precision precision;

  std::string name() const {
    return std::string(kernels->name) +
           (precision == codec::Precision::kExact ? " exact" : " fast");
  }
};

std::vector<Way> all_ways(codec::Precision precision) {
  std::vector<Way> ways;
  for (const codec::Kernels* kernels : codec::all_kernels()) ways.push_back({kernels, precision});
  return ways;
}

// Over whole blocks.
struct Errors {
  double largest = 0;           // of |query| |mean|
  double root_mean_square = 0;  // of the length of the amplitudes
};

// A query held against a mean at some blocks, and what must come of it.
class Trial {
 public:
  Trial(const CenteringTable& table, const Rope& rope, std::span<const float> mean,
        std::span<const float> query, std::span<const std::int64_t> blocks)
      : blocks_(blocks), unit_(length(query) * length(mean)) {
    score_.set(&table, mean, query);
    const Definition definition(rope, mean, query);
    amplitude_ = definition.amplitude();
    for (const std::int64_t block : blocks) {
      for (std::int64_t t = 0; t < kTokenBlock; ++t) {
        expected_.push_back(definition.at(block * kTokenBlock + t));
      }
    }
  }

  Errors errors_of(const Way& way) const {
    double largest = 0, squares = 0;
    auto expected = expected_.begin();
    for (const std::int64_t block : blocks_) {
      std::vector<float> scores(kTokenBlock);
      score_.add_to(block, *way.kernels, way.precision, scores.data(), scores.size());
      for (const float score : scores) {
        const double error = static_cast<double>(score) - *expected++;
        largest = std::max(largest, std::abs(error));
        squares += error * error;
      }
    }
    const auto n = static_cast<double>(expected_.size());
    return {largest / unit_, std::sqrt(squares / n) / amplitude_};
  }

 private:
  std::span<const std::int64_t> blocks_;
  double unit_;
  double amplitude_ = 0;
  CenteringScore score_;
  std::vector<double> expected_;
};

// Up to a million tokens.
constexpr std::int64_t kBlocks[] = {0, 1, 127, 4095};
constexpr double kExactBound = 1e-6;
constexpr double kFastBound = 2e-4;

TEST(CenteringScore, IsTheQueryTimesTheTurnedMean) {
  test::GaussianSource random(1);
  Errors exact, fast;
  for (const Case& c : cases()) {
    CenteringTable table(c.rope);
    table.extend(4096);
    const auto head_dim = static_cast<std::size_t>(c.head_dim);
    const std::vector<float> mean = random.vector(head_dim), query = random.vector(head_dim);
    const Trial trial(table, c.rope, mean, query, kBlocks);
    const std::string where = std::to_string(c.head_dim) + " " + std::to_string(c.rope.n_dims) +
                              " " + std::to_string(c.rope.base);
    for (const Way& way : all_ways(codec::Precision::kExact)) {
      const Errors errors = trial.errors_of(way);
      EXPECT_LT(errors.largest, kExactBound) << way.name() << " " << where;
      exact.largest = std::max(exact.largest, errors.largest);
    }
    for (const Way& way : all_ways(codec::Precision::kFast)) {
      const Errors errors = trial.errors_of(way);
      EXPECT_LT(errors.root_mean_square, kFastBound) << way.name() << " " << where;
      fast.root_mean_square = std::max(fast.root_mean_square, errors.root_mean_square);
    }
  }
  std::printf("largest error of exact, of |query| |mean|: %.2e; root mean square of fast: %.2e\n",
              exact.largest, fast.root_mean_square);
}

// All of a query's and a mean's length in one pair: the worst case of the polynomials.
TEST(CenteringScore, IsPreciseForEveryPairAlone) {
  Errors exact, fast;
  for (const Rope& rope :
       {Rope{RopeStyle::kHalfSplit, 64, 1e4}, Rope{RopeStyle::kHalfSplit, 128, 5e6}}) {
    CenteringTable table(rope);
    table.extend(4096);
    const auto half = static_cast<std::size_t>(rope.n_dims / 2);
    for (std::size_t i = 0; i < half; ++i) {
      std::vector<float> query(2 * half), mean(2 * half);
      query[i] = 0.6f;
      query[i + half] = -0.8f;
      mean[i] = 2;
      mean[i + half] = 1;
      const Trial trial(table, rope, mean, query, std::span(kBlocks).last(1));
      for (const Way& way : all_ways(codec::Precision::kExact)) {
        const Errors errors = trial.errors_of(way);
        EXPECT_LT(errors.largest, kExactBound) << way.name() << " pair " << i;
        exact.largest = std::max(exact.largest, errors.largest);
      }
      for (const Way& way : all_ways(codec::Precision::kFast)) {
        const Errors errors = trial.errors_of(way);
        EXPECT_LT(errors.root_mean_square, kFastBound) << way.name() << " pair " << i;
        fast.root_mean_square = std::max(fast.root_mean_square, errors.root_mean_square);
      }
    }
  }
  std::printf("of a pair alone: %.2e and %.2e\n", exact.largest, fast.root_mean_square);
}

// One pair, or the components that do not rotate, are much louder than the rest.
TEST(CenteringScore, FastIsWithinItsBoundForAnyMean) {
  test::GaussianSource random(4);
  const Rope rope{RopeStyle::kHalfSplit, 128, 1e6};
  CenteringTable table(rope);
  table.extend(4096);
  for (std::size_t loud = 0; loud < 160; loud += 3) {
    std::vector<float> mean = random.vector(160), query = random.vector(160);
    mean[loud] *= 1000.0f;
    const Definition definition(rope, mean, query);
    const double bound = kFastBound * std::max(1.0, definition.constant() / definition.amplitude());
    const Trial trial(table, rope, mean, query, kBlocks);
    for (const Way& way : all_ways(codec::Precision::kFast)) {
      const Errors errors = trial.errors_of(way);
      EXPECT_LT(errors.root_mean_square, bound) << way.name() << " loud " << loud;
    }
  }
}

TEST(CenteringScore, NotANumberIsNeverHidden) {
  test::GaussianSource random(5);
  const Rope rope{RopeStyle::kHalfSplit, 64, 1e6};
  CenteringTable table(rope);
  table.extend(1);
  const std::vector<float> mean = random.vector(64);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> queries = random.vector(2 * 64);
    queries[64 + 7] = bad;  // of the second query alone
    CenteringScore score;
    score.set(&table, mean, queries);
    for (const auto precision : {codec::Precision::kExact, codec::Precision::kFast}) {
      for (const Way& way : all_ways(precision)) {
        std::vector<float> scores(2 * kTokenBlock);
        score.add_to(0, *way.kernels, precision, scores.data(), kTokenBlock);
        EXPECT_TRUE(std::isfinite(scores[33])) << way.name();
        EXPECT_TRUE(std::isnan(scores[kTokenBlock + 33])) << way.name();
      }
    }
  }
}

TEST(CenteringScore, AddsToWhatIsThereForAnyNumberOfQueries) {
  test::GaussianSource random(2);
  constexpr std::size_t kStride = kTokenBlock + 3;
  const Rope rope{RopeStyle::kHalfSplit, 64, 1e6};
  CenteringTable table(rope);
  table.extend(3);
  const std::vector<float> mean = random.vector(80);
  const auto expect_added = [&](const Way& way, std::size_t n) {
    const std::vector<float> queries = random.vector(n * 80);
    std::vector<float> scores(n * kStride, 5.0f);
    CenteringScore score;
    score.set(&table, mean, queries);
    score.add_to(2, *way.kernels, way.precision, scores.data(), kStride);
    const double factor = way.precision == codec::Precision::kExact ? 2e-6 : 1e-3;
    for (std::size_t q = 0; q < n; ++q) {
      const auto query = std::span(queries).subspan(q * 80, 80);
      const Definition definition(rope, mean, query);
      const double bound = factor * length(query) * length(mean);
      for (std::size_t t = 0; t < kTokenBlock; ++t) {
        ASSERT_NEAR(scores[q * kStride + t],
                    5 + definition.at(2 * kTokenBlock + static_cast<std::int64_t>(t)), bound)
            << way.name();
      }
      if (q + 1 < n) {
        EXPECT_EQ(scores[q * kStride + kTokenBlock], 5.0f);
      }
    }
  };
  for (std::size_t n = 1; n <= 9; ++n) {
    for (const Way& way : all_ways(codec::Precision::kExact)) expect_added(way, n);
    for (const Way& way : all_ways(codec::Precision::kFast)) expect_added(way, n);
  }
}

TEST(CenteringScore, IsOneValueForAMeanThatDoesNotTurn) {
  test::GaussianSource random(3);
  const std::vector<float> mean = random.vector(64), query = random.vector(64);
  std::vector<float> scores(kTokenBlock);
  CenteringScore score;
  score.set(nullptr, mean, query);
  score.add_to(11, codec::best_kernels(), codec::Precision::kExact, scores.data(), scores.size());
  double expected = 0;
  for (std::size_t i = 0; i < 64; ++i) expected += static_cast<double>(mean[i]) * query[i];
  for (const float each : scores) EXPECT_NEAR(each, expected, 1e-6 * length(mean) * length(query));
}

// docs/reference/codec.md §8.
TEST(CenteringScore, DoesTheWorkedExample) {
  CenteringTable table({RopeStyle::kHalfSplit, 4, 10000});
  table.extend(2);
  const std::vector<float> mean = {1, 2, 3, 4}, query = {1, 0, 0, 1};
  std::vector<float> scores(kTokenBlock);
  CenteringScore score;
  score.set(&table, mean, query);
  score.add_to(1, codec::best_kernels(), codec::Precision::kExact, scores.data(), scores.size());
  EXPECT_NEAR(scores[2], -2.534333, 1e-5);
}

TEST(CenteringTable, KeepsWhatItHasWhenItGrows) {
  const Rope rope{RopeStyle::kHalfSplit, 128, 1e6};
  CenteringTable grown(rope), whole(rope);
  grown.extend(2);
  grown.extend(1);
  grown.extend(9);
  whole.extend(9);
  for (std::int64_t block = 0; block < 9; ++block) {
    EXPECT_TRUE(std::equal(grown.block_phasors(block), grown.block_phasors(block) + 128,
                           whole.block_phasors(block)));
  }
}

}  // namespace centring_score_test
}  // namespace tqcache::cache
