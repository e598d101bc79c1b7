#include "tqcache/model/linear/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "support/gaussian.h"
#include "support/random_blocks.h"
#include "tqcache/bytes.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace matrix_test {

using tensors::TensorType;

constexpr TensorType kPlainTypes[] = {TensorType::kF32, TensorType::kF16, TensorType::kBF16};

std::vector<TensorType> all_types() {
  std::vector<TensorType> types(std::begin(kPlainTypes), std::end(kPlainTypes));
  for (const tensors::BlockType& blocks : tensors::block_types()) types.push_back(blocks.type);
  return types;
}

// A matrix of random weights, one byte off any alignment, with the same weights as f64.
struct RandomMatrix {
  Bytes memory;
  std::vector<double> weights;  // [n_rows, n_cols]
  Matrix matrix;
};

RandomMatrix random_plain_matrix(TensorType type, std::int64_t n_rows, std::int64_t n_cols) {
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
  const Dtype dtype = kDtypes[static_cast<std::size_t>(type)];
  const std::vector<float> values =
      test::GaussianSource(6).vector(static_cast<std::size_t>(n_rows * n_cols));
  RandomMatrix result;
  result.memory.resize(values.size() * dtype_size(dtype) + 1);
  store_f32(dtype, values, result.memory.data() + 1);
  std::vector<float> rounded(values.size());
  load_f32(dtype, result.memory.data() + 1, rounded);
  result.weights.assign(rounded.begin(), rounded.end());
  result.matrix = {type, n_rows, n_cols, ByteView(result.memory).subspan(1)};
  return result;
}

// What blocks stand for is the reader's to say (tests/tensors/block_types_test.cpp).
RandomMatrix random_matrix(TensorType type, std::int64_t n_rows, std::int64_t n_cols) {
  const tensors::BlockType* blocks = tensors::find_block_type(type);
  if (blocks == nullptr) return random_plain_matrix(type, n_rows, n_cols);
  RandomMatrix result;
  test::SplitMix64 random(5);
  const auto n_rows_size = static_cast<std::size_t>(n_rows);
  result.memory.resize(n_rows_size * row_bytes(type, static_cast<std::uint64_t>(n_cols)) + 1);
  test::fill_blocks(*blocks, std::span(result.memory).subspan(1), random);
  std::vector<float> values(static_cast<std::size_t>(n_rows * n_cols));
  blocks->widen(result.memory.data() + 1, values);
  result.weights.assign(values.begin(), values.end());
  result.matrix = {type, n_rows, n_cols, ByteView(result.memory).subspan(1)};
  return result;
}

