#include "tqcache/model/linear/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/model/linear/tiles.h"

namespace tqcache::model {
namespace products_test {

// Those of every instruction set, and of AMX if it is there.
std::vector<const MatrixProducts*> all_products() {
  std::vector<const MatrixProducts*> all;
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    all.push_back(products_of(kernels->isa));
  }
  if (best_tiles() != nullptr) all.push_back(best_tiles());
  return all;
}

ConstRows rows_of(const std::vector<float>& values, std::size_t n_columns) {
  return {values.data(), static_cast<std::int64_t>(n_columns)};
}

// Sizes below, at and beyond those of tiles, of panels (32 columns) and of pieces (256 terms).
struct Shape {
  std::size_t m, n, depth;
};
constexpr Shape kShapes[] = {{1, 1, 1},     {3, 5, 7},     {2, 16, 32},    {8, 32, 256},
                             {9, 33, 257},  {16, 17, 33},  {31, 32, 96},   {33, 47, 70},
                             {17, 70, 600}, {64, 64, 256}, {65, 100, 576}, {5, 1, 1000}};

constexpr float kNobodys = 77;  // behind the end of rows

// A product [m, n + 3] of whole factors.
std::vector<float> multiply_all(const MatrixProducts& products, const Shape& shape,
                                const std::vector<float>& a, const std::vector<float>& b,
                                std::size_t parts_a, std::size_t parts_b) {
  const auto [m, n, depth] = shape;
  AlignedBytes left(products.size(m, depth, parts_a)), right(products.size(n, depth, parts_b));
  products.pack_left(rows_of(a, depth), m, depth, 1.0f, parts_a, left.data());
  products.pack_right(rows_of(b, depth), n, depth, parts_b, right.data());
  std::vector<float> y(m * (n + 3), kNobodys);
  products.multiply({left.data(), depth, parts_a}, {right.data(), depth, parts_b}, m, n, depth,
                    y.data(), n + 3);
  return y;
}

// The larger of the errors of a product, relative to the sizes of the terms of each sum.
double worst_error(const MatrixProducts& products, const Shape& shape, const std::vector<float>& a,
                   const std::vector<float>& b, std::size_t parts_a, std::size_t parts_b) {
  const auto [m, n, depth] = shape;
  const std::vector<float> y = multiply_all(products, shape, a, b, parts_a, parts_b);
  double worst = 0;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n + 3; ++j) {
      const float found = y[i * (n + 3) + j];
      if (j >= n) {
        EXPECT_EQ(found, kNobodys) << "written behind a row";
        continue;
      }
      double sum = 0, size = 1e-30;
      for (std::size_t k = 0; k < depth; ++k) {
        const double term = double{a[i * depth + k]} * double{b[j * depth + k]};
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(double{found} - sum) / size);
    }
  }
  return worst;
}

// The bounds of the table in tiles.h, and the rounding of sums in f32.
TEST(Products, HaveTheStatedErrors) {
  for (const MatrixProducts* products : all_products()) {
    SCOPED_TRACE(products->name);
    for (const Shape& shape : kShapes) {
      const std::vector<float> a = test::GaussianSource(1).vector(shape.m * shape.depth);
      const std::vector<float> b = test::GaussianSource(2).vector(shape.n * shape.depth);
      std::vector<float> f16 = b, bf16 = b;
      for (float& value : f16) value = f16_to_f32(f32_to_f16(value));
      for (float& value : bf16) value = bf16_to_f32(f32_to_bf16(value));
      EXPECT_LT(worst_error(*products, shape, a, b, 3, 3), 1e-6) << shape.depth;
      EXPECT_LT(worst_error(*products, shape, a, f16, 3, 2), 1e-6) << shape.depth;
      EXPECT_LT(worst_error(*products, shape, a, bf16, 3, 1), 1e-6) << shape.depth;
      EXPECT_LT(worst_error(*products, shape, a, b, 2, 2), std::ldexp(1.0, -15)) << shape.depth;
    }
  }
}

TEST(Products, AllInstructionSetsGiveTheBitsOfTheScalarOne) {
  const MatrixProducts& scalar = *products_of(codec::Isa::kScalar);
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (const Shape& shape : kShapes) {
      const std::vector<float> a = test::GaussianSource(11).vector(shape.m * shape.depth);
      const std::vector<float> b = test::GaussianSource(12).vector(shape.n * shape.depth);
      EXPECT_EQ(multiply_all(*products_of(kernels->isa), shape, a, b, 1, 1),
                multiply_all(scalar, shape, a, b, 1, 1))
          << kernels->name << ", " << shape.depth << " terms";
    }
  }
}

