// Random numbers, rotations and codebooks, held against those of NumPy.

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/turbomlx_files.h"
#include "tqcache/interop/turbomlx/numpy_random.h"
#include "tqcache/interop/turbomlx/turbomlx_artifacts.h"

namespace tqcache::interop {
namespace numpy_test {

using nlohmann::json;

const json& numbers() {
  static const json all = [] {
    const Bytes text = test::read_all(test::turbomlx_folder() / "numbers.json");
    const auto* begin = reinterpret_cast<const char*>(text.data());
    return json::parse(begin, begin + text.size());
  }();
  return all;
}

std::uint64_t from_hex(const json& value) {
  const std::string text = value.get<std::string>();
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

double f64_of(const json& bits) { return std::bit_cast<double>(from_hex(bits)); }
float f32_of(const json& bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(from_hex(bits)));
}

// The tail of the normal distribution takes digits from the libm.
void expect_normal(double value, double expected) {
  if (std::abs(expected) < 3.65) {
    EXPECT_EQ(value, expected);
  } else {
    EXPECT_NEAR(value, expected, 4e-15);
  }
}

TEST(NumpyRandom, SeedsAreMixedAsNumpyMixesThem) {
  for (const json& each : numbers()["seeds"]) {
    const auto state = numpy_seed_state(each["seed"].get<std::uint64_t>());
    for (std::size_t i = 0; i < state.size(); ++i) EXPECT_EQ(state[i], from_hex(each["state"][i]));
  }
}

TEST(NumpyRandom, NumbersAreThoseOfNumpy) {
  for (const json& each : numbers()["seeds"]) {
    const auto seed = each["seed"].get<std::uint64_t>();
    SCOPED_TRACE(seed);
    NumpyRandom words(seed), doubles(seed), normals(seed), choices(seed);
    for (const json& word : each["u64"]) EXPECT_EQ(words.next_u64(), from_hex(word));
    for (const json& value : each["double"]) EXPECT_EQ(doubles.next_double(), f64_of(value));
    for (const json& value : each["normal"]) expect_normal(normals.next_normal(), f64_of(value));
    for (const char sign : each["choice"].get<std::string>()) {
      EXPECT_EQ(choices.next_of_two(), sign == '+' ? 1u : 0u);
    }
  }
}

// Every layer of the ziggurat, its wedges and its tail.
TEST(NumpyRandom, TwoHundredThousandNormalNumbersAreThoseOfNumpy) {
  for (const json& each : numbers()["folded"]) {
    NumpyRandom random(each["seed"].get<std::uint64_t>());
    std::uint64_t folded = 0;
    std::size_t n_inside = 0, n_outside = 0;
    for (int i = 0; i < 200'000; ++i) {
      const double value = random.next_normal();
      if (std::abs(value) < 3.65) {
        folded ^= std::bit_cast<std::uint64_t>(value);
        ++n_inside;
      } else if (n_outside < each["outside"].size()) {
        expect_normal(value, f64_of(each["outside"][n_outside++]));
      }
    }
    EXPECT_EQ(n_inside, each["count"].get<std::size_t>());
    EXPECT_EQ(folded, from_hex(each["xor"]));
    EXPECT_EQ(n_outside, each["outside"].size());
  }
}

TurboMlxMatrix matrix_of(const json& each) {
  const std::string kind = each["kind"];
  const auto map = kind == "qr"    ? TurboMlxMap::kQr
                   : kind == "wht" ? TurboMlxMap::kWht
                                   : TurboMlxMap::kQjl;
  return make_turbomlx_matrix(map, each["dim"].get<std::size_t>(),
                              each["seed"].get<std::uint64_t>());
}

// Up to the last bit of f32, which another order of sums can turn.
void expect_same_f32(float value, float expected) {
  EXPECT_LE(std::abs(value - expected), std::abs(expected) * 0x1p-23f + 1e-14f) << expected;
}

TEST(TurboMlxMatrix, IsThatOfNumpy) {
  for (const json& each : numbers()["rotations"]) {
    const TurboMlxMatrix matrix = matrix_of(each);
    for (std::size_t i = 0; i < matrix.dim * matrix.dim; ++i) {
      const std::size_t at = i / matrix.dim * matrix.stride + i % matrix.dim;
      expect_same_f32(matrix.values[at], f32_of(each["matrix"][i]));
    }
  }
}

TEST(TurboMlxMatrix, LargeOnesAreThoseOfNumpyWhereLookedAt) {
  for (const json& each : numbers()["samples"]) {
    SCOPED_TRACE(each["kind"].get<std::string>() + " " + each["dim"].dump());
    const TurboMlxMatrix matrix = matrix_of(each);
    for (std::size_t i = 0; i < each["places"].size(); ++i) {
      const auto place = each["places"][i].get<std::size_t>();
      const std::size_t at = place / matrix.dim * matrix.stride + place % matrix.dim;
      expect_same_f32(matrix.values[at], f32_of(each["values"][i]));
    }
  }
}

TEST(OrthogonalFactor, IsOrthogonalAndTurnsTheMatrixIntoATriangle) {
  constexpr std::size_t kDim = 33;
  NumpyRandom random(3);
  std::vector<double> a(kDim * kDim);
  for (double& value : a) value = random.next_normal();
  const std::vector<double> q = orthogonal_factor(a, kDim);
  for (std::size_t i = 0; i < kDim; ++i) {
    for (std::size_t j = 0; j < kDim; ++j) {
      double product = 0, r = 0;
      for (std::size_t k = 0; k < kDim; ++k) {
        product += q[k * kDim + i] * q[k * kDim + j];
        r += q[k * kDim + i] * a[k * kDim + j];
      }
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-13);
      EXPECT_TRUE(j < i ? std::abs(r) < 1e-12 : j > i || r > 0) << r;
    }
  }
}

TEST(OrthogonalFactor, OfZerosIsTheUnitMatrix) {
  const std::vector<double> zeros(4, 0.0);
  EXPECT_EQ(orthogonal_factor(zeros, 2), (std::vector<double>{1, 0, 0, 1}));
}

TEST(TurboMlxCodebook, IsThatOfNumpy) {
  for (const json& each : numbers()["codebooks"]) {
    const int dim = each["dim"], bits = each["bits"];
    SCOPED_TRACE(std::to_string(dim) + " " + std::to_string(bits));
    const std::vector<float> centroids = turbomlx_codebook(dim, bits);
    ASSERT_EQ(centroids.size(), each["centroids"].size());
    for (std::size_t i = 0; i < centroids.size(); ++i) {
      expect_same_f32(centroids[i], f32_of(each["centroids"][i]));
    }
  }
}

TEST(TurboMlxArtifacts, MakesEachOnlyOnceAndNotAnyNumber) {
  TurboMlxArtifacts artifacts;
  const auto first = artifacts.matrix(TurboMlxMap::kWht, 4, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*first, *artifacts.matrix(TurboMlxMap::kWht, 4, 0));
  EXPECT_EQ(*artifacts.codebook(4, 1), *artifacts.codebook(4, 1));
  for (std::uint64_t seed = 1; seed < 16; ++seed) {
    EXPECT_TRUE(artifacts.matrix(TurboMlxMap::kWht, 4, seed).ok());
    EXPECT_TRUE(artifacts.codebook(4 + seed, 1).ok());
  }
  EXPECT_EQ(artifacts.matrix(TurboMlxMap::kWht, 4, 16).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(artifacts.codebook(30, 1).error().code, ErrorCode::kTooLarge);
}

TEST(TurboMlxArtifacts, RefusesWhtOfNoPowerOfTwo) {
  TurboMlxArtifacts artifacts;
  const auto result = artifacts.matrix(TurboMlxMap::kWht, 12, 0);
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(result.error().message, "rotation wht of 12 channels, no power of two");
}

}  // namespace numpy_test
}  // namespace tqcache::interop
