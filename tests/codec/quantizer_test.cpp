// One head vector to codes and scale and back (docs/reference/codec.md §4).

#include "tqcache/codec/quantizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"

namespace tqcache::codec {
namespace quantizer_test {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Quantizer make_quantizer(int head_dim, int bits) {
  return Quantizer::make(PartSpec{.head_dim = head_dim, .bits = bits}).value();
}

struct Encoded {
  std::vector<std::byte> codes;
  std::uint16_t scale;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const Quantizer& quantizer, std::span<const float> x) {
  Encoded encoded{std::vector<std::byte>(quantizer.code_bytes(), std::byte{0xee}), 0};
  encoded.scale = quantizer.encode(x, encoded.codes).value();
  return encoded;
}

std::vector<float> decode(const Quantizer& quantizer, const Encoded& encoded) {
  std::vector<float> x(quantizer.rotation().head_dim());
  quantizer.decode(encoded.codes, encoded.scale, x);
  return x;
}

Error encode_error(const Quantizer& quantizer, std::span<const float> x) {
  std::vector<std::byte> codes(quantizer.code_bytes());
  return quantizer.encode(x, codes).error();
}

ErrorCode make_error(int head_dim, int bits) {
  return Quantizer::make(PartSpec{.head_dim = head_dim, .bits = bits}).error().code;
}

TEST(Quantizer, RefusesSpecsOutOfRange) {
  EXPECT_EQ(make_error(7, 4), ErrorCode::kUnsupported);
  EXPECT_EQ(make_error(1025, 4), ErrorCode::kUnsupported);
  EXPECT_EQ(make_error(-128, 4), ErrorCode::kUnsupported);
  EXPECT_EQ(make_error(128, 0), ErrorCode::kUnsupported);
  EXPECT_EQ(make_error(128, 9), ErrorCode::kUnsupported);
  EXPECT_TRUE(Quantizer::make(PartSpec{.head_dim = 8, .bits = 1}).ok());
  EXPECT_TRUE(Quantizer::make(PartSpec{.head_dim = 1024, .bits = 8}).ok());
}

TEST(Quantizer, RefusesDamagedCodebooks) {
  const PartSpec spec{.head_dim = 64, .bits = 2};
  const auto code_of = [&spec](std::vector<float> centroids) {
    return Quantizer::make(spec, centroids).error().code;
  };
  EXPECT_EQ(code_of({}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, 0.1f, 0.2f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, -0.1f, 0.1f, 0.2f, 0.3f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, 0.1f, 0.1f, 0.2f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, 0.1f, 0.0f, 0.2f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, -0.1f, 0.1f, 1.5f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-kInfinity, -0.1f, 0.1f, 0.2f}), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of({-0.2f, std::nanf(""), 0.1f, 0.2f}), ErrorCode::kCorrupt);
  EXPECT_EQ(Quantizer::make(PartSpec{.head_dim = 7, .bits = 2}, {}).error().code,
            ErrorCode::kUnsupported);
}

TEST(Quantizer, UsesTheCentroidsOfAFileExactly) {
  const std::vector<float> centroids = {-0.25f, -0.0625f, 0.125f, 0.5f};
  const Quantizer quantizer =
      Quantizer::make(PartSpec{.head_dim = 64, .bits = 2}, centroids).value();
  EXPECT_TRUE(std::equal(centroids.begin(), centroids.end(), quantizer.centroids().begin()));

  std::vector<std::byte> codes(quantizer.code_bytes(), std::byte{0b11'10'01'00});
  std::vector<float> x(64);
  quantizer.decode_rotated(codes, f32_to_f16(2.0f), x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], 2.0f * centroids[i % 4]);
}

TEST(Quantizer, MadeFromItsOwnCentroidsIsTheSame) {
  const Quantizer made = make_quantizer(128, 4);
  const Quantizer given = Quantizer::make(made.spec(), made.centroids()).value();
  const std::vector<float> x = GaussianSource(1).vector(128);
  EXPECT_EQ(encode(made, x), encode(given, x));
}

// The worked example of docs/reference/codec.md §6: x = 3 e_0 + e_1 makes y alternate between -2 /
// sqrt(320) and -4 / sqrt(320), which lie either side of a boundary.
TEST(Quantizer, EncodesTheWorkedExample) {
  const Quantizer quantizer = make_quantizer(32, 2);
  std::vector<float> x(32, 0.0f);
  x[0] = 3.0f;
  x[1] = 1.0f;
  const Encoded encoded = encode(quantizer, x);
  EXPECT_EQ(encoded.codes, std::vector<std::byte>(8, std::byte{0x11}));
  EXPECT_EQ(encoded.scale, 0x41d4);

  const std::vector<float> decoded = decode(quantizer, encoded);
  EXPECT_NEAR(decoded[0], 2.828079f, 1e-6);
  EXPECT_NEAR(decoded[1], 1.512590f, 1e-6);
  for (std::size_t i = 2; i < decoded.size(); ++i) EXPECT_EQ(decoded[i], 0.0f);
}

TEST(Quantizer, CodeIsTheNumberOfBoundariesBelow) {
  for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
    const Quantizer quantizer = make_quantizer(96, bits);
    const std::vector<float> boundaries = decision_boundaries(quantizer.centroids());
    GaussianSource gaussian(static_cast<std::uint64_t>(bits));
    for (int trial = 0; trial < 20; ++trial) {
      const std::vector<float> x = gaussian.vector(96);
      std::vector<std::uint8_t> codes(96);
      unpack_codes(encode(quantizer, x).codes, bits, codes);
      std::vector<float> y(96);
      quantizer.rotation().rotate(x, y);
      double length = 0.0;
      for (const float value : x) length += double{value} * double{value};
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double unit = double{y[i]} / std::sqrt(length);
        std::size_t below = 0, clearly_below = 0;
        for (const float boundary : boundaries) {
          below += double{boundary} < unit + 1e-6;
          clearly_below += double{boundary} < unit - 1e-6;
        }
        EXPECT_LE(codes[i], below);
        EXPECT_GE(codes[i], clearly_below);
      }
    }
  }
}

