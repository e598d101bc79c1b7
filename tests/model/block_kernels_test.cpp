#include "tqcache/model/linear/block_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/gaussian.h"
#include "support/random_blocks.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/quantized_vector.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace block_kernels_test {

using tensors::BlockType;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(float)) == 0;
}

// Ordinary values, and groups that are zero, tiny, huge or not finite.
std::vector<float> awkward(std::size_t n, std::uint64_t seed) {
  std::vector<float> values = test::GaussianSource(seed).vector(n);
  test::SplitMix64 random(seed);
  for (std::size_t i = 0; i + kGroup <= n; i += kGroup) {
    constexpr float kFactors[] = {1.0f, 1.0f, 1.0f, 0.0f, 1e-42f, 1e-28f, 1e30f, -1.0f};
    const float factor = kFactors[random.below(std::size(kFactors))];
    for (std::size_t l = 0; l < kGroup; ++l) values[i + l] *= factor;
    if (random.below(40) == 0) values[i + 5] = random.below(2) == 0 ? kInfinity : kNan;
  }
  return values;
}

// A vector as arrays of their own, so that tests see every number.
template <class Code>
struct Parts {
  std::vector<Code> codes;
  std::vector<std::int32_t> minus_sums;
  std::vector<float> scales;

  Parts(const AllBlockKernels& kernels, const std::vector<float>& x)
      : codes(rounds(x) * 8 * 32, 7), minus_sums(rounds(x) * 24 * 4, 7), scales(rounds(x) * 8, 7) {
    kernels.of<Code>().quantize(x.data(), x.size() / kGroup, codes.data(), minus_sums.data(),
                                scales.data());
  }
  static std::size_t rounds(const std::vector<float>& x) { return (x.size() + 255) / 256; }

  // Value i of a group, where model/linear/block_kernels.h says that it is.
  int code(std::size_t group, std::size_t i) const {
    const std::size_t step = group / 4, in_step = group % 4;
    if (sizeof(Code) == 1) return codes[((step * 2 + i / 16) * 4 + in_step) * 16 + i % 16];
    const std::size_t part = i / 16 * 2 + i % 2;
    return codes[((step * 4 + part) * 4 + in_step) * 8 + i % 16 / 2];
  }
};

template <class Code>
constexpr int kLargest = sizeof(Code) == 1 ? 127 : 32767;

template <class Code>
class QuantizedVectorTest : public testing::Test {};

struct CodeNames {
  template <class Code>
  static std::string GetName(int) {
    return sizeof(Code) == 1 ? "Bytes" : "Words";
  }
};
using Codes = testing::Types<std::int16_t, std::int8_t>;
TYPED_TEST_SUITE(QuantizedVectorTest, Codes, CodeNames);

class FastBlocks : public testing::TestWithParam<codec::Isa> {
 protected:
  void SetUp() override {
    if (kernels_of(GetParam()) == nullptr) GTEST_SKIP() << "this CPU or build has no such kernels";
  }
  const AllBlockKernels& fast() const { return *kernels_of(GetParam())->blocks; }
};

constexpr const char* kSets[] = {"avx2", "avx512", "neon"};
INSTANTIATE_TEST_SUITE_P(Sets, FastBlocks,
                         testing::Values(codec::Isa::kAvx2, codec::Isa::kAvx512, codec::Isa::kNeon),
                         [](const auto& set) { return kSets[set.index]; });

template <class Code>
void expect_same_vector(const AllBlockKernels& fast, const std::vector<float>& x) {
  const Parts<Code> expected(kScalarBlocks, x), parts(fast, x);
  EXPECT_EQ(parts.codes, expected.codes);
  EXPECT_EQ(parts.minus_sums, expected.minus_sums);
  for (std::size_t i = 0; i < parts.scales.size(); ++i) {
    EXPECT_TRUE(same(parts.scales[i], expected.scales[i])) << i;
  }
}

TEST_P(FastBlocks, QuantizeAsScalarDoes) {
  for (std::size_t n = 0; n <= 20 * kGroup; n += kGroup) {
    const std::vector<float> x = awkward(n, n + 1);
    expect_same_vector<std::int16_t>(fast(), x);
    expect_same_vector<std::int8_t>(fast(), x);
  }
}