// W x in f64, with the size of the terms that it adds up.
struct Expected {
  double value = 0;
  double magnitude = 0;
};
Expected exact_product(const RandomMatrix& w, std::int64_t row, std::span<const float> x) {
  Expected sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double term =
        w.weights[static_cast<std::size_t>(row) * x.size() + i] * static_cast<double>(x[i]);
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

std::vector<float> product_of_vector(const Matrix& matrix, std::span<const float> x,
                                     unsigned n_threads,
                                     ActivationBits bits = ActivationBits::k16) {
  std::vector<float> y(static_cast<std::size_t>(matrix.n_rows));
  multiply_vector({{&matrix, y.data()}}, x, bits, Workers(n_threads));
  return y;
}

std::vector<float> product_of_matrix(const Matrix& matrix, std::int64_t n, std::span<const float> x,
                                     unsigned n_threads) {
  std::vector<float> y(static_cast<std::size_t>(n * matrix.n_rows));
  multiply_chunk({{&matrix, y.data()}}, n, x, Workers(n_threads));
  return y;
}

TEST(LoadRows, WidensEveryTypeExactly) {
  for (const TensorType type : all_types()) {
    const RandomMatrix w = random_matrix(type, 7, 256);
    std::vector<float> rows(3 * 256);
    load_rows(w.matrix, 2, 3, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(static_cast<double>(rows[i]), w.weights[2 * 256 + i]);
    }
  }
}

TEST(RowBytes, IsZeroForWhatNoMatrixCanHave) {
  EXPECT_EQ(row_bytes(TensorType::kF32, 10), 40u);
  EXPECT_EQ(row_bytes(TensorType::kF16, 10), 20u);
  EXPECT_EQ(row_bytes(TensorType::kBF16, 10), 20u);
  EXPECT_EQ(row_bytes(TensorType::kQ8_0, 64), 68u);
  EXPECT_EQ(row_bytes(TensorType::kQ8_0, 40), 0u);
  EXPECT_EQ(row_bytes(TensorType::kQ4_0, 96), 54u);
  EXPECT_EQ(row_bytes(TensorType::kQ6_K, 512), 420u);
  EXPECT_EQ(row_bytes(TensorType::kQ6_K, 480), 0u);
  EXPECT_EQ(row_bytes(TensorType::kI32, 32), 0u);
  EXPECT_EQ(row_bytes(TensorType::kOther, 32), 0u);
}

TEST(MultiplyVector, AgreesWithF64ForPlainTypes) {
  for (const TensorType type : kPlainTypes) {
    const RandomMatrix w = random_matrix(type, 300, 416);
    const std::vector<float> x = test::GaussianSource(9).vector(416);
    const std::vector<float> y = product_of_vector(w.matrix, x, 2);
    for (std::int64_t row = 0; row < 300; ++row) {
      const Expected exact = exact_product(w, row, x);
      EXPECT_NEAR(static_cast<double>(y[static_cast<std::size_t>(row)]), exact.value,
                  1e-6 * exact.magnitude);
    }
  }
}

// The products of every type are within `of_magnitude` of the sizes of their terms, and together
// within a relative `of_all`.
void expect_small_loss(ActivationBits bits, double of_magnitude, double of_all) {
  for (const tensors::BlockType& blocks : tensors::block_types()) {
    const std::int64_t n_cols = blocks.block_values == 32 ? 416 : 512;
    const RandomMatrix w = random_matrix(blocks.type, 300, n_cols);
    const std::vector<float> x = test::GaussianSource(9).vector(static_cast<std::size_t>(n_cols));
    const std::vector<float> y = product_of_vector(w.matrix, x, 2, bits);
    double errors = 0, products = 0;
    for (std::int64_t row = 0; row < 300; ++row) {
      const Expected exact = exact_product(w, row, x);
      const double error = static_cast<double>(y[static_cast<std::size_t>(row)]) - exact.value;
      EXPECT_LT(std::abs(error), of_magnitude * exact.magnitude);
      errors += error * error;
      products += exact.value * exact.value;
    }
    EXPECT_LT(std::sqrt(errors / products), of_all);
  }
}

// The finest of the types, Q8_0, is off by a relative 5e-3 itself. What x loses is at most half a
// code in each value, 1.5e-5 of the largest in its group.
TEST(MultiplyVector, LosesFarLessThanTheTypesThemselves) {
  expect_small_loss(ActivationBits::k16, 6e-5, 1e-4);
}

// Half a code is 3.9e-3 of the largest in its group, 257 times that of 16 bits.
TEST(MultiplyVector, LosesOneInAHundredAtMostWithEightBits) {
  expect_small_loss(ActivationBits::k8, 257 * 6e-5, 1e-2);
}

TEST(MultiplyVector, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const TensorType type : all_types()) {
    const RandomMatrix w = random_matrix(type, 1000, 512);
    const std::vector<float> x = test::GaussianSource(9).vector(512);
    const std::vector<float> one = product_of_vector(w.matrix, x, 1);
    EXPECT_EQ(product_of_vector(w.matrix, x, 2), one);
    EXPECT_EQ(product_of_vector(w.matrix, x, 3), one);
    const std::vector<float> of_bytes = product_of_vector(w.matrix, x, 1, ActivationBits::k8);
    EXPECT_EQ(product_of_vector(w.matrix, x, 3, ActivationBits::k8), of_bytes);
    EXPECT_EQ(of_bytes == one, std::ranges::find(kPlainTypes, type) != std::end(kPlainTypes));
  }
}

TEST(MultiplyVector, GivesPlainWeightsTheBitsOfTheirWidenedOnes) {
  for (const TensorType type : kPlainTypes) {
    const RandomMatrix w = random_matrix(type, 50, 96);
    std::vector<float> widened(50 * 96);
    load_rows(w.matrix, 0, 50, widened);
    const Matrix f32{TensorType::kF32, 50, 96, std::as_bytes(std::span(widened))};
    const std::vector<float> x = test::GaussianSource(9).vector(96);
    EXPECT_EQ(product_of_vector(w.matrix, x, 1), product_of_vector(f32, x, 1));
  }
}

