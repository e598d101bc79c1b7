// How far a vector moves by going through the codec: the numbers of docs/reference/codec.md §7.
//
// Two figures. The distortion of the codes is the paper's D_mse, |y - c[codes]|^2 of the unit
// vector. The error of the decoded vector, |x - x^|^2 / |x|^2, is larger at few bits: the scale
// that makes inner products unbiased lengthens x^ by 1 / (1 - D_mse).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace distortion_test {

using test::GaussianSource;

constexpr std::uint16_t kOneF16 = 0x3c00;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - double{b[i]};
    sum += difference * difference;
  }
  return sum;
}

// Sends vectors through a quantizer and averages what became of them.
class Trial {
 public:
  Trial(int head_dim, int bits) : Trial(PartSpec{.head_dim = head_dim, .bits = bits}) {}

  explicit Trial(const PartSpec& spec)
      : quantizer_(Quantizer::make(spec).value()),
        codes_(quantizer_.code_bytes()),
        decoded_(quantizer_.rotation().head_dim()),
        direction_(decoded_.size()),
        unit_(decoded_.size()) {}

  void add(std::span<const float> x) {
    const std::uint16_t scale = quantizer_.encode(x, codes_).value();
    quantizer_.decode(codes_, scale, decoded_);
    quantizer_.decode_rotated(codes_, kOneF16, direction_);
    const double squared_length = dot(x, x);
    quantizer_.rotation().rotate(x, unit_);
    for (float& value : unit_) value /= static_cast<float>(std::sqrt(squared_length));
    distortion_ += squared_distance(unit_, direction_);
    error_ += squared_distance(x, decoded_) / squared_length;
    bias_ += dot(x, decoded_) / squared_length - 1.0;
    ++count_;
  }

  double distortion() const { return distortion_ / count_; }
  double error() const { return error_ / count_; }
  double bias() const { return bias_ / count_; }
  std::span<const float> decoded() const { return decoded_; }

 private:
  Quantizer quantizer_;
  std::vector<std::byte> codes_;
  std::vector<float> decoded_, direction_, unit_;
  double distortion_ = 0.0, error_ = 0.0, bias_ = 0.0;
  int count_ = 0;
};

Trial isotropic_trial(const PartSpec& spec, int vectors) {
  Trial trial(spec);
  GaussianSource gaussian(static_cast<std::uint64_t>(spec.head_dim));
  std::vector<float> x(static_cast<std::size_t>(spec.head_dim));
  for (int i = 0; i < vectors; ++i) {
    gaussian.fill(x);
    trial.add(x);
  }
  return trial;
}

Trial isotropic_trial(int head_dim, int bits, int vectors) {
  return isotropic_trial(PartSpec{.head_dim = head_dim, .bits = bits}, vectors);
}

struct Turn {
  const char* name;
  TransformKind kind;
  int rounds;
};

constexpr Turn kTurns[] = {{"1 round", TransformKind::kHadamard, 1},
                           {"2 rounds", TransformKind::kHadamard, 2},
                           {"3 rounds", TransformKind::kHadamard, 3},
                           {"dense QR", TransformKind::kDenseQr, 1}};

struct Expected {
  int head_dim;
  double distortion[4];  // bits 1 to 4
};

// The exact D_mse of a Lloyd-Max codebook for the Beta marginal. (The paper prints .36 .117 .03
// .009 for every head_dim; the last two are rounded down.)
constexpr Expected kExpected[] = {{64, {0.358387, 0.114526, 0.033391, 0.009132}},
                                  {128, {0.360889, 0.116000, 0.033966, 0.009315}},
                                  {256, {0.362136, 0.116740, 0.034256, 0.009408}}};

TEST(Distortion, OfIsotropicVectorsIsTheExactOne) {
  for (const Expected& expected : kExpected) {
    for (int bits = 1; bits <= 4; ++bits) {
      const Trial trial = isotropic_trial(expected.head_dim, bits, 15000);
      const double exact = expected.distortion[bits - 1];
      std::printf("[ measured ] head_dim %d, %d bits: D_mse %.6f (exact %.6f), decoded %.6f\n",
                  expected.head_dim, bits, trial.distortion(), exact, trial.error());
      EXPECT_NEAR(trial.distortion() / exact, 1.0, 0.01);
    }
  }
}

