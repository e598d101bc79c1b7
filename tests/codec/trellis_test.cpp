// The search for the nearest path (docs/reference/codec.md, "Trellis codes").

#include "tqcache/codec/trellis/trellis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <vector>

#include "support/gaussian.h"
#include "support/matchers.h"

namespace tqcache::codec {
namespace trellis_test {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;

// The machine of the document once more.
int next_state(int state, int level) {
  return state >> 1 ^ (state & 1 ? 5 : 0) ^ (level >> 1 & 1 ? 2 : 0);
}

struct Paths {
  TrellisShape shape;
  std::vector<std::uint8_t> symbols;
  std::vector<float> products, squares;
  std::vector<std::int8_t> levels;

  explicit Paths(const TrellisShape& s)
      : shape(s),
        symbols(s.size(), 0xee),
        products(s.n_vectors),
        squares(s.n_vectors),
        levels(s.size()) {}
  int level(std::size_t vector, std::size_t i) const {
    return levels[i * shape.n_vectors + vector];
  }
};

Paths encode(const TrellisShape& shape, std::span<const float> y,
             const Kernels& kernels = best_kernels()) {
  Paths paths(shape);
  EXPECT_TRUE(
      encode_trellis(shape, y, {paths.symbols, paths.products, paths.squares}, kernels).ok());
  EXPECT_TRUE(decode_trellis(shape, paths.symbols, paths.levels).ok());
  return paths;
}

double error_of(const Paths& paths, std::span<const float> y, std::size_t vector) {
  double error = 0.0;
  for (std::size_t i = 0; i < paths.shape.dim; ++i) {
    const double off = double{y[vector * paths.shape.dim + i]} - paths.level(vector, i);
    error += off * off;
  }
  return error;
}

// The least error of all paths, by trying them.
double least_error(std::span<const float> y, int state = 0) {
  if (y.empty()) return 0.0;
  double least = std::numeric_limits<double>::infinity();
  const int middle = std::clamp(static_cast<int>(std::lround(y[0])), -128, 127);
  for (int j = std::max(-128, middle - 5); j <= std::min(127, middle + 5); ++j) {
    if ((j & 1) != (state & 1)) continue;
    const double off = double{y[0]} - j;
    least = std::min(least, off * off + least_error(y.subspan(1), next_state(state, j)));
  }
  return least;
}

TEST(TrellisSearch, FindsTheNearestOfAllPaths) {
  GaussianSource random(1);
  for (const std::size_t dim : {1u, 2u, 3u, 5u}) {
    const std::vector<float> y = random.vector(64 * dim, 3.0f);
    const Paths paths = encode({dim, 64}, y);
    for (std::size_t v = 0; v < 64; ++v) {
      const double least = least_error(std::span(y).subspan(v * dim, dim));
      ASSERT_NEAR(error_of(paths, y, v), least, 1e-5 * (1.0 + least)) << dim << ", " << v;
    }
  }
}

TEST(TrellisSearch, FindsTheNearestWhereLevelsEnd) {
  SplitMix64 random(2);
  std::vector<float> y(64 * 5);
  for (float& value : y) {
    value = static_cast<float>((random.below(2) == 0 ? -1.0 : 1.0) * (122 + 12 * random.uniform()));
  }
  for (const Kernels* kernels : all_kernels()) {
    const Paths paths = encode({5, 64}, y, *kernels);
    for (std::size_t v = 0; v < 64; ++v) {
      const double least = least_error(std::span(y).subspan(v * 5, 5));
      ASSERT_NEAR(error_of(paths, y, v), least, 1e-5 * (1.0 + least)) << kernels->name << v;
    }
  }
}

TEST(TrellisSearch, NeverLeavesTheLevels) {
  SplitMix64 random(4);
  const TrellisShape shape{64, 16};
  std::vector<float> y(shape.size());
  for (float size = 122.0f; size < 132.0f; size += 0.125f) {
    for (const float sign : {1.0f, -1.0f}) {
      for (float& value : y) value = sign * (size - 2.0f * static_cast<float>(random.uniform()));
      const Paths expected = encode(shape, y, *all_kernels().front());
      for (const Kernels* kernels : all_kernels()) {
        const Paths paths = encode(shape, y, *kernels);
        ASSERT_EQ(paths.symbols, expected.symbols) << kernels->name << ", " << sign * size;
        ASSERT_EQ(paths.squares, expected.squares) << kernels->name << ", " << sign * size;
      }
    }
  }
}

TEST(TrellisSearch, TakesTheLastLevelsForWhatIsFarBeyond) {
  for (const float far : {2e3f, 1e20f, std::numeric_limits<float>::max()}) {
    const std::vector<float> y = {far, -far, far, -far, far, far, -far, -far};
    for (const Kernels* kernels : all_kernels()) {
      const Paths paths = encode({8, 1}, y, *kernels);
      for (std::size_t i = 0; i < 8; ++i) {
        const int level = paths.level(0, i);
        EXPECT_TRUE(y[i] > 0 ? level >= 126 : level <= -127) << level << " for " << y[i];
      }
    }
  }
}

TEST(TrellisSearch, FindsThePathOfTheWorkedExample) {
  const std::vector<float> y = {0.9f, -1.2f, 2.1f, 0.4f, -3.3f, 0.0f, 1.6f, 5.2f};
  for (const Kernels* kernels : all_kernels()) {
    const Paths paths = encode({8, 1}, y, *kernels);
    EXPECT_EQ(paths.levels, (std::vector<std::int8_t>{0, -2, 2, 1, -4, 0, 1, 5})) << kernels->name;
    EXPECT_EQ(paths.symbols, (std::vector<std::uint8_t>{64, 63, 65, 64, 62, 64, 64, 66}));
    EXPECT_NEAR(paths.products[0], 47.8f, 1e-5f);
    EXPECT_EQ(paths.squares[0], 51.0f);
    EXPECT_NEAR(error_of(paths, y, 0), 2.71, 1e-5);
  }
}

std::vector<float> make_ties(std::size_t n, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> y(n);
  for (float& value : y) value = 0.5f * static_cast<float>(random.below(17)) - 4.0f;
  return y;
}

// Between two levels nearly everywhere, so that most sums have an equal. The expected digest is
// that of a second implementation, in Python, too.
TEST(TrellisSearch, DecidesTiesAsTheDocumentSays) {
  EXPECT_EQ(encode({8, 1}, std::vector<float>(8, 1.0f)).levels,
            (std::vector<std::int8_t>{2, 0, 1, 1, 1, 2, 1, 1}));
  const TrellisShape shape{40, 50};
  for (const Kernels* kernels : all_kernels()) {
    std::uint64_t digest = 0xcbf29ce484222325;
    for (const std::uint8_t symbol : encode(shape, make_ties(shape.size(), 8), *kernels).symbols) {
      digest = (digest ^ symbol) * 0x100000001b3;
    }
    EXPECT_EQ(digest, 0x9c2a59e9b98880c3u) << kernels->name;
  }
}

// <y, j> by the document's order of additions.
float product_of(const Paths& paths, std::span<const float> y, std::size_t vector) {
  std::array<float, 16> lanes{};
  for (std::size_t i = 0; i < paths.shape.dim; ++i) {
    const float level = static_cast<float>(paths.level(vector, i));
    lanes[i % 16] += y[vector * paths.shape.dim + i] * level;
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

TEST(TrellisSearch, GivesTheSumsOfItsLevels) {
  GaussianSource random(3);
  const TrellisShape shape{100, 37};
  const std::vector<float> y = random.vector(shape.size(), 6.0f);
  for (const Kernels* kernels : all_kernels()) {
    const Paths paths = encode(shape, y, *kernels);
    for (std::size_t v = 0; v < shape.n_vectors; ++v) {
      int squares = 0;
      for (std::size_t i = 0; i < shape.dim; ++i) squares += paths.level(v, i) * paths.level(v, i);
      EXPECT_EQ(paths.products[v], product_of(paths, y, v)) << kernels->name;
      EXPECT_EQ(paths.squares[v], static_cast<float>(squares)) << kernels->name;
    }
  }
}

TEST(TrellisSearch, NeedsNoSums) {
  const std::vector<float> y(40 * 20, 1.5f);
  const Paths whole = encode({40, 20}, y);
  std::vector<std::uint8_t> symbols(40 * 20);
  EXPECT_TRUE(encode_trellis({40, 20}, y, {symbols, {}, {}}).ok());
  EXPECT_EQ(symbols, whole.symbols);
}

TEST(TrellisSearch, RefusesWhatIsNotFinite) {
  const TrellisShape shape{33, 40};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t vector : {0u, 15u, 39u}) {
      std::vector<float> y(shape.size(), 1.0f);
      y[vector * shape.dim + 32] = bad;
      y.back() = bad;
      for (const Kernels* kernels : all_kernels()) {
        Paths paths(shape);
        EXPECT_THAT(encode_trellis(shape, y, {paths.symbols, {}, {}}, *kernels),
                    test::FailsWith(ErrorCode::kCorrupt, "vector " + std::to_string(vector) +
                                                             ": a component is not finite"));
      }
    }
  }
}

enum class Data { kGaussian, kTies, kOverload, kTiny, kMixed, kLastLevels };

std::vector<float> make_data(Data data, const TrellisShape& shape, std::uint64_t seed) {
  if (data == Data::kTies) return make_ties(shape.size(), seed);
  GaussianSource normal(seed);
  std::vector<float> y = normal.vector(shape.size(), 4.0f);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (data == Data::kOverload) y[i] *= 25.0f;
    if (data == Data::kTiny) y[i] *= 1e-38f;
    if (data == Data::kLastLevels) y[i] = std::copysign(127.3f - std::abs(y[i]) / 4.0f, y[i]);
    if (data == Data::kMixed && i / shape.dim % 5 == 0) y[i] *= 1e6f;
  }
  return y;
}

TEST(TrellisSearch, GivesTheSameBytesOnEveryCpu) {
  for (const Data data : {Data::kGaussian, Data::kTies, Data::kOverload, Data::kTiny, Data::kMixed,
                          Data::kLastLevels}) {
    for (const TrellisShape& shape :
         {TrellisShape{32, 256}, TrellisShape{33, 17}, TrellisShape{1, 5}, TrellisShape{100, 31},
          TrellisShape{128, 200}, TrellisShape{1024, 24}}) {
      const std::vector<float> y = make_data(data, shape, shape.dim);
      const Paths expected = encode(shape, y, *all_kernels().front());
      for (const Kernels* kernels : all_kernels()) {
        const Paths paths = encode(shape, y, *kernels);
        ASSERT_EQ(paths.symbols, expected.symbols) << kernels->name << ", dim " << shape.dim;
        ASSERT_EQ(paths.products, expected.products) << kernels->name;
        ASSERT_EQ(paths.squares, expected.squares) << kernels->name;
      }
    }
  }
}

// What Gaussian vectors cost and lose at a step: entropy of symbols when the parity is known, and
// the error with the best factor for all levels.
struct RateDistortion {
  double bits;
  double error;