template <class Code>
void expect_same_products(const AllBlockKernels& fast, std::size_t type, const Bytes& rows,
                          std::size_t n_rows, const std::vector<float>& x) {
  const QuantizedVector<Code> quantized(x, kScalarBlocks);
  std::vector<float> expected(n_rows), y(n_rows);
  const auto multiply = [&](const AllBlockKernels& kernels, std::vector<float>& to) {
    kernels.of<Code>().multiply[type](rows.data() + 1, n_rows, quantized.view(), x.size() / kGroup,
                                      to.data());
  };
  multiply(kScalarBlocks, expected);
  multiply(fast, y);
  for (std::size_t i = 0; i < n_rows; ++i) {
    EXPECT_TRUE(same(y[i], expected[i]))
        << type << ", " << x.size() << ", " << i << ": " << y[i] << ", " << expected[i];
  }
}

// Rows one byte off any alignment, and in memory of exactly their size, so that a sanitizer sees a
// read past the end. Some scales are not finite: a row must not see those of the next.
TEST_P(FastBlocks, MultiplyEveryTypeAsScalarDoesBitForBit) {
  test::SplitMix64 random(3);
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const BlockType& block = tensors::block_types()[type];
    for (std::size_t n = 0; n <= 20 * block.block_values; n += block.block_values) {
      const std::vector<float> x = awkward(n, n + 1);
      const std::size_t n_rows = n % 7;
      for (const bool any_scale : {false, true}) {
        Bytes rows(n_rows * (n / block.block_values * block.block_bytes) + 1);
        const auto blocks = std::span(rows).subspan(1);
        any_scale ? test::fill(blocks, random) : test::fill_blocks(block, blocks, random);
        expect_same_products<std::int16_t>(fast(), type, rows, n_rows, x);
        expect_same_products<std::int8_t>(fast(), type, rows, n_rows, x);
      }
    }
  }
}

// The largest and the smallest codes of weights and of x: no partial sum overflows.
TEST_P(FastBlocks, MultiplyTheLargestCodes) {
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const BlockType& block = tensors::block_types()[type];
    for (const unsigned byte : {0x00u, 0x80u, 0x7fu, 0xffu, 0x0fu, 0xf0u}) {
      const Bytes rows(5 * (512 / block.block_values * block.block_bytes) + 1, std::byte(byte));
      for (const float value : {1.0f, -1.0f}) {
        const std::vector<float> x(512, value);
        expect_same_products<std::int16_t>(fast(), type, rows, 5, x);
        expect_same_products<std::int8_t>(fast(), type, rows, 5, x);
      }
    }
  }
}

TYPED_TEST(QuantizedVectorTest, HasTheNearestOfTheCodesThatReachFromLargestToLargest) {
  const std::vector<float> x = test::GaussianSource(5).vector(4 * kGroup, 3.0f);
  const Parts<TypeParam> parts(kScalarBlocks, x);
  for (std::size_t group = 0; group < 4; ++group) {
    int largest = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
      const int code = parts.code(group, i);
      const double scale = static_cast<double>(parts.scales[group]);
      const double value = static_cast<double>(x[group * kGroup + i]);
      EXPECT_NEAR(code * scale, value, 0.501 * scale);
      largest = std::max(largest, std::abs(code));
    }
    EXPECT_EQ(largest, kLargest<TypeParam>);
  }
}

TYPED_TEST(QuantizedVectorTest, RoundsHalvesToTheEvenNumber) {
  std::vector<float> x(kGroup);
  constexpr auto kLargestValue = static_cast<float>(kLargest<TypeParam>);
  x[0] = kLargestValue, x[1] = 0.5f, x[2] = 1.5f, x[3] = -2.5f, x[4] = -kLargestValue;
  const Parts<TypeParam> parts(kScalarBlocks, x);
  EXPECT_EQ(parts.scales[0], 1.0f);
  const int expected[] = {kLargest<TypeParam>, 0, 2, -2, -kLargest<TypeParam>};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(parts.code(0, i), expected[i]);
}

TYPED_TEST(QuantizedVectorTest, HasTheSumsOfTheCodesOfEveryLane) {
  const Parts<TypeParam> parts(kScalarBlocks, test::GaussianSource(6).vector(5 * kGroup));
  for (std::size_t group = 0; group < 5; ++group) {
    for (std::size_t l = 0; l < kGroupLanes; ++l) {
      int sums[2] = {};
      for (std::size_t i = 0; i < 4; ++i) {
        sums[0] += parts.code(group, 4 * l + i);
        sums[1] += parts.code(group, 16 + 4 * l + i);
      }
      EXPECT_EQ(parts.minus_sums[loops::sum_place(group, 0) + l], -sums[0]);
      EXPECT_EQ(parts.minus_sums[loops::sum_place(group, 1) + l], -sums[1]);
      EXPECT_EQ(parts.minus_sums[loops::sum_place(group, 2) + l], -sums[0] - sums[1]);
    }
  }
}