TEST(Distortion, IsTheSameForEveryRotation) {
  const Expected& expected = kExpected[1];
  for (const Turn& turn : kTurns) {
    for (int bits = 1; bits <= 4; ++bits) {
      const PartSpec spec{.head_dim = expected.head_dim,
                          .bits = bits,
                          .rotation = turn.kind,
                          .rounds = turn.rounds};
      const double distortion = isotropic_trial(spec, 6000).distortion();
      const double exact = expected.distortion[bits - 1];
      std::printf("[ measured ] head_dim 128, %s, %d bits: D_mse %.6f (exact %.6f)\n", turn.name,
                  bits, distortion, exact);
      EXPECT_NEAR(distortion / exact, 1.0, 0.01) << turn.name;
    }
  }
}

// With D for D_mse, a decoded vector x^ of `raw` scale has |x - x^|^2 = D |x|^2 and, the centroids
// being means of their cells, <x, x^> = |x^|^2 = (1 - D) |x|^2 on average. From that follows what
// the other rules give, if all vectors were as far from their codes as the average.
TEST(Distortion, OfTheScaleRulesFollowsFromThatOfTheCodes) {
  for (int bits = 1; bits <= 4; ++bits) {
    PartSpec spec{.head_dim = 128, .bits = bits};
    const double exact = expected_distortion(128, lloyd_max_centroids(128, bits));
    const auto trial = [&](ScaleRule rule) {
      spec.scale = rule;
      return isotropic_trial(spec, 6000);
    };
    const Trial raw = trial(ScaleRule::kRaw);
    const Trial norm = trial(ScaleRule::kNorm);
    const Trial unbiased = trial(ScaleRule::kUnbiased);
    std::printf(
        "[ measured ] head_dim 128, %d bits: |x - x^|^2 and <x, x^> - 1: raw %.5f %+.5f, "
        "norm %.5f %+.5f, unbiased %.5f %+.5f\n",
        bits, raw.error(), raw.bias(), norm.error(), norm.bias(), unbiased.error(),
        unbiased.bias());
    EXPECT_NEAR(raw.error() / exact, 1.0, 0.01);
    EXPECT_NEAR(raw.bias(), -exact, 4.0 * std::sqrt(exact / 128 / 6000));  // standard errors
    const double cosine = std::sqrt(1.0 - exact);
    EXPECT_NEAR(norm.bias() / (cosine - 1.0), 1.0, 0.02);
    EXPECT_NEAR(norm.error() / (2.0 - 2.0 * cosine), 1.0, 0.02);
    EXPECT_LT(std::abs(unbiased.bias()), 2e-5);
  }
}

TEST(Distortion, StaysBetweenShannonAndThePapersBoundForEveryWidth) {
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    const double distortion = isotropic_trial(128, bits, 1000).distortion();
    EXPECT_GT(distortion, std::pow(4.0, -bits));
    EXPECT_LT(distortion, std::sqrt(3.0) * std::numbers::pi / 2.0 * std::pow(4.0, -bits));
  }
}

// Every odd factor, and none: the Hartley factor of the rotation costs nothing.
TEST(Distortion, OfAnyHeadDimIsTheExactOne) {
  for (const int head_dim : {8, 32, 33, 80, 96, 112, 160, 192, 512, 576, 1024}) {
    for (const int bits : {2, 4}) {
      const double exact = expected_distortion(head_dim, lloyd_max_centroids(head_dim, bits));
      const double measured = isotropic_trial(head_dim, bits, 300000 / head_dim).distortion();
      EXPECT_NEAR(measured / exact, 1.0, 0.015) << head_dim << ", " << bits << " bits";
    }
  }
}

