#include "tqcache/codec/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace kernels_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Same bits, except that any NaN equals any other.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(float)) == 0;
}

void expect_same(std::span<const float> a, std::span<const float> b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same(a[i], b[i])) << "at " << i << ": " << a[i] << " and " << b[i];
  }
}

// One value in f32, f16 or bf16; one byte off any alignment, and in memory of exactly its size,
// so that a sanitizer sees a read past the end.
Bytes pack(Dtype dtype, std::span<const float> values) {
  Bytes bytes(values.size() * dtype_size(dtype) + 1);
  store_f32(dtype, values, bytes.data() + 1);
  return bytes;
}

// Values that a careless kernel gets wrong, and ordinary ones.
std::vector<float> awkward(std::size_t n, std::uint64_t seed) {
  std::vector<float> values = test::GaussianSource(seed).vector(n);
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-40f, 65504.0f, 6e-8f, -1e-30f};
  test::SplitMix64 random(seed);
  for (float& value : values) {
    if (random.below(8) == 0) value = kSpecial[random.below(std::size(kSpecial))];
  }
  return values;
}

// Every set against the scalar one.
class FastKernels : public testing::TestWithParam<codec::Isa> {
 protected:
  void SetUp() override {
    if (kernels_of(GetParam()) == nullptr) GTEST_SKIP() << "this CPU or build has no such kernels";
  }
  const Kernels& fast() const { return *kernels_of(GetParam()); }
  const Kernels& scalar_ = scalar_kernels();
};

constexpr const char* kSets[] = {"avx2", "avx512", "neon"};
INSTANTIATE_TEST_SUITE_P(Sets, FastKernels,
                         testing::Values(codec::Isa::kAvx2, codec::Isa::kAvx512, codec::Isa::kNeon),
                         [](const auto& set) { return kSets[set.index]; });

TEST_P(FastKernels, DotEqualsScalarBitForBit) {
  for (std::size_t n = 0; n <= 200; ++n) {
    const std::vector<float> x = awkward(n, n + 1);
    const std::vector<float> w = awkward(n, n + 1000);
    const Bytes f32 = pack(Dtype::kF32, w), f16 = pack(Dtype::kF16, w),
                bf16 = pack(Dtype::kBF16, w);
    EXPECT_TRUE(same(scalar_.dot_f32(f32.data() + 1, x.data(), n),
                     fast().dot_f32(f32.data() + 1, x.data(), n)))
        << n;
    EXPECT_TRUE(same(scalar_.dot_f16(f16.data() + 1, x.data(), n),
                     fast().dot_f16(f16.data() + 1, x.data(), n)))
        << n;
    EXPECT_TRUE(same(scalar_.dot_bf16(bf16.data() + 1, x.data(), n),
                     fast().dot_bf16(bf16.data() + 1, x.data(), n)))
        << n;
  }
}

TEST_P(FastKernels, AddScaledEqualsScalarBitForBit) {
  for (std::size_t n = 0; n <= 70; ++n) {
    const std::vector<float> w = awkward(n, n + 1);
    const Bytes f32 = pack(Dtype::kF32, w), f16 = pack(Dtype::kF16, w),
                bf16 = pack(Dtype::kBF16, w);
    std::vector<float> a = awkward(n, n + 2), b = a;
    scalar_.add_scaled_f32(0.3f, f32.data() + 1, n, a.data());
    scalar_.add_scaled_f16(0.7f, f16.data() + 1, n, a.data());
    scalar_.add_scaled_bf16(-1.1f, bf16.data() + 1, n, a.data());
    fast().add_scaled_f32(0.3f, f32.data() + 1, n, b.data());
    fast().add_scaled_f16(0.7f, f16.data() + 1, n, b.data());
    fast().add_scaled_bf16(-1.1f, bf16.data() + 1, n, b.data());
    expect_same(a, b);
  }
}

