#include "tqcache/base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tqcache {
namespace half_test {

// A format of 1 sign bit, `exponent_bits` and `mantissa_bits`, defined anew in double precision
// (which holds every value met here exactly), so that the bit tricks have something to equal.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int smallest_exponent() const { return 1 - bias(); }
  std::uint32_t exponent_mask() const { return (1u << exponent_bits) - 1; }
  std::uint32_t infinity() const { return exponent_mask() << mantissa_bits; }

  bool is_nan(std::uint32_t bits) const { return (bits & 0x7fffu) > infinity(); }

  // Requires: not a NaN.
  double value(std::uint32_t bits) const {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    if ((bits & 0x7fffu) == infinity()) return sign * HUGE_VAL;
    const int exponent = static_cast<int>((bits >> mantissa_bits) & exponent_mask());
    const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
    const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
    const int power = std::max(exponent - bias(), smallest_exponent()) - mantissa_bits;
    return sign * std::ldexp(implied + mantissa, power);
  }

  // The nearest value of this format, ties to the even mantissa. Requires: not a NaN.
  double nearest(double x) const {
    const double magnitude = std::fabs(x);
    if (magnitude == 0 || std::isinf(magnitude)) return x;
    const int power = std::max(std::ilogb(magnitude), smallest_exponent()) - mantissa_bits;
    // nearbyint rounds ties to even in the default rounding mode.
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -power)), power);
    const double limit = std::ldexp(1.0, bias() + 1);
    return std::copysign(rounded >= limit ? HUGE_VAL : rounded, x);
  }
};

constexpr Format kF16Format{5, 10};
constexpr Format kBF16Format{8, 7};

bool same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

// A million random bit patterns, and every tie between two values of the format with its two
// neighbors.
template <class Check>
void for_many_floats(const Format& format, Check check) {
  std::mt19937 random(20260101);
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) check(x);
  }
  for (std::uint32_t bits = 0; bits < format.infinity(); ++bits) {
    const double low = format.value(bits);
    const double step =
        std::ldexp(1.0, std::max(low == 0 ? format.smallest_exponent() : std::ilogb(low),
                                 format.smallest_exponent()) -
                            format.mantissa_bits);
    const float tie = static_cast<float>(low + step / 2);
    for (const float x : {std::nextafterf(tie, 0), tie, std::nextafterf(tie, HUGE_VALF)}) {
      check(x);
      check(-x);
    }
  }
}

TEST(F16, WidensEveryPatternExactly) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float wide = f16_to_f32(static_cast<std::uint16_t>(bits));
    if (kF16Format.is_nan(bits)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
    } else {
      EXPECT_TRUE(same(wide, kF16Format.value(bits))) << bits;
    }
  }
}

TEST(F16, RoundTripsEveryPatternButMakesNaNQuiet) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const std::uint32_t expected = kF16Format.is_nan(bits) ? bits | 0x0200u : bits;
    EXPECT_EQ(f32_to_f16(f16_to_f32(static_cast<std::uint16_t>(bits))), expected);
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  for_many_floats(kF16Format, [](float x) {
    const double rounded = kF16Format.value(f32_to_f16(x));
    ASSERT_TRUE(same(rounded, kF16Format.nearest(x))) << std::bit_cast<std::uint32_t>(x);
  });
}

TEST(F16, RoundsAtTheEdges) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);                      // the largest
  EXPECT_EQ(f32_to_f16(std::nextafterf(65520.0f, 0)), 0x7bff);  // the last that rounds to it
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);                      // the first infinity
  EXPECT_EQ(f32_to_f16(-HUGE_VALF), 0xfc00);
  EXPECT_EQ(f32_to_f16(0x1p-14f), 0x0400);  // the smallest normal
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);  // the smallest
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(f32_to_f16(std::nextafterf(0x1p-25f, 1)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(0x1p-149f), 0x0000);  // subnormal in f32 already
}

TEST(F16, KeepsANaNANaN) {
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0x7f800001u)), 0x7e00);  // payload below f16's bits
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0xffc02000u)), 0xfe01);
}

TEST(BF16, WidensEveryPatternExactly) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float wide = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (kBF16Format.is_nan(bits)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
    } else {
      EXPECT_TRUE(same(wide, kBF16Format.value(bits))) << bits;
    }
  }
}

TEST(BF16, RoundTripsEveryPatternButMakesNaNQuiet) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const std::uint32_t expected = kBF16Format.is_nan(bits) ? bits | 0x0040u : bits;
    EXPECT_EQ(f32_to_bf16(bf16_to_f32(static_cast<std::uint16_t>(bits))), expected);
  }
}

TEST(BF16, RoundsToNearestTiesToEven) {
  for_many_floats(kBF16Format, [](float x) {
    const double rounded = kBF16Format.value(f32_to_bf16(x));
    ASSERT_TRUE(same(rounded, kBF16Format.nearest(x))) << std::bit_cast<std::uint32_t>(x);
  });
}

TEST(BF16, RoundsAtTheEdges) {
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);  // the last finite one
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f7f8000u)), 0x7f80);  // the first infinity
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // ties, to even: down
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // and up
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
}

TEST(BF16, KeepsANaNANaN) {
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7fffffffu)), 0x7fff);
}

}  // namespace half_test
}  // namespace tqcache