// Were all vectors as far from their codes as the average, it would be D / (1 - D) exactly; that
// the scale follows each vector makes it up to 3% less.
TEST(Distortion, OfTheDecodedVectorFollowsFromThatOfTheCodes) {
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    const double exact = expected_distortion(128, lloyd_max_centroids(128, bits));
    const double error = isotropic_trial(128, bits, 3000).error();
    EXPECT_NEAR(error / (exact / (1.0 - exact)), 0.985, 0.02) << bits << " bits";
  }
}

TEST(Distortion, DecodedVectorHasTheRightInnerProductWithItsOriginal) {
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    EXPECT_LT(std::abs(isotropic_trial(128, bits, 2000).bias()), 2e-5) << bits << " bits";
  }
}

// Queries that have cosine 0.8 with x, the rest of them random: <q, x^> is <q, x> on average.
// The standard error is 0.6 sqrt(error / 128 / vectors) / 0.8: 2.9e-4 at 1 bit, 2.4e-4 at 2 bits.
TEST(Distortion, InnerProductsAreUnbiased) {
  constexpr std::size_t kHeadDim = 128;
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    Trial trial(kHeadDim, bits);
    GaussianSource gaussian(42);
    double difference = 0.0, total = 0.0;
    const int vectors = bits == 1 ? 30000 : 10000;
    for (int i = 0; i < vectors; ++i) {
      const std::vector<float> x = gaussian.vector(kHeadDim);
      std::vector<float> query = gaussian.vector(kHeadDim);
      for (std::size_t k = 0; k < kHeadDim; ++k) query[k] = 0.8f * x[k] + 0.6f * query[k];
      trial.add(x);
      difference += dot(query, trial.decoded()) - dot(query, x);
      total += dot(query, x);
    }
    std::printf("[ measured ] head_dim 128, %d bits: bias of <q, x> %+.2e\n", bits,
                difference / total);
    EXPECT_LT(std::abs(difference / total), 1e-3) << bits << " bits";
  }
}

// One channel a hundred times as loud as the others, each channel in turn.
Trial outlier_channel_trial(const PartSpec& spec) {
  Trial trial(spec);
  GaussianSource gaussian(7);
  for (int i = 0; i < 1024; ++i) {
    std::vector<float> x = gaussian.vector(static_cast<std::size_t>(spec.head_dim));
    x[static_cast<std::size_t>(i % spec.head_dim)] *= 100.0f;
    trial.add(x);
  }
  return trial;
}

// The hard case for a single Hadamard round: it makes all components nearly equal in size, and so
// all errors nearly equal.
TEST(Distortion, OfASingleOutlierChannelStaysSane) {
  for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
    for (const int bits : {2, 3, 4}) {
      const Trial trial = outlier_channel_trial({.head_dim = head_dim, .bits = bits});
      const double exact = expected_distortion(head_dim, lloyd_max_centroids(head_dim, bits));
      std::printf(
          "[ measured ] outlier channel, head_dim %d, %d bits: D_mse %.4f, decoded %.4f, "
          "isotropic D_mse %.4f\n",
          head_dim, bits, trial.distortion(), trial.error(), exact);
      EXPECT_LT(trial.error(), 1.25 * exact);
    }
  }
}

// A second round makes nearly equal components nearly normal ones.
TEST(Distortion, OfASingleOutlierChannelIsTheUsualOneAfterTwoRounds) {
  for (const Turn& turn : kTurns) {
    for (const int bits : {2, 3, 4}) {
      const Trial trial = outlier_channel_trial(
          {.head_dim = 128, .bits = bits, .rotation = turn.kind, .rounds = turn.rounds});
      const double exact = expected_distortion(128, lloyd_max_centroids(128, bits));
      std::printf(
          "[ measured ] outlier channel, head_dim 128, %s, %d bits: D_mse %.4f, decoded %.4f\n",
          turn.name, bits, trial.distortion(), trial.error());
      if (turn.rounds > 1 || turn.kind == TransformKind::kDenseQr) {
        EXPECT_NEAR(trial.distortion() / exact, 1.0, 0.1) << turn.name;
      }
    }
  }
}

}  // namespace distortion_test
}  // namespace tqcache::codec
