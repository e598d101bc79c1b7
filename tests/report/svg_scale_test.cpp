#include "report/svg_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tqcache::report {
using namespace eval;  // figures and tables

namespace svg_scale_test {

using testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> texts(const Scale& scale) {
  std::vector<std::string> all;
  for (const Tick& tick : scale.ticks) all.push_back(tick.text);
  return all;
}

TEST(LinearScale, HasRoundTicks) {
  EXPECT_THAT(texts(make_scale(3.1, 5.2, false, 5)), ElementsAre("3.5", "4.0", "4.5", "5.0"));
  EXPECT_THAT(texts(make_scale(-2, 2, false, 4)), ElementsAre("-2", "-1", "0", "1", "2"));
  EXPECT_THAT(texts(make_scale(0, 51302112, false, 3)),
              ElementsAre("0", "20,000,000", "40,000,000"));
}

TEST(LinearScale, BeginsAtZeroIfThatIsNear) {
  EXPECT_EQ(make_scale(2, 16, false, 5).low, 0);
  EXPECT_EQ(make_scale(0, 16, false, 5).low, 0);
  EXPECT_GT(make_scale(10, 16, false, 5).low, 9);
}

TEST(LogScale, HasPowersOfTenOrASteadyChoiceBetween) {
  EXPECT_THAT(texts(make_scale(.0002, 2, true, 6)), ElementsAre("0.001", "0.01", "0.1", "1"));
  EXPECT_THAT(texts(make_scale(1024, 8192, true, 6)), ElementsAre("1,000", "2,000", "5,000"));
  EXPECT_THAT(texts(make_scale(3.2, 4.9, true, 6)), ElementsAre("3.5", "4.0", "4.5", "5.0"));
  EXPECT_THAT(texts(make_scale(1e-12, 1e12, true, 5)),
              ElementsAre("1e-12", "1e-6", "1", "1,000,000", "1e12"));
}

TEST(LogScale, OfLessThanADecadeHasTicks) {
  EXPECT_GE(make_scale(1.01, 1.03, true, 6).ticks.size(), 3u);
}

TEST(Scale, HoldsItsValuesAndTicksWhateverTheyAre) {
  const std::vector<double> values = {-1e100, -3,  -1e-100, -5e-324,   0,   5e-324,    1e-300,
                                      1e-100, 0.1, 1,       1 + 1e-15, 1e9, 1234567.8, 1e100};
  for (const bool is_log : {false, true}) {
    for (const double least : values) {
      for (const double greatest : values) {
        if (least > greatest || !is_drawable(least, is_log)) continue;
        const Scale scale = make_scale(least, greatest, is_log, 6);
        SCOPED_TRACE(testing::Message() << least << " to " << greatest << ", log " << is_log);
        ASSERT_TRUE(std::isfinite(scale.low) && std::isfinite(scale.high));
        EXPECT_LT(scale.low, scale.high);
        EXPECT_GE(fraction(scale, least), 0);
        EXPECT_LE(fraction(scale, greatest), 1);
        EXPECT_GE(scale.ticks.size(), 2u);
        EXPECT_LE(scale.ticks.size(), 24u);
        for (std::size_t i = 0; i < scale.ticks.size(); ++i) {
          EXPECT_GE(fraction(scale, scale.ticks[i].value), 0);
          EXPECT_LE(fraction(scale, scale.ticks[i].value), 1);
          if (i > 0) {
            EXPECT_LT(scale.ticks[i - 1].value, scale.ticks[i].value);
          }
        }
      }
    }
  }
}

TEST(Scale, EvenStepsAreEvenOnItsAxis) {
  EXPECT_DOUBLE_EQ(fraction({false, 10, 20, {}}, 15), .5);
  EXPECT_DOUBLE_EQ(fraction({true, 1, 100, {}}, 10), .5);
}

TEST(Drawable, IsWhatAnAxisCanShow) {
  for (const double value : {kNan, kInfinity, -kInfinity, 1e101, -1e101}) {
    EXPECT_FALSE(is_drawable(value, false)) << value;
    EXPECT_FALSE(is_drawable(value, true)) << value;
  }
  EXPECT_TRUE(is_drawable(-1, false));
  EXPECT_FALSE(is_drawable(-1, true));
  EXPECT_TRUE(is_drawable(0, false));
  EXPECT_FALSE(is_drawable(0, true));
}

HeatMap map_of(std::vector<double> values) {
  HeatMap map;
  map.rows = {"row"};
  map.columns.assign(values.size(), "");
  map.values = {std::move(values)};
  return map;
}

TEST(ColorScale, GoesFromTheLeastToTheGreatestNumber) {
  const auto scale = color_scale(map_of({kNan, 3, 1, kInfinity, 2}));
  ASSERT_TRUE(scale);
  EXPECT_EQ(scale->low, 1);
  EXPECT_EQ(scale->high, 3);
  EXPECT_EQ(scale->step(1), 0);
  EXPECT_EQ(scale->step(2), 4);
  EXPECT_EQ(scale->step(3), 8);
}

TEST(ColorScale, TurnsRoundWhereMoreIsBetter) {
  HeatMap map = map_of({0, 1});
  map.more_is_better = true;
  EXPECT_EQ(color_scale(map)->step(1), 0);
  EXPECT_EQ(color_scale(map)->step(0), 8);
}

TEST(ColorScale, KeepsTheEndsThatAreGiven) {
  HeatMap map = map_of({.9, 2});
  map.low = 0;
  map.high = 1;
  EXPECT_EQ(color_scale(map)->low, 0);
  EXPECT_EQ(color_scale(map)->step(.9), 8);
  EXPECT_EQ(color_scale(map)->step(2), 8);
  EXPECT_EQ(color_scale(map)->step(-1), 0);
}

TEST(ColorScale, IsLogarithmicOverTwoOrdersOfMagnitude) {
  EXPECT_FALSE(color_scale(map_of({1, 99}))->is_log);
  const auto scale = color_scale(map_of({1, 100}));
  EXPECT_TRUE(scale->is_log);
  EXPECT_EQ(scale->step(10), 4);
  EXPECT_FALSE(color_scale(map_of({0, 100}))->is_log);
}

TEST(ColorScale, OfOneValueHasTheBetterEnd) { EXPECT_EQ(color_scale(map_of({5, 5}))->step(5), 0); }

TEST(ColorScale, NeedsANumber) {
  EXPECT_FALSE(color_scale(map_of({kNan, kInfinity})));
  EXPECT_FALSE(color_scale(HeatMap{}));
}

}  // namespace svg_scale_test
}  // namespace tqcache::report