TEST(MultiplyVector, TakesSeveralMatricesAtOnce) {
  const RandomMatrix a = random_matrix(TensorType::kF16, 700, 256);
  const RandomMatrix b = random_matrix(TensorType::kQ8_0, 5, 256);
  const RandomMatrix c = random_matrix(TensorType::kQ6_K, 1500, 256);
  const std::vector<float> x = test::GaussianSource(9).vector(256);
  std::vector<float> ya(700), yb(5), yc(1500);
  multiply_vector({{&a.matrix, ya.data()}, {&b.matrix, yb.data()}, {&c.matrix, yc.data()}}, x,
                  ActivationBits::k16, Workers(2));
  EXPECT_EQ(ya, product_of_vector(a.matrix, x, 1));
  EXPECT_EQ(yb, product_of_vector(b.matrix, x, 1));
  EXPECT_EQ(yc, product_of_vector(c.matrix, x, 1));
}

// Quantized weights multiply x in 16 bits: the bound of LosesFarLessThanTheTypesThemselves.
TEST(MultiplyChunk, AgreesWithF64ForEveryType) {
  for (const TensorType type : all_types()) {
    const double bound = tensors::find_block_type(type) == nullptr ? 1e-6 : 6e-5;
    const RandomMatrix w = random_matrix(type, 300, 256);
    const std::vector<float> x = test::GaussianSource(9).vector(5 * 256);
    const std::vector<float> y = product_of_matrix(w.matrix, 5, x, 2);
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t row = 0; row < 300; ++row) {
        const Expected exact =
            exact_product(w, row, std::span(x).subspan(static_cast<std::size_t>(i * 256), 256));
        EXPECT_NEAR(static_cast<double>(y[static_cast<std::size_t>(i * 300 + row)]), exact.value,
                    bound * exact.magnitude);
      }
    }
  }
}

TEST(MultiplyChunk, TakesAlignedF32InPlace) {
  const RandomMatrix w = random_matrix(TensorType::kF32, 40, 33);
  std::vector<float> aligned(40 * 33);
  load_rows(w.matrix, 0, 40, aligned);
  const Matrix in_place{TensorType::kF32, 40, 33, std::as_bytes(std::span(aligned))};
  const std::vector<float> x = test::GaussianSource(9).vector(4 * 33);
  EXPECT_EQ(product_of_matrix(in_place, 4, x, 1), product_of_matrix(w.matrix, 4, x, 1));
}

TEST(MultiplyChunk, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kF16}) {
    const RandomMatrix w = random_matrix(type, 1000, 384);
    const std::vector<float> x = test::GaussianSource(9).vector(17 * 384);
    const std::vector<float> one = product_of_matrix(w.matrix, 17, x, 1);
    EXPECT_EQ(product_of_matrix(w.matrix, 17, x, 2), one);
    EXPECT_EQ(product_of_matrix(w.matrix, 17, x, 3), one);
  }
}

TEST(MultiplyChunk, TakesSeveralMatricesAtOnce) {
  const RandomMatrix a = random_matrix(TensorType::kF16, 700, 256);
  const RandomMatrix b = random_matrix(TensorType::kQ8_0, 5, 256);
  const RandomMatrix c = random_matrix(TensorType::kQ6_K, 150, 256);
  const std::vector<float> x = test::GaussianSource(9).vector(3 * 256);
  std::vector<float> ya(3 * 700), yb(3 * 5), yc(3 * 150);
  multiply_chunk({{&a.matrix, ya.data()}, {&b.matrix, yb.data()}, {&c.matrix, yc.data()}}, 3, x,
                 Workers(2));
  EXPECT_EQ(ya, product_of_matrix(a.matrix, 3, x, 1));
  EXPECT_EQ(yb, product_of_matrix(b.matrix, 3, x, 1));
  EXPECT_EQ(yc, product_of_matrix(c.matrix, 3, x, 1));
}

TEST(Workers, RunEveryPieceOnce) {
  for (const unsigned n_threads : {1u, 2u, 5u}) {
    const Workers workers(n_threads);
    EXPECT_GE(workers.count(), 1u);
    EXPECT_LE(workers.count(), n_threads);
    for (const std::size_t n : {0u, 1u, 2u, 100u}) {
      std::vector<int> calls(n);
      workers.run(n, [&](std::size_t i) { ++calls[i]; });
      EXPECT_EQ(calls, std::vector<int>(n, 1));
    }
  }
}

TEST(Workers, NeverRunTwoPiecesOfALaneAtOnce) {
  const Workers workers(4);
  std::vector<std::size_t> sums(workers.count());  // plain memory: a race is the sanitizer's to see
  workers.run_in_slots(1000, [&](std::size_t i, std::size_t lane) { sums[lane] += i; });
  std::size_t total = 0;
  for (const std::size_t sum : sums) total += sum;
  EXPECT_EQ(total, 999u * 1000 / 2);
}

}  // namespace matrix_test
}  // namespace tqcache::model
