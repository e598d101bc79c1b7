#pragma once
// codec/kernels/row_transform.h: products of small matrices, in the order of additions that the
// format requires.
//
// Each element of a result is a sum of its own, so registers of any width add in the same order.
//
// Spec: docs/reference/codec.md §10.

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// out[t][i] = sum over j of in[t][j] * matrix[j][i], j ascending from +0, each product and each sum
// rounded to f32.
//
// Shapes: in, out [n, dim], not the same memory; matrix [dim, dim].
// Bytes:  identical on every CPU.
void multiply_rows(std::span<const float> in, std::span<const float> matrix, std::size_t dim,
                   std::span<float> out, const Kernels& kernels = best_kernels());

// out[i][j] = sum over t of a[t][i] * b[t][j], in the same way, for j up to i; entries above the
// diagonal are undefined.
//
// Shapes: a, b [n, dim]; out [dim, dim].
// Bytes:  identical on every CPU, on and below the diagonal.
void multiply_columns(std::span<const float> a, std::span<const float> b, std::size_t dim,
                      std::span<float> out, const Kernels& kernels = best_kernels());

// A buffer for n head vectors of f32, aligned for kernels. Not zeroed: a block of them is up to 1
// MiB, and every value is written before it is read.
class RowBuffer {
 public:
  RowBuffer(std::size_t n, std::size_t dim)
      : n_(n), dim_(dim), values_(AlignedAllocator<float>().allocate(n * dim)) {}

  std::size_t size() const { return n_; }
  float* data() { return values_.get(); }
  const float* data() const { return values_.get(); }
  std::span<float> operator[](std::size_t i) { return {data() + i * dim_, dim_}; }
  std::span<float> all() { return {data(), n_ * dim_}; }
  std::span<const float> all() const { return {data(), n_ * dim_}; }

 private:
  struct Free {
    void operator()(float* values) const { AlignedAllocator<float>().deallocate(values, 0); }
  };

  std::size_t n_, dim_;
  std::unique_ptr<float[], Free> values_;
};

}  // namespace tqcache::codec