  // 1 is what no code can beat.
  double loss() const { return error * std::pow(4.0, bits); }
};

RateDistortion measure(float step) {
  constexpr std::size_t kDim = 128, kBlocks = 12;
  GaussianSource random(5);
  std::array<std::map<int, double>, 2> counts;
  double total = 0.0, xx = 0.0, xj = 0.0, jj = 0.0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const TrellisShape shape{kDim, kBlockTokens};
    const std::vector<float> y = random.vector(shape.size(), 1.0f / step);
    const Paths paths = encode(shape, y);
    for (const std::int8_t j : paths.levels) counts[j & 1][j] += 1.0;
    for (const float value : y) xx += double{value} * value;
    for (std::size_t v = 0; v < kBlockTokens; ++v) {
      xj += paths.products[v];
      jj += paths.squares[v];
    }
    total += static_cast<double>(shape.size());
  }
  double bits = 0.0;
  for (const auto& of_parity : counts) {
    double n = 0.0;
    for (const auto& [level, count] : of_parity) n += count;
    for (const auto& [level, count] : of_parity) bits -= count * std::log2(count / n);
  }
  const double unit = double{step} * step / total;
  return {bits / total, (xx - xj * xj / jj) * unit};
}

struct Rate {
  float step;
  double bits;       // that the step gives, within .01
  double error;      // of the literature
  double lloyd_max;  // of as many bits
};

