// The rotation is orthogonal for every head_dim, and is the one that docs/codec.md §2 defines.

#include "tqcache/codec/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::codec {
namespace {

using test::GaussianSource;
using test::SplitMix64;

constexpr int kSomeHeadDims[] = {32, 33, 48, 63, 64, 80, 96, 112, 128, 160, 192, 255, 256, 512};

std::vector<float> unit_vector(int head_dim, int axis) {
  std::vector<float> x(static_cast<std::size_t>(head_dim), 0.0f);
  x[static_cast<std::size_t>(axis)] = 1.0f;
  return x;
}

// Column `axis` of R.
std::vector<float> column(const Rotation& rotation, int axis) {
  std::vector<float> x = unit_vector(static_cast<int>(rotation.head_dim()), axis);
  rotation.rotate(x, x);
  return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(Rotation, IsOrthogonal) {
  for (const int head_dim : kSomeHeadDims) {
    const Rotation rotation(head_dim, kDefaultSignSeed);
    std::vector<std::vector<float>> columns;
    for (int axis = 0; axis < head_dim; ++axis) columns.push_back(column(rotation, axis));
    for (std::size_t i = 0; i < columns.size(); i += 29) {
      for (std::size_t j = 0; j <= i; ++j) {
        EXPECT_NEAR(dot(columns[i], columns[j]), i == j ? 1.0 : 0.0, 2e-6)
            << "head_dim " << head_dim << " columns " << i << ", " << j;
      }
    }
  }
}

TEST(Rotation, UnrotateUndoesRotateForEveryHeadDim) {
  GaussianSource gaussian(1);
  for (int head_dim = kMinHeadDim; head_dim <= kMaxHeadDim; ++head_dim) {
    const Rotation rotation(head_dim, 77);
    const std::vector<float> x = gaussian.vector(static_cast<std::size_t>(head_dim));
    std::vector<float> y(x.size()), back(x.size());
    rotation.rotate(x, y);
    rotation.unrotate(y, back);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 1e-5) << head_dim;
  }
}

TEST(Rotation, UnrotateIsTheTranspose) {
  GaussianSource gaussian(2);
  for (const int head_dim : kSomeHeadDims) {
    const Rotation rotation(head_dim, 78);
    const std::vector<float> x = gaussian.vector(static_cast<std::size_t>(head_dim));
    const std::vector<float> y = gaussian.vector(static_cast<std::size_t>(head_dim));
    std::vector<float> rotated(x.size()), unrotated(x.size());
    rotation.rotate(x, rotated);
    rotation.unrotate(y, unrotated);
    EXPECT_NEAR(dot(rotated, y), dot(x, unrotated), 1e-3) << head_dim;
  }
}

TEST(Rotation, WorksInPlaceWithTheSameBits) {
  GaussianSource gaussian(3);
  for (const int head_dim : kSomeHeadDims) {
    const Rotation rotation(head_dim, 79);
    const std::vector<float> x = gaussian.vector(static_cast<std::size_t>(head_dim));
    std::vector<float> apart(x.size()), in_place = x;
    rotation.rotate(x, apart);
    rotation.rotate(in_place, in_place);
    EXPECT_EQ(in_place, apart) << head_dim;
    rotation.unrotate(x, apart);
    in_place = x;
    rotation.unrotate(in_place, in_place);
    EXPECT_EQ(in_place, apart) << head_dim;
  }
}

TEST(Rotation, SignsAreTheBitsOfSplitmix64LowestFirst) {
  const Rotation rotation(100, 12345);
  SplitMix64 random(12345);
  const std::uint64_t words[2] = {random.next(), random.next()};
  for (std::size_t i = 0; i < 100; ++i) {
    const bool negative = (words[i / 64] >> (i % 64)) & 1u;
    EXPECT_EQ(rotation.signs()[i], negative ? -1.0f : 1.0f) << i;
  }
}

// splitmix64 of seed 0 begins 0xe220a8397b1dcdaf in every published implementation.
TEST(Rotation, SplitmixOfSeedZeroIsThePublishedOne) {
  const Rotation rotation(64, 0);
  for (std::size_t i = 0; i < 64; ++i) {
    const bool negative = (0xe220a8397b1dcdafu >> i) & 1u;
    EXPECT_EQ(rotation.signs()[i], negative ? -1.0f : 1.0f) << i;
  }
}

TEST(Rotation, OfAPowerOfTwoIsTheSignedHadamardMatrix) {
  const Rotation rotation(64, 5);
  for (int j = 0; j < 64; ++j) {
    const std::vector<float> y = column(rotation, j);
    for (int i = 0; i < 64; ++i) {
      const bool odd = __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 1;
      const float hadamard = odd ? -0.125f : 0.125f;  // 1 / sqrt(64)
      EXPECT_EQ(y[static_cast<std::size_t>(i)],
                hadamard * rotation.signs()[static_cast<std::size_t>(j)]);
    }
  }
}

TEST(Rotation, OfThreePartsIsHartleyAcrossHadamardInside) {
  constexpr int kPartSize = 32;
  const Rotation rotation(96, 6);
  for (int j = 0; j < 96; ++j) {
    const std::vector<float> y = column(rotation, j);
    for (int i = 0; i < 96; ++i) {
      const int both = (i % kPartSize) & (j % kPartSize);
      const double hadamard = __builtin_popcount(static_cast<unsigned>(both)) % 2 == 1 ? -1.0 : 1.0;
      const double turn = 2.0 * std::numbers::pi * (i / kPartSize) * (j / kPartSize) / 3.0;
      const double hartley = std::cos(turn) + std::sin(turn);
      const double sign = double{rotation.signs()[static_cast<std::size_t>(j)]};
      EXPECT_NEAR(y[static_cast<std::size_t>(i)], sign * hartley * hadamard / std::sqrt(96.0), 1e-7)
          << i << ", " << j;
    }
  }
}

// The Hartley table is made with the sine of libm. Were a value within the error of a libm's sine
// of the middle between two f32, two systems could round it apart, and encode apart.
TEST(Rotation, HartleyTableRoundsTheSameWithEverySine) {
  double nearest = 1.0;
  for (int parts = 3; parts <= kMaxHeadDim; parts += 2) {
    for (int k = 1; k < parts; ++k) {
      const long double turn = std::numbers::pi_v<long double> * (8 * k + parts) / (4 * parts);
      const long double cas = std::numbers::sqrt2_v<long double> * std::sin(turn);
      const float rounded = static_cast<float>(cas);
      const float towards = static_cast<long double>(rounded) < cas ? 4.0f : -4.0f;
      const long double middle =
          (static_cast<long double>(rounded) + std::nextafter(rounded, towards)) / 2.0L;
      nearest = std::min(nearest, static_cast<double>(std::abs((cas - middle) / cas)));
    }
  }
  EXPECT_GT(nearest, 1e-15);  // the sine, the angle and the product are good to 5e-16
}

TEST(Rotation, SpreadsASingleLoudChannel) {
  for (const int head_dim : kSomeHeadDims) {
    const Rotation rotation(head_dim, kDefaultSignSeed);
    for (int axis = 0; axis < head_dim; ++axis) {
      for (const float value : column(rotation, axis)) {
        ASSERT_LE(std::abs(value), std::sqrt(2.0 / head_dim) + 1e-6) << head_dim;
      }
    }
  }
}

}  // namespace
}  // namespace tqcache::codec
