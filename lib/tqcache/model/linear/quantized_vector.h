#pragma once
// model/linear/quantized_vector.h: a vector quantized for products with quantized weights.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/model/linear/block_kernels.h"

namespace tqcache::model {

// Code: std::int16_t or std::int8_t.
template <class Code>
class QuantizedVector {
 public:
  QuantizedVector() = default;
  // Shapes:   x [n].
  // Requires: n is a multiple of 32.
  QuantizedVector(std::span<const float> x, const AllBlockKernels& kernels);

  QuantizedView<Code> view() const { return {codes_.data(), minus_sums_.data(), scales_.data()}; }

 private:
  std::vector<Code, AlignedAllocator<Code>> codes_;
  std::vector<std::int32_t, AlignedAllocator<std::int32_t>> minus_sums_;
  AlignedFloats scales_;
};

}  // namespace tqcache::model
