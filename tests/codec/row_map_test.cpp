// Rows times a matrix (docs/codec.md §10).

#include "tqcache/codec/row_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/gaussian.h"

namespace tqcache::codec {
namespace {

TEST(RowMap, AddsAsItIsWrittenOnEveryTable) {
  for (const std::size_t dim : {1u, 8u, 32u, 40u, 100u, 129u}) {
    test::GaussianSource source(dim);
    std::vector<float> in(7 * dim), matrix(dim * dim);
    for (float& x : in) x = static_cast<float>(source.next());
    for (float& x : matrix) x = static_cast<float>(source.next());
    std::vector<float> expected(in.size());
    for (std::size_t t = 0; t < 7; ++t) {
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

}  // namespace
}  // namespace tqcache::codec