// So a prompt has the same keys and values in whatever chunks it is read.
TEST(Products, AValueDoesNotDependOnTheOtherRowsAndColumns) {
  constexpr Shape kWhole = {37, 75, 300};
  const std::vector<float> a = test::GaussianSource(13).vector(kWhole.m * kWhole.depth);
  const std::vector<float> b = test::GaussianSource(14).vector(kWhole.n * kWhole.depth);
  for (const MatrixProducts* products : all_products()) {
    const std::vector<float> whole = multiply_all(*products, kWhole, a, b, 3, 3);
    for (const std::size_t row : {0u, 7u, 36u}) {
      const std::vector<float> one(
          a.begin() + static_cast<std::ptrdiff_t>(row * kWhole.depth),
          a.begin() + static_cast<std::ptrdiff_t>((row + 1) * kWhole.depth));
      const std::vector<float> alone = multiply_all(*products, {1, 40, kWhole.depth}, one, b, 3, 3);
      for (std::size_t j = 0; j < 40; ++j) {
        EXPECT_EQ(alone[j], whole[row * (kWhole.n + 3) + j]) << products->name << ", " << row;
      }
    }
  }
}

TEST(Products, PackTheSameFromColumnsAndFromRows) {
  for (const MatrixProducts* products : all_products()) {
    for (const auto& [m, n, depth] : kShapes) {
      const std::vector<float> b = test::GaussianSource(3).vector(n * depth);
      std::vector<float> columns(n * depth);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t k = 0; k < depth; ++k) columns[k * n + i] = b[i * depth + k];
      }
      for (const std::size_t parts : {1u, 2u, 3u}) {
        AlignedBytes of_rows(products->size(n, depth, parts), std::byte{1});
        AlignedBytes of_columns(of_rows.size(), std::byte{2});
        products->pack_right(rows_of(b, depth), n, depth, parts, of_rows.data());
        products->pack_columns(rows_of(columns, n), n, depth, parts, of_columns.data());
        EXPECT_EQ(of_rows, of_columns) << products->name << ": " << n << ", " << depth;
      }
    }
  }
}

TEST(Products, MultiplyFromTheMiddleOfFactors) {
  constexpr std::size_t kM = 70, kN = 96, kDepth = 160;
  const std::vector<float> a = test::GaussianSource(5).vector(kM * kDepth);
  const std::vector<float> b = test::GaussianSource(6).vector(kN * kDepth);
  for (const MatrixProducts* products : all_products()) {
    AlignedBytes left(products->size(kM, kDepth, 3)), right(products->size(kN, kDepth, 2));
    products->pack_left(rows_of(a, kDepth), kM, kDepth, 0.5f, 3, left.data());
    products->pack_right(rows_of(b, kDepth), kN, kDepth, 2, right.data());
    // Rows 32 to 70 of a, 64 to 96 of b, and values 96 to 160 of both.
    std::vector<float> y(38 * 32);
    products->multiply(left_from(*products, {left.data(), kDepth, 3}, 32, 96),
                       right_from(*products, {right.data(), kDepth, 2}, 64, 96), 38, 32, 64,
                       y.data(), 32);
    for (std::size_t i = 0; i < 38; ++i) {
      for (std::size_t j = 0; j < 32; ++j) {
        double sum = 0;
        for (std::size_t k = 96; k < kDepth; ++k) {
          sum += 0.5 * double{a[(32 + i) * kDepth + k]} * double{b[(64 + j) * kDepth + k]};
        }
        EXPECT_NEAR(double{y[i * 32 + j]}, sum, 1e-3) << products->name;
      }
    }
  }
}

TEST(Products, ShowValuesThatAreNotFinite) {
  for (const MatrixProducts* products : all_products()) {
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> a(3 * 40, 1.0f);
      const std::vector<float> b(2 * 40, 1.0f);
      a[40 + 7] = value;
      const std::vector<float> y = multiply_all(*products, {3, 2, 40}, a, b, 3, 3);
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 2; ++j) {
          EXPECT_EQ(std::isfinite(y[i * 5 + j]), i != 1) << products->name << ": " << i;
        }
      }
    }
  }
}

// Rows of all three matrices that lie apart, and are not aligned.
TEST(Products, OfMatricesThatMeetOnce) {
  constexpr std::int64_t m = 9, n = 70, k = 300, more = 3;
  const std::vector<float> a = test::GaussianSource(7).vector(m * (k + more));
  const std::vector<float> rows = test::GaussianSource(8).vector(n * (k + more));
  std::vector<float> columns(k * (n + more));
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t t = 0; t < k; ++t) {
      columns[static_cast<std::size_t>(t * (n + more) + j)] =
          rows[static_cast<std::size_t>(j * (k + more) + t)];
    }
  }
  std::vector<float> transposed(m * (n + more), kNobodys), plain(transposed);
  multiply_transposed(m, n, k, {a.data(), k + more}, {rows.data(), k + more},
                      {transposed.data(), n + more});
  multiply_matrices(m, n, k, {a.data(), k + more}, {columns.data(), n + more},
                    {plain.data(), n + more});
  EXPECT_EQ(transposed, plain);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n + more; ++j) {
      const float got = plain[static_cast<std::size_t>(i * (n + more) + j)];
      if (j >= n) {
        EXPECT_EQ(got, kNobodys);
        continue;
      }
      double sum = 0, size = 0;
      for (std::int64_t t = 0; t < k; ++t) {
        const double term = double{a[static_cast<std::size_t>(i * (k + more) + t)]} *
                            double{rows[static_cast<std::size_t>(j * (k + more) + t)]};
        sum += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(double{got}, sum, 1e-6 * size);
    }
  }
}

}  // namespace products_test
}  // namespace tqcache::model
