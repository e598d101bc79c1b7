#include "tqcache/base/integers.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tqcache {
namespace shape_test {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t k2to32 = std::uint64_t{1} << 32;

using Shape = std::vector<std::uint64_t>;

TEST(CheckedMul, GivesNothingWhenTheProductDoesNotFit) {
  EXPECT_EQ(checked_mul(6, 7), 42u);
  EXPECT_EQ(checked_mul(kMax, 1), kMax);
  EXPECT_EQ(checked_mul(kMax, 0), 0u);
  EXPECT_EQ(checked_mul(k2to32, k2to32 - 1), kMax - k2to32 + 1);
  EXPECT_EQ(checked_mul(k2to32, k2to32), std::nullopt);
  EXPECT_EQ(checked_mul(kMax, 2), std::nullopt);
}

TEST(CheckedAdd, GivesNothingWhenTheSumDoesNotFit) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add(kMax, kMax), std::nullopt);
}

TEST(ElementCount, IsTheProductOfAllDimensions) {
  EXPECT_EQ(element_count(Shape{}), 1u);
  EXPECT_EQ(element_count(Shape{7}), 7u);
  EXPECT_EQ(element_count(Shape{8, 256, 128}), 262144u);
  EXPECT_EQ(element_count(Shape{4, 0, 3}), 0u);
}

TEST(ElementCount, RefusesAShapeThatWrapsAround) {
  EXPECT_EQ(element_count(Shape{k2to32, k2to32}), std::nullopt);
  EXPECT_EQ(element_count(Shape{3, kMax / 3 + 1}), std::nullopt);
  EXPECT_EQ(element_count(Shape{kMax, 1, 1}), kMax);
}

TEST(ElementCount, DoesNotDependOnWhereAZeroStands) {
  for (const Shape& shape :
       {Shape{0, k2to32, k2to32}, Shape{k2to32, 0, k2to32}, Shape{k2to32, k2to32, 0}}) {
    EXPECT_EQ(element_count(shape), std::nullopt);
  }
  for (const Shape& shape : {Shape{0, k2to32, 5}, Shape{k2to32, 0, 5}, Shape{k2to32, 5, 0}}) {
    EXPECT_EQ(element_count(shape), 0u);
  }
}

TEST(AlignUp, GivesTheNextMultiple) {
  EXPECT_EQ(align_up(0, 64), 0u);
  EXPECT_EQ(align_up(1, 64), 64u);
  EXPECT_EQ(align_up(64, 64), 64u);
  EXPECT_EQ(align_up(65, 64), 128u);
  EXPECT_EQ(align_up(5, 1), 5u);
  EXPECT_EQ(align_up(kMax - 63, 64), kMax - 63);
  EXPECT_EQ(align_up(kMax - 62, 64), std::nullopt);
  EXPECT_EQ(align_up(kMax, 2), std::nullopt);
}

}  // namespace shape_test
}  // namespace tqcache