TEST_P(FastKernels, SoftmaxLoopsEqualScalarBitForBit) {
  for (std::size_t n = 1; n <= 130; ++n) {
    std::vector<float> a = test::GaussianSource(n).vector(n, 30.0f);
    a[n / 2] = n % 3 == 0 ? kNan : -kInfinity;
    a[n / 3] = -0.0f;
    std::vector<float> b = a;
    const float max = scalar_.max_value(a.data(), n);
    EXPECT_TRUE(same(max, fast().max_value(b.data(), n)));
    EXPECT_TRUE(same(scalar_.exp_sum(max, n, a.data()), fast().exp_sum(max, n, b.data())));
    expect_same(a, b);
    const std::vector<float> up = test::GaussianSource(n + 1).vector(n);
    a = b = test::GaussianSource(n + 2).vector(n, 60.0f);
    scalar_.silu_multiply(up.data(), n, a.data());
    fast().silu_multiply(up.data(), n, b.data());
    expect_same(a, b);
  }
}

TEST(Kernels, DotAddsUpInTheStatedOrder) {
  const std::vector<float> w = awkward(77, 1);
  const std::vector<float> x = awkward(77, 2);
  float lanes[kLanes] = {};
  for (std::size_t i = 0; i < w.size(); ++i) lanes[i % kLanes] += w[i] * x[i];
  for (std::size_t half : {16u, 8u, 4u, 2u, 1u}) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  const Bytes row = pack(Dtype::kF32, w);
  EXPECT_TRUE(same(best_kernels().dot_f32(row.data() + 1, x.data(), w.size()), lanes[0]));
}

// Zeros of either sign are equal, so it is the order of comparisons that decides which one is left.
TEST(Kernels, MaxValueOfZerosHasTheSameSignInEverySet) {
  test::SplitMix64 random(9);
  for (const codec::Kernels* set : codec::all_kernels()) {
    const Kernels* const fast = kernels_of(set->isa);
    for (std::size_t n = 1; n <= 100; ++n) {
      std::vector<float> row(n);
      for (float& value : row) value = random.below(2) == 0 ? 0.0f : -0.0f;
      EXPECT_TRUE(same(scalar_kernels().max_value(row.data(), n), fast->max_value(row.data(), n)));
    }
  }
}

TEST(Kernels, TheBestSetIsTheOneThatTheCodecTook) {
  EXPECT_EQ(best_kernels().isa, codec::best_kernels().isa);
}

TEST(Kernels, ExpIsWithinTwoUnitsOfTheLastPlace) {
  for (double x = -86.9; x <= 0; x += 0.0037) {
    float value = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(value));
    best_kernels().exp_sum(0.0f, 1, &value);
    EXPECT_NEAR(value / exact, 1.0, 2 * 0x1p-23) << x;
  }
}

TEST(Kernels, ExpEndsInZeroAndKeepsNan) {
  float row[] = {0.0f, -88.0f, -1e30f, -kInfinity, kNan};
  best_kernels().exp_sum(0.0f, std::size(row), row);
  EXPECT_EQ(row[0], 1.0f);
  EXPECT_EQ(row[1], 0.0f);
  EXPECT_EQ(row[2], 0.0f);
  EXPECT_EQ(row[3], 0.0f);
  EXPECT_TRUE(std::isnan(row[4]));
}

TEST(Kernels, ExpSumGivesTheSumOfWhatItLeaves) {
  std::vector<float> row = test::GaussianSource(1).vector(100);
  const float sum = best_kernels().exp_sum(5.0f, row.size(), row.data());
  double expected = 0;
  for (const float value : row) expected += static_cast<double>(value);
  EXPECT_NEAR(sum / expected, 1.0, 1e-6);
}

TEST(Kernels, MaxValueDoesNotCountNan) {
  std::vector<float> row(50, -3.0f);
  row[7] = kNan;
  row[49] = 2.0f;
  EXPECT_EQ(best_kernels().max_value(row.data(), row.size()), 2.0f);
  EXPECT_EQ(best_kernels().max_value(row.data(), 0), -kInfinity);
}

TEST(Kernels, SiluIsXTimesItsLogisticFunction) {
  for (const float x : {-200.0f, -90.0f, -20.0f, -1.0f, 0.0f, 0.5f, 30.0f, 500.0f}) {
    const float up = 2.0f;
    float gate = x;
    best_kernels().silu_multiply(&up, 1, &gate);
    const double exact = 2.0 * static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(static_cast<double>(gate), exact, 1e-6 * std::abs(exact) + 1e-30) << x;
  }
}

}  // namespace kernels_test
}  // namespace tqcache::model