// x = e_0 + e_1 makes every other component of y exactly 0, the boundary in the middle.
TEST(Quantizer, GivesATieToTheLowerCentroid) {
  for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
    const Quantizer quantizer = make_quantizer(64, bits);
    std::vector<float> x(64, 0.0f), y(64);
    x[0] = x[1] = 1.0f;
    quantizer.rotation().rotate(x, y);
    std::vector<std::uint8_t> codes(64);
    unpack_codes(encode(quantizer, x).codes, bits, codes);
    int ties = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (y[i] != 0.0f) continue;
      EXPECT_EQ(codes[i], (1 << (bits - 1)) - 1);
      ++ties;
    }
    EXPECT_EQ(ties, 32);
  }
}

TEST(Quantizer, ZeroVectorIsAllZeroBits) {
  for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
    const Quantizer quantizer = make_quantizer(80, bits);
    std::vector<float> x(80, 0.0f);
    x[3] = -0.0f;
    const Encoded encoded = encode(quantizer, x);
    EXPECT_EQ(encoded.scale, 0);
    EXPECT_EQ(encoded.codes, std::vector<std::byte>(quantizer.code_bytes()));
    EXPECT_EQ(decode(quantizer, encoded), std::vector<float>(80, 0.0f));
  }
}

TEST(Quantizer, VectorTooShortForF16BecomesTheZeroVector) {
  const Quantizer quantizer = make_quantizer(128, 4);
  for (const float size : {1e-9f, 1e-20f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> x(128, size);
    EXPECT_EQ(encode(quantizer, x), (Encoded{std::vector<std::byte>(64), 0})) << size;
  }
}

TEST(Quantizer, ShortVectorsKeepTheirDirection) {
  const Quantizer quantizer = make_quantizer(128, 4);
  const std::vector<float> x = GaussianSource(5).vector(128, 1e-5f);
  const std::vector<float> decoded = decode(quantizer, encode(quantizer, x));
  double difference = 0.0, length = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(double{x[i]} - double{decoded[i]}, 2);
    length += std::pow(double{x[i]}, 2);
  }
  EXPECT_LT(difference, 0.02 * length);
}

