#include "tqcache/codec/kernels/row_transform.h"

#include <cassert>

namespace tqcache::codec {
namespace {

// Computes the components of all rows from `first` on, one at a time.
void multiply_rest(const RowTransformTask& task, std::size_t first) {
  for (std::size_t row = task.is_lower ? first : 0; row < task.n; ++row) {
    float* const __restrict sums = task.out + row * task.dim;
    for (std::size_t i = first; i < task.dim; ++i) sums[i] = 0.0f;
    for (std::size_t j = 0; j < task.depth; ++j) {
      const float x = task.in[row * task.row_stride + j * task.depth_stride];
      const float* const __restrict factors = task.matrix + j * task.dim;
      for (std::size_t i = first; i < task.dim; ++i) sums[i] += x * factors[i];
    }
  }
}

void multiply(const RowTransformTask& task, const Kernels& kernels) {
  const std::size_t done = kernels.multiply_rows(task);
  if (done < task.dim) multiply_rest(task, done);
}

}  // namespace

void multiply_rows(std::span<const float> in, std::span<const float> matrix, std::size_t dim,
                   std::span<float> out, const Kernels& kernels) {
  assert(in.size() == out.size() && in.size() % dim == 0 && matrix.size() == dim * dim);
  multiply({.in = in.data(),
            .row_stride = dim,
            .depth_stride = 1,
            .matrix = matrix.data(),
            .out = out.data(),
            .n = in.size() / dim,
            .depth = dim,
            .dim = dim},
           kernels);
}

void multiply_columns(std::span<const float> a, std::span<const float> b, std::size_t dim,
                      std::span<float> out, const Kernels& kernels) {
  assert(a.size() == b.size() && a.size() % dim == 0 && out.size() == dim * dim);
  multiply({.in = a.data(),
            .row_stride = 1,
            .depth_stride = dim,
            .matrix = b.data(),
            .out = out.data(),
            .n = dim,
            .depth = a.size() / dim,
            .dim = dim,
            .is_lower = true},
           kernels);
}

}  // namespace tqcache::codec
