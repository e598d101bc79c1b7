#pragma once
// codec/kernels/row_buffer.h: memory for head vectors of f32 on their way from one step to the next.
//
// Aligned as vector units like it. Not zeroed: a block of them is up to 1 MiB, and every value is
// written before it is read.

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "tqcache/base/aligned.h"

namespace tqcache::codec {

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