TEST(Quantizer, RefusesWhatIsNotFinite) {
  const Quantizer quantizer = make_quantizer(64, 3);
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    std::vector<float> x(64, 1.0f);
    x[17] = bad;
    const Error error = encode_error(quantizer, x);
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    EXPECT_EQ(error.message, "component 17: not finite");
  }
}

TEST(Quantizer, RefusesVectorsTooLongForAnF16Scale) {
  const Quantizer quantizer = make_quantizer(64, 4);
  for (const float size : {1e4f, 1e10f, 1e18f, 1e19f, std::numeric_limits<float>::max()}) {
    const std::vector<float> x(64, size);
    const Error error = encode_error(quantizer, x);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << size;
    EXPECT_THAT(error.message, HasSubstr("f16"));
  }
}

// The scale is what must fit, not the length. One that y spreads evenly is exact but for the
// rounding of the scale, to 32; one that y holds in one component is scaled up threefold.
TEST(Quantizer, EncodesAsLongAsTheScaleFitsF16) {
  const Quantizer quantizer = make_quantizer(64, 4);
  std::vector<float> x(64, 0.0f);
  x[0] = 60000.0f;
  EXPECT_NEAR(decode(quantizer, encode(quantizer, x))[0], 60000.0f, 16.0f);

  quantizer.rotation().unrotate(x, x);
  EXPECT_EQ(encode_error(quantizer, x).code, ErrorCode::kUnsupported);
}

// Centroids on one side only: some vectors have no positive multiple near them.
TEST(Quantizer, RefusesVectorsThatACodebookPointsAwayFrom) {
  const std::vector<float> centroids = {0.5f, 0.75f};
  const Quantizer quantizer =
      Quantizer::make(PartSpec{.head_dim = 32, .bits = 1}, centroids).value();
  std::vector<float> y(32, -1.0f), x(32);
  quantizer.rotation().unrotate(y, x);
  EXPECT_EQ(encode_error(quantizer, x).code, ErrorCode::kUnsupported);
}