constexpr Rate kRates[] = {{0.5355f, 2.0, 0.0702, 0.117482},
                           {0.2603f, 3.0, 0.01755, 0.034548},
                           {0.1293f, 4.0, 0.00439, 0.009501}};

TEST(TrellisRate, IsHalfADecibelAboveTheBound) {
  for (const Rate& rate : kRates) {
    const RateDistortion measured = measure(rate.step);
    std::printf("step %.4f: %.4f bits, error %.5f, %.3f dB\n", double{rate.step}, measured.bits,
                measured.error, 10.0 * std::log10(measured.loss()));
    EXPECT_NEAR(measured.bits, rate.bits, 0.01);
    const double at_rate = measured.loss() * std::pow(4.0, -rate.bits);
    EXPECT_NEAR(at_rate / rate.error, 1.0, 0.015) << rate.bits;
  }
}

// A trellis whose states all have all levels is none: it would do as a uniform quantizer does,
// 1.53 dB above the bound.
TEST(TrellisRate, BeatsEveryQuantizerOfSingleComponents) {
  for (const Rate& rate : kRates) {
    const RateDistortion measured = measure(rate.step);
    EXPECT_LT(measured.loss(), 1.2);  // 1.42 is 1.53 dB
    EXPECT_LT(measured.error, 0.65 * rate.lloyd_max);
  }
}

TEST(TrellisRate, LeavesOnlyHalfOfTheLevelsToEachState) {
  GaussianSource random(6);
  const TrellisShape shape{128, 64};
  const Paths paths = encode(shape, random.vector(shape.size(), 3.0f));
  for (std::size_t v = 0; v < shape.n_vectors; ++v) {
    int state = 0;
    for (std::size_t i = 0; i < shape.dim; ++i) {
      const int level = paths.level(v, i);
      ASSERT_EQ(level & 1, state & 1);
      state = next_state(state, level);
    }
  }
}

}  // namespace trellis_test
}  // namespace tqcache::codec
