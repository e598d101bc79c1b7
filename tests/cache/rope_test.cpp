#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "support/gaussian.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/description.h"

namespace tqcache::cache {
namespace rope_test {

// R_p x by the definition, in long double.
std::vector<double> defined(const Rope& rope, std::int64_t position, std::span<const float> x) {
  std::vector<double> y(x.begin(), x.end());
  const auto half = static_cast<std::size_t>(rope.n_dims / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const long double exponent = -2.0L * static_cast<long double>(i) / rope.n_dims;
    const long double factor = rope.factors.empty() ? 1.0f : rope.factors[i];
    const long double angle =
        position * std::pow(static_cast<long double>(rope.base), exponent) / factor;
    const long double cos = std::cos(angle), sin = std::sin(angle);
    y[i] = static_cast<double>(x[i] * cos - x[i + half] * sin);
    y[i + half] = static_cast<double>(x[i + half] * cos + x[i] * sin);
  }
  return y;
}

double largest_difference(std::span<const double> a, std::span<const float> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - static_cast<double>(b[i])));
  }
  return largest;
}

const std::vector<Rope>& ropes() {
  static const std::vector<Rope> kRopes = {
      {RopeStyle::kHalfSplit, 128, 1e4},
      {RopeStyle::kHalfSplit, 128, 5e6},
      {RopeStyle::kHalfSplit, 64, 1e6},
      {RopeStyle::kHalfSplit, 2, 1e6},
      {RopeStyle::kHalfSplit, 80, 1},
      {RopeStyle::kHalfSplit, 96, 10000.5},
      {RopeStyle::kHalfSplit, 8, 5e5, {1, 1, 4.5f, 8}},  // as llama3 scales
      {RopeStyle::kHalfSplit, 6, 1e4, {4, 4, 4}},        // linear
      {RopeStyle::kHalfSplit, 6, 1e4, {8, 0.25f, 1}}};   // in no order
  return kRopes;
}

TEST(Phasor, IsCosineAndSineOfTurns) {
  test::SplitMix64 random(1);
  // zig's library for ARM computes the sines of long double in double.
  const bool is_long = std::abs(std::sin(3.0L) - 0.141120008059867222100744802808L) < 1e-18L;
  const double tolerance = is_long ? 3e-16 : 1e-15;
  for (int i = 0; i < 100000; ++i) {
    const double cycles = (random.uniform() - 0.5) * 8;
    const long double angle =
        static_cast<long double>(cycles) * 2 * std::numbers::pi_v<long double>;
    const Phasor at = phasor(cycles);
    ASSERT_NEAR(at.cos, static_cast<double>(std::cos(angle)), tolerance) << cycles;
    ASSERT_NEAR(at.sin, static_cast<double>(std::sin(angle)), tolerance) << cycles;
  }
}

TEST(Phasor, IsExactAtTheQuarters) {
  for (const double whole : {0.0, 1.0, -3.0, 1e6}) {
    EXPECT_EQ(phasor(whole).cos, 1);
    EXPECT_EQ(phasor(whole).sin, 0);
    EXPECT_EQ(phasor(whole + 0.25).sin, 1);
    EXPECT_EQ(phasor(whole + 0.5).cos, -1);
    EXPECT_EQ(phasor(whole + 0.75).sin, -1);
  }
}

TEST(Rope, TurnsAsDefined) {
  test::GaussianSource random(2);
  for (const Rope& rope : ropes()) {
    for (const std::int64_t position : {0, 1, 255, 256, 100000, 1 << 20}) {
      const std::vector<float> x = random.vector(128);
      std::vector<float> y = x;
      rotate(rope, position, y);
      EXPECT_LT(largest_difference(defined(rope, position, x), y), 1e-6)
          << rope.n_dims << " " << rope.base << " " << position;
    }
  }
}

TEST(Rope, TurnsBackWhatItTurned) {
  test::GaussianSource random(3);
  for (const Rope& rope : ropes()) {
    const std::vector<float> x = random.vector(128);
    std::vector<float> y = x;
    rotate(rope, 777, y);
    rotate_back(rope, 777, y);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-6);
  }
}

TEST(Rope, LeavesComponentsFromNDimsOnAlone) {
  test::GaussianSource random(4);
  const std::vector<float> x = random.vector(128);
  std::vector<float> y = x;
  rotate({RopeStyle::kHalfSplit, 32, 1e4}, 5, y);
  EXPECT_NE(x[0], y[0]);
  EXPECT_NE(x[31], y[31]);
  EXPECT_TRUE(std::equal(x.begin() + 32, x.end(), y.begin() + 32));
}