TEST(Quantizer, DecodesAnyBytesToFiniteValues) {
  SplitMix64 random(3);
  for (const int head_dim : {32, 33, 96, 512}) {
    for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
      const Quantizer quantizer = make_quantizer(head_dim, bits);
      for (int trial = 0; trial < 50; ++trial) {
        Encoded encoded{std::vector<std::byte>(quantizer.code_bytes()), 0};
        for (std::byte& value : encoded.codes) value = static_cast<std::byte>(random.next());
        encoded.scale = static_cast<std::uint16_t>(random.next());
        if (!std::isfinite(f16_to_f32(encoded.scale))) encoded.scale = 0x7bff;  // the largest
        for (const float value : decode(quantizer, encoded)) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(Quantizer, DecodeIsDecodeRotatedAndThenTheRotationBack) {
  const Quantizer quantizer = make_quantizer(112, 3);
  const Encoded encoded = encode(quantizer, GaussianSource(6).vector(112));
  std::vector<float> rotated(112);
  quantizer.decode_rotated(encoded.codes, encoded.scale, rotated);
  quantizer.rotation().unrotate(rotated, rotated);
  EXPECT_EQ(decode(quantizer, encoded), rotated);
}

TEST(Quantizer, ScalesWithPowersOfTwoExactly) {
  const Quantizer quantizer = make_quantizer(128, 4);
  std::vector<float> x = GaussianSource(7).vector(128);
  const Encoded once = encode(quantizer, x);
  for (float& value : x) value *= 16.0f;
  const Encoded sixteen_times = encode(quantizer, x);
  EXPECT_EQ(sixteen_times.codes, once.codes);
  EXPECT_EQ(f16_to_f32(sixteen_times.scale), 16.0f * f16_to_f32(once.scale));
}

Quantizer make_ruled(ScaleRule rule, int head_dim, int bits) {
  return Quantizer::make(PartSpec{.head_dim = head_dim, .bits = bits, .scale = rule}).value();
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

constexpr double kF16Rounding = 0x1p-11;  // of a scale, relative

TEST(Quantizer, UnbiasedScaleKeepsTheInnerProductWithTheOriginal) {
  for (const int head_dim : {8, 80, 96, 112, 128, 192, 576, 1024}) {
    const Quantizer quantizer = make_ruled(ScaleRule::kUnbiased, head_dim, 3);
    const std::vector<float> x = GaussianSource(8).vector(static_cast<std::size_t>(head_dim));
    const std::vector<float> decoded = decode(quantizer, encode(quantizer, x));
    EXPECT_NEAR(dot(x, decoded) / dot(x, x), 1.0, kF16Rounding + 1e-6) << head_dim;
  }
}

TEST(Quantizer, NormScaleKeepsTheLength) {
  for (const int head_dim : {8, 80, 96, 112, 128, 192, 576, 1024}) {
    const Quantizer quantizer = make_ruled(ScaleRule::kNorm, head_dim, 3);
    const std::vector<float> x = GaussianSource(9).vector(static_cast<std::size_t>(head_dim));
    const std::vector<float> decoded = decode(quantizer, encode(quantizer, x));
    EXPECT_NEAR(std::sqrt(dot(decoded, decoded) / dot(x, x)), 1.0, kF16Rounding + 1e-6) << head_dim;
  }
}

TEST(Quantizer, RawScaleIsTheLength) {
  const Quantizer quantizer = make_ruled(ScaleRule::kRaw, 128, 3);
  const std::vector<float> x = GaussianSource(10).vector(128);
  const double scale = f16_to_f32(encode(quantizer, x).scale);
  EXPECT_NEAR(scale / std::sqrt(dot(x, x)), 1.0, kF16Rounding + 1e-6);
}

TEST(Quantizer, RulesOfTheLengthGiveTheSameCodes) {
  const std::vector<float> x = GaussianSource(11).vector(96);
  const std::vector<std::byte> codes = encode(make_ruled(ScaleRule::kUnbiased, 96, 4), x).codes;
  EXPECT_EQ(encode(make_ruled(ScaleRule::kNorm, 96, 4), x).codes, codes);
  EXPECT_EQ(encode(make_ruled(ScaleRule::kRaw, 96, 4), x).codes, codes);
}

// Steps of 2 / 15 of the peak: the peak itself is exact, nothing is off by more than half a step.
TEST(Quantizer, PeakScaleIsTheLoudestComponent) {
  const PartSpec spec{
      .head_dim = 32, .bits = 4, .rotation = TransformKind::kNone, .scale = ScaleRule::kPeak};
  const Quantizer quantizer = Quantizer::make(spec, linear_centroids(4)).value();
  std::vector<float> x = GaussianSource(12).vector(32);
  x[20] = -6.5f;
  const Encoded encoded = encode(quantizer, x);
  EXPECT_EQ(f16_to_f32(encoded.scale), 6.5f);
  const std::vector<float> decoded = decode(quantizer, encoded);
  EXPECT_EQ(decoded[20], -6.5f);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(decoded[i], x[i], 6.5 / 15.0 + 1e-5);
}

TEST(Quantizer, EveryRuleRefusesWhatDoesNotFitF16) {
  for (const ScaleRule rule :
       {ScaleRule::kUnbiased, ScaleRule::kNorm, ScaleRule::kRaw, ScaleRule::kPeak}) {
    const Quantizer quantizer = make_ruled(rule, 64, 4);
    for (const float size : {1e6f, 1e19f, std::numeric_limits<float>::max()}) {
      EXPECT_EQ(encode_error(quantizer, std::vector<float>(64, size)).code,
                ErrorCode::kUnsupported);
    }
    std::vector<float> x(64, 1.0f);
    x[63] = kInfinity;
    EXPECT_EQ(encode_error(quantizer, x).code, ErrorCode::kCorrupt);
  }
}

TEST(Quantizer, EveryRuleMakesTheZeroVectorOfWhatIsTooSmallForF16) {
  for (const ScaleRule rule :
       {ScaleRule::kUnbiased, ScaleRule::kNorm, ScaleRule::kRaw, ScaleRule::kPeak}) {
    const Quantizer quantizer = make_ruled(rule, 64, 4);
    for (const float size : {0.0f, 1e-10f, 1e-25f, std::numeric_limits<float>::denorm_min()}) {
      const std::vector<float> x(64, size);
      EXPECT_EQ(encode(quantizer, x), (Encoded{std::vector<std::byte>(32), 0})) << size;
    }
  }
}

// The sign of each component, and 0 counts as negative.
TEST(Quantizer, OfAGaussianMapGivesSigns) {
  const PartSpec spec{
      .head_dim = 48, .bits = 1, .rotation = TransformKind::kGaussian, .scale = ScaleRule::kRaw};
  const Quantizer quantizer = Quantizer::make(spec, residual_centroids(48, spec.rotation)).value();
  const std::vector<float> x = GaussianSource(13).vector(48);
  std::vector<float> y(48);
  quantizer.rotation().rotate(x, y);
  std::vector<std::uint8_t> codes(48);
  unpack_codes(encode(quantizer, x).codes, 1, codes);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(codes[i], y[i] > 0.0f ? 1 : 0);
}

TEST(Quantizer, CopiesShareTheirTables) {
  const Quantizer first = make_quantizer(128, 4);
  const Quantizer second = first;
  EXPECT_EQ(first.centroids().data(), second.centroids().data());
}

std::uint64_t fnv1a(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3;
}

// Codes and scales of vectors that are exact in f32, over all widths and several odd factors.
// The digest must not depend on the compiler, its options or the CPU. It is taken of the codes,
// not of the packed bytes, whose layout may still change.
TEST(Quantizer, EncodesTheSameEverywhere) {
  SplitMix64 random(2026);
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const int head_dim : {32, 45, 64, 80, 96, 128, 192, 256, 511, 512}) {
    for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
      const Quantizer quantizer = make_quantizer(head_dim, bits);
      std::vector<float> x(static_cast<std::size_t>(head_dim));
      std::vector<std::uint8_t> codes(x.size());
      for (int trial = 0; trial < 10; ++trial) {
        for (float& value : x) {
          value = static_cast<float>(static_cast<int>(random.below(1u << 20)) - (1 << 19));
          value *= 0x1p-18f;
        }
        const Encoded encoded = encode(quantizer, x);
        unpack_codes(encoded.codes, bits, codes);
        for (const std::uint8_t code : codes) digest = fnv1a(digest, code);
        digest = fnv1a(digest, encoded.scale);
      }
    }
  }
  EXPECT_EQ(digest, 0x30b289d8040cda1u);
}

// The same of the other maps and scale rules, and of head_dims that only they or larger caches
// have.
TEST(Quantizer, EncodesTheSameEverywhereInEveryKind) {
  const PartSpec kSpecs[] = {
      {.head_dim = 8, .bits = 4},
      {.head_dim = 128, .bits = 2, .rounds = 2},
      {.head_dim = 96, .bits = 3, .rounds = 3, .scale = ScaleRule::kNorm},
      {.head_dim = 576, .bits = 4, .rounds = 2, .scale = ScaleRule::kRaw},
      {.head_dim = 1024, .bits = 8},
      {.head_dim = 80, .bits = 4, .rotation = TransformKind::kDenseQr},
      {.head_dim = 128, .bits = 1, .rotation = TransformKind::kGaussian, .scale = ScaleRule::kRaw},
      {.head_dim = 64, .bits = 8, .rotation = TransformKind::kNone, .scale = ScaleRule::kPeak}};
  SplitMix64 random(2027);
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const PartSpec& spec : kSpecs) {
    const Quantizer quantizer = Quantizer::make(spec).value();
    std::vector<float> x(static_cast<std::size_t>(spec.head_dim));
    std::vector<std::uint8_t> codes(x.size());
    for (int trial = 0; trial < 10; ++trial) {
      for (float& value : x) {
        value = static_cast<float>(static_cast<int>(random.below(1u << 20)) - (1 << 19)) * 0x1p-18f;
      }
      const Encoded encoded = encode(quantizer, x);
      unpack_codes(encoded.codes, spec.bits, codes);
      for (const std::uint8_t code : codes) digest = fnv1a(digest, code);
      digest = fnv1a(digest, encoded.scale);
    }
  }
  EXPECT_EQ(digest, 0xc34512371b15d96au);
}

}  // namespace quantizer_test
}  // namespace tqcache::codec
