// Rows times a matrix (docs/reference/codec.md §10).

#include "tqcache/codec/kernels/row_transform.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/gaussian.h"

namespace tqcache::codec {
namespace row_map_test {

TEST(RowTransform, AddsAsItIsWrittenOnEveryTable) {
  constexpr std::size_t kRows = 21;  // tiles, and rows that are left
  for (const std::size_t dim : {1u, 8u, 32u, 40u, 100u, 129u}) {
    test::GaussianSource source(dim);
    const std::vector<float> in = source.vector(kRows * dim), matrix = source.vector(dim * dim);
    std::vector<float> expected(in.size());
    for (std::size_t t = 0; t < kRows; ++t) {
      for (std::size_t i = 0; i < dim; ++i) {
        float sum = 0;
        for (std::size_t j = 0; j < dim; ++j) sum += in[t * dim + j] * matrix[j * dim + i];
        expected[t * dim + i] = sum;
      }
    }
    for (const Kernels* kernels : all_kernels()) {
      std::vector<float> out(in.size(), 99.0f);
      multiply_rows(in, matrix, dim, out, *kernels);
      EXPECT_EQ(out, expected) << kernels->name << ", " << dim;
    }
  }
}

TEST(RowTransform, MultipliesColumnsUpToTheDiagonal) {
  for (const std::size_t dim : {1u, 8u, 33u, 40u, 100u, 129u}) {
    for (const std::size_t n : {1u, 9u, 256u}) {
      test::GaussianSource source(dim + n);
      const std::vector<float> a = source.vector(n * dim), b = source.vector(n * dim);
      for (const Kernels* kernels : all_kernels()) {
        std::vector<float> out(dim * dim);
        multiply_columns(a, b, dim, out, *kernels);
        for (std::size_t i = 0; i < dim; ++i) {
          for (std::size_t j = 0; j <= i; ++j) {
            float sum = 0;
            for (std::size_t t = 0; t < n; ++t) sum += a[t * dim + i] * b[t * dim + j];
            ASSERT_EQ(out[i * dim + j], sum) << kernels->name << " " << i << ", " << j;
          }
        }
      }
    }
  }
}

}  // namespace row_map_test
}  // namespace tqcache::codec
