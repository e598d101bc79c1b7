// Products that several threads compute at the same time. CMakeLists.txt builds these tests twice:
// with the OpenBLAS that the library loads, and with one without threads.

#include "tqcache/model/linear/blas.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "support/gaussian.h"

namespace tqcache::model {
namespace blas_test {

// A product needs a buffer of the BLAS for its packed matrices.
constexpr std::int64_t kM = 64;
constexpr std::int64_t kN = 48;
constexpr std::int64_t kK = 64;

struct Factors {
  std::vector<float> a;  // [kM, kK]
  std::vector<float> b;  // [kN, kK] of multiply_transposed(), [kK, kN] of multiply_add()
};

using Product = std::vector<float>(const Factors& factors);

std::vector<float> transposed_product(const Factors& factors) {
  std::vector<float> y(kM * kN);
  multiply_transposed(kM, kN, kK, 0.5f, {factors.a.data(), kK}, {factors.b.data(), kK},
                      {y.data(), kN});
  return y;
}

std::vector<float> added_product(const Factors& factors) {
  std::vector<float> y(kM * kN, 1.0f);
  multiply_add(kM, kN, kK, {factors.a.data(), kK}, {factors.b.data(), kN}, {y.data(), kN});
  return y;
}

// The number of products that differ from those of a single thread. Each thread multiplies its own
// factors many times: threads that share a buffer of the BLAS once share it for a while.
int count_wrong(Product* product) {
  constexpr std::size_t kThreads = 2;
  constexpr int kRounds = 30'000;
  test::GaussianSource gaussian(7);
  std::vector<Factors> factors;
  std::vector<std::vector<float>> expected;
  for (std::size_t i = 0; i < kThreads; ++i) {
    factors.push_back({gaussian.vector(kM * kK), gaussian.vector(kN * kK)});
    expected.push_back(product(factors.back()));
  }

  std::vector<int> n_wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        n_wrong[i] += product(factors[i]) == expected[i] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int sum = 0;
  for (const int each : n_wrong) sum += each;
  return sum;
}

TEST(Blas, ProductsOfSeveralThreadsAreThoseOfOne) {
  if (const auto loaded = load_blas(); !loaded) GTEST_SKIP() << loaded.error().message;
  EXPECT_EQ(count_wrong(transposed_product), 0);
  EXPECT_EQ(count_wrong(added_product), 0);
}

// A processor of whatever model number gets the kernels of its instruction sets.
TEST(Blas, TakesTheKernelsOfTheInstructionSets) {
  EXPECT_STREQ(blas_core_for({}), "");
  EXPECT_STREQ(blas_core_for({.avx2 = true}), "Haswell");
  EXPECT_STREQ(blas_core_for({.avx2 = true, .avx512 = true}), "SkylakeX");
#if !TQCACHE_IS_BLAS_LINKED
  if (const auto loaded = load_blas(); !loaded) GTEST_SKIP() << loaded.error().message;
  if (std::string(blas_core_for(instruction_sets())).empty()) GTEST_SKIP() << "an old processor";
  const char* const chosen = std::getenv("OPENBLAS_CORETYPE");  // ours, or that of the user
  ASSERT_NE(chosen, nullptr);
  EXPECT_STRCASEEQ(blas_core().c_str(), chosen);
#endif
}

}  // namespace blas_test
}  // namespace tqcache::model