// Keys of a cache stand in half-split order whatever the model's own order is.
TEST(Rope, TurnsKeysOfAnInterleavedModelAsTheyStand) {
  test::GaussianSource random(5);
  std::vector<float> x = random.vector(64);
  std::vector<float> y = x;
  rotate({RopeStyle::kHalfSplit, 64, 1e4}, 9, x);
  rotate({RopeStyle::kInterleaved, 64, 1e4}, 9, y);
  EXPECT_EQ(x, y);
}

TEST(Rope, IsTheIdentityWhereItIsNotKnown) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Rope& rope :
       {Rope{RopeStyle::kNone, 64, 1e4}, Rope{RopeStyle::kHalfSplit, 0, 1e4},
        Rope{RopeStyle::kHalfSplit, 64, 0}, Rope{RopeStyle::kHalfSplit, 63, 1e4},
        Rope{RopeStyle::kHalfSplit, 66, 1e4}, Rope{RopeStyle::kHalfSplit, 64, .5},
        Rope{RopeStyle::kHalfSplit, -2, 1e4}, Rope{RopeStyle::kHalfSplit, 64, nan},
        Rope{RopeStyle::kHalfSplit, 64, infinity}, Rope{RopeStyle::kHalfSplit, 4, 1e4, {1}},
        Rope{RopeStyle::kHalfSplit, 4, 1e4, {1, 0}}, Rope{RopeStyle::kHalfSplit, 4, 1e4, {1, -1}},
        Rope{RopeStyle::kHalfSplit, 4, 1e4, {static_cast<float>(nan), 1}}}) {
    EXPECT_FALSE(can_rotate(rope, 64));
    std::vector<float> x(64, 1.5f);
    rotate(rope, 3, x);
    rotate_back(rope, 4, x);
    EXPECT_EQ(x, std::vector<float>(64, 1.5f));
  }
}

TEST(RopeTable, TurnsToAnyPositionOfABlock) {
  test::GaussianSource random(6);
  for (const Rope& rope : ropes()) {
    const RopeTable table(rope);
    const auto half = static_cast<std::size_t>(rope.n_dims / 2);
    for (const std::int64_t block : {0, 1, 4095}) {
      const std::vector<float> x = random.vector(128);
      std::vector<float> at_block = x;
      table.rotate_to(block * kTokenBlock, 128, at_block);
      for (const std::int64_t offset : {0, 1, 255}) {
        std::vector<float> y = at_block;
        for (std::size_t i = 0; i < half; ++i) {
          const float cos = table.cos(offset)[i], sin = table.sin(offset)[i];
          y[i] = at_block[i] * cos - at_block[i + half] * sin;
          y[i + half] = at_block[i + half] * cos + at_block[i] * sin;
        }
        EXPECT_LT(largest_difference(defined(rope, block * kTokenBlock + offset, x), y), 1e-6);
      }
    }
  }
}

TEST(RopeTable, TurnsEveryRowAlike) {
  test::GaussianSource random(7);
  const RopeTable table({RopeStyle::kHalfSplit, 32, 1e6});
  std::vector<float> rows = random.vector(3 * 40);
  std::vector<float> last(rows.end() - 40, rows.end());
  table.rotate_to(12345, 40, rows);
  table.rotate_to(12345, 40, last);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), rows.end() - 40));
}

TEST(RopeTable, TurnsColumnsAsItTurnsRows) {
  test::GaussianSource random(8);
  const RopeTable table({RopeStyle::kHalfSplit, 32, 1e6});
  std::vector<float> rows = random.vector(7 * 40), columns(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) columns[i % 40 * 7 + i / 40] = rows[i];
  table.rotate_to(12345, 40, rows);
  table.rotate_columns_to(12345, 7, columns);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(columns[i % 40 * 7 + i / 40], rows[i]);
}

TEST(RopeTable, TurnsBackToANegativePosition) {
  test::GaussianSource random(9);
  const RopeTable table({RopeStyle::kHalfSplit, 32, 1e6});
  const std::vector<float> x = random.vector(40);
  std::vector<float> y = x;
  table.rotate_to(12345, 40, y);
  table.rotate_to(-12345, 40, y);
  EXPECT_LT(largest_difference(std::vector<double>(x.begin(), x.end()), y), 1e-6);
}

}  // namespace rope_test
}  // namespace tqcache::cache
