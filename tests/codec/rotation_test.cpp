// The rotation is orthogonal for every head_dim, and is the one that docs/reference/codec.md §2
// defines.

#include "tqcache/codec/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec_spec.h"

namespace tqcache::codec {
namespace rotation_test {

using test::GaussianSource;
using test::SplitMix64;

constexpr int kSomeHeadDims[] = {8,   9,   32,  33,  48,  63,  64,  80,  96,
                                 112, 128, 160, 192, 255, 256, 512, 576, 1024};

Rotation hadamard(int head_dim, std::uint64_t seed = kDefaultSeed, int rounds = 1) {
  return Rotation(PartSpec{.head_dim = head_dim, .bits = 1, .seed = seed, .rounds = rounds});
}

Rotation dense(TransformKind kind, int head_dim, std::uint64_t seed = kDefaultSeed) {
  return Rotation(PartSpec{.head_dim = head_dim, .bits = 1, .seed = seed, .rotation = kind});
}

// Every kind and number of rounds.
std::vector<Rotation> all_rotations(int head_dim, std::uint64_t seed) {
  std::vector<Rotation> rotations;
  for (int rounds = 1; rounds <= kMaxRounds; ++rounds) {
    rotations.push_back(hadamard(head_dim, seed, rounds));
  }
  for (const TransformKind kind :
       {TransformKind::kDenseQr, TransformKind::kGaussian, TransformKind::kNone}) {
    rotations.push_back(dense(kind, head_dim, seed));
  }
  return rotations;
}

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

void expect_orthogonal(const Rotation& rotation) {
  std::vector<std::vector<float>> columns;
  for (std::size_t axis = 0; axis < rotation.head_dim(); ++axis) {
    columns.push_back(column(rotation, static_cast<int>(axis)));
  }
  for (std::size_t i = 0; i < columns.size(); i += 29) {
    for (std::size_t j = 0; j <= i; ++j) {
      EXPECT_NEAR(dot(columns[i], columns[j]), i == j ? 1.0 : 0.0, 3e-6)
          << "head_dim " << rotation.head_dim() << " columns " << i << ", " << j;
    }
  }
}

TEST(Rotation, IsOrthogonalInEveryNumberOfRounds) {
  for (const int head_dim : kSomeHeadDims) {
    for (int rounds = 1; rounds <= kMaxRounds; ++rounds) {
      expect_orthogonal(hadamard(head_dim, kDefaultSeed, rounds));
    }
  }
}

TEST(Rotation, OfADenseMatrixIsOrthogonal) {
  for (const int head_dim : {8, 33, 64, 80, 128, 192, 512}) {
    expect_orthogonal(dense(TransformKind::kDenseQr, head_dim));
  }
}

TEST(Rotation, UnrotateUndoesRotateForAnyHeadDim) {
  GaussianSource gaussian(1);
  // Beyond 512 every odd factor costs its square; steps of 13 meet every remainder all the same.
  for (int head_dim = kMinPartDim; head_dim <= kMaxHeadDim; head_dim += head_dim < 512 ? 1 : 13) {
    const Rotation rotation = hadamard(head_dim, 77);
    const std::vector<float> x = gaussian.vector(static_cast<std::size_t>(head_dim));
    std::vector<float> y(x.size()), back(x.size());
    rotation.rotate(x, y);
    rotation.unrotate(y, back);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 2e-5) << head_dim;
  }
}

TEST(Rotation, UnrotateIsTheTranspose) {
  GaussianSource gaussian(2);
  for (const int head_dim : {8, 33, 80, 128, 192}) {
    for (const Rotation& rotation : all_rotations(head_dim, 78)) {
      const std::vector<float> x = gaussian.vector(static_cast<std::size_t>(head_dim));
      const std::vector<float> y = gaussian.vector(static_cast<std::size_t>(head_dim));
      std::vector<float> rotated(x.size()), unrotated(x.size());
      rotation.rotate(x, rotated);
      rotation.unrotate(y, unrotated);
      const double size = std::sqrt(dot(rotated, rotated) * dot(y, y));
      EXPECT_NEAR(dot(rotated, y), dot(x, unrotated), 1e-6 * size) << head_dim;
    }
  }
}

TEST(Rotation, WorksInPlaceWithTheSameBits) {
  GaussianSource gaussian(3);
  for (const int head_dim : {8, 33, 80, 128, 192}) {
    for (const Rotation& rotation : all_rotations(head_dim, 79)) {
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
}

// A round takes whole words: 100 channels take two, and leave 28 bits of the second.
TEST(Rotation, RoundsTakeTheWordsThatFollow) {
  constexpr std::size_t kHeadDim = 100;
  const Rotation rotation = hadamard(kHeadDim, 12345, 3);
  ASSERT_EQ(rotation.signs().size(), 3 * kHeadDim);
  SplitMix64 random(12345);
  for (std::size_t round = 0; round < 3; ++round) {
    const std::uint64_t words[2] = {random.next(), random.next()};
    for (std::size_t i = 0; i < kHeadDim; ++i) {
      const bool negative = (words[i / 64] >> (i % 64)) & 1u;
      EXPECT_EQ(rotation.signs()[round * kHeadDim + i], negative ? -1.0f : 1.0f) << i;
    }
  }
}

// With the signs of one round at a time, rounds after one another are the rounds at once.
TEST(Rotation, RoundsFollowOneAnother) {
  for (const int head_dim : {64, 96}) {
    const std::size_t n = static_cast<std::size_t>(head_dim);
    const Rotation three = hadamard(head_dim, 21, 3);
    const Rotation one = hadamard(head_dim, 21, 1);
    const std::vector<float> x = GaussianSource(4).vector(n);
    std::vector<float> expected = x, y(n);
    for (std::size_t round = 0; round < 3; ++round) {
      // one's own signs twice are none: what is left is H times this round's signs
      for (std::size_t i = 0; i < n; ++i) {
        expected[i] *= one.signs()[i] * three.signs()[round * n + i];
      }
      one.rotate(expected, expected);
    }
    three.rotate(x, y);
    EXPECT_EQ(y, expected);
  }
}

TEST(Rotation, OfNoKindIsTheIdentity) {
  const Rotation none = dense(TransformKind::kNone, 40);
  const std::vector<float> x = GaussianSource(5).vector(40);
  std::vector<float> y(40), back(40);
  none.rotate(x, y);
  none.unrotate(y, back);
  EXPECT_EQ(y, x);
  EXPECT_EQ(back, x);
  EXPECT_TRUE(none.matrix().empty());
  EXPECT_TRUE(none.signs().empty());
}

TEST(Rotation, OfADenseMatrixIsItsProductWithTheVector) {
  for (const TransformKind kind : {TransformKind::kDenseQr, TransformKind::kGaussian}) {
    const Rotation rotation = dense(kind, 37, 9);
    const std::span<const float> matrix = rotation.matrix();
    ASSERT_EQ(matrix.size(), 37u * 37u);
    const std::vector<float> x = GaussianSource(6).vector(37);
    std::vector<float> y(37), back(37);
    rotation.rotate(x, y);
    rotation.unrotate(x, back);
    for (std::size_t i = 0; i < 37; ++i) {
      double forward = 0.0, backward = 0.0;
      for (std::size_t j = 0; j < 37; ++j) {
        forward += double{matrix[i * 37 + j]} * double{x[j]};
        backward += double{matrix[j * 37 + i]} * double{x[j]};
      }
      EXPECT_NEAR(y[i], forward, 1e-5);
      EXPECT_NEAR(back[i], backward, 1e-5);
    }
  }
}

TEST(Rotation, SignsAreTheBitsOfSplitmix64LowestFirst) {
  const Rotation rotation = hadamard(100, 12345);
  SplitMix64 random(12345);
  const std::uint64_t words[2] = {random.next(), random.next()};
  for (std::size_t i = 0; i < 100; ++i) {
    const bool negative = (words[i / 64] >> (i % 64)) & 1u;
    EXPECT_EQ(rotation.signs()[i], negative ? -1.0f : 1.0f) << i;
  }
}

// splitmix64 of seed 0 begins 0xe220a8397b1dcdaf in every published implementation.
TEST(Rotation, SplitmixOfSeedZeroIsThePublishedOne) {
  const Rotation rotation = hadamard(64, 0);
  for (std::size_t i = 0; i < 64; ++i) {
    const bool negative = (0xe220a8397b1dcdafu >> i) & 1u;
    EXPECT_EQ(rotation.signs()[i], negative ? -1.0f : 1.0f) << i;
  }
}

TEST(Rotation, OfAPowerOfTwoIsTheSignedHadamardMatrix) {
  const Rotation rotation = hadamard(64, 5);
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
  const Rotation rotation = hadamard(96, 6);
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

TEST(Rotation, SpreadsASingleOutlierChannel) {
  for (const int head_dim : kSomeHeadDims) {
    const Rotation rotation = hadamard(head_dim, kDefaultSeed);
    for (int axis = 0; axis < head_dim; ++axis) {
      for (const float value : column(rotation, axis)) {
        ASSERT_LE(std::abs(value), std::sqrt(2.0 / head_dim) + 1e-6) << head_dim;
      }
    }
  }
}

}  // namespace rotation_test
}  // namespace tqcache::codec