TYPED_TEST(QuantizedVectorTest, IsZeroWhereAGroupIsTinyAndBehindTheLastOne) {
  std::vector<float> x(2 * kGroup, 1.0f);
  for (std::size_t i = 0; i < kGroup; ++i) x[i] = std::ldexp(0.99f, -100);
  const Parts<TypeParam> parts(kScalarBlocks, x);
  for (std::size_t group = 0; group < 8; ++group) {
    EXPECT_EQ(parts.scales[group] != 0, group == 1);
    for (std::size_t i = 0; i < kGroup; ++i) EXPECT_EQ(parts.code(group, i) != 0, group == 1);
  }
  x.assign(kGroup, std::ldexp(1.0f, -100));
  EXPECT_EQ(Parts<TypeParam>(kScalarBlocks, x).code(0, 3), kLargest<TypeParam>);
}

TYPED_TEST(QuantizedVectorTest, IsNotANumberWhereAGroupIsNotFinite) {
  for (const float value : {kInfinity, -kInfinity, kNan, -kNan}) {
    std::vector<float> x(2 * kGroup, 1.0f);
    x[kGroup + 9] = value;
    const Parts<TypeParam> parts(kScalarBlocks, x);
    EXPECT_EQ(parts.code(0, 9), kLargest<TypeParam>);
    EXPECT_TRUE(std::isnan(parts.scales[1]));
    EXPECT_EQ(parts.code(1, 9), 0);
    const QuantizedVector<TypeParam> vector(x, kScalarBlocks);
    float y = 0;
    kScalarBlocks.of<TypeParam>().multiply[0](Bytes(68).data(), 1, vector.view(), 2, &y);
    EXPECT_TRUE(std::isnan(y));
  }
}

// The rule of model/block_kernels.h, told anew: terms of a lane, one after another, then the fold.
template <class Layout, class Code>
float dot_as_stated(const std::byte* row, const Parts<Code>& x, std::size_t n_groups) {
  constexpr std::size_t kGroups = Layout::kValues / kGroup, kPerGroup = kGroup / Layout::kRun;
  float lanes[32] = {};
  for (std::size_t g = 0; g < n_groups; ++g) {
    const std::byte* const block = row + g / kGroups * Layout::kBytes;
    std::uint8_t code[kGroup];
    Layout::codes(block, g % kGroups, code);
    const auto scales = Layout::scales(block);
    for (std::size_t l = 0; l < 4; ++l) {
      for (std::size_t run = 0; run < kPerGroup; ++run) {
        std::int64_t products = 0, sum = 0;
        for (std::size_t i = run * Layout::kRun; i < (run + 1) * Layout::kRun; ++i) {
          if (i % 16 / 4 != l) continue;
          products += (code[i] - Layout::kOffset) * x.code(g, i);
          sum += x.code(g, i);
        }
        const std::size_t n = g % kGroups * kPerGroup + run;
        float& lane = lanes[4 * (g % 8) + l];
        lane += static_cast<float>(products) * (scales.scale[n] * x.scales[g]);
        if (!Layout::kHasMinimum) continue;
        lane += static_cast<float>(sum) * (-scales.minimum[n] * x.scales[g]);
      }
    }
  }
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[half + l];
  }
  return lanes[0];
}

template <class Code, class... Layout>
void expect_as_stated(tensors::layouts::List<Layout...>) {
  const std::vector<float> x = test::GaussianSource(7).vector(768);
  const Parts<Code> parts(kScalarBlocks, x);
  const QuantizedVector<Code> vector(x, kScalarBlocks);
  test::SplitMix64 random(8);
  std::size_t type = 0;
  const auto compare = [&](auto dot) {
    const BlockType& block = tensors::block_types()[type];
    Bytes row(768 / block.block_values * block.block_bytes);
    test::fill_blocks(block, row, random);
    float y = 0;
    best_blocks().of<Code>().multiply[type](row.data(), 1, vector.view(), 24, &y);
    EXPECT_EQ(y, dot(row.data(), parts, 24)) << type;
    ++type;
  };
  (compare(dot_as_stated<Layout, Code>), ...);
}

TEST(BlockKernels, AddUpInTheStatedOrder) {
  expect_as_stated<std::int16_t>(tensors::layouts::All{});
  expect_as_stated<std::int8_t>(tensors::layouts::All{});
}

TEST(BlockKernels, TheBestSetIsTheOneThatTheCodecTook) {
  EXPECT_EQ(&best_blocks(), kernels_of(codec::best_kernels().isa)->blocks);
}

}  // namespace block_kernels_test
}  // namespace tqcache::model
