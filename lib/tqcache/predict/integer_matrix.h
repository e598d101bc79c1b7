#pragma once
// predict/integer_matrix.h: exact products of 16-bit integers with a matrix of bytes.
//
// Sums are 32-bit integers that cannot overflow, so every order of additions gives the same result
// on every CPU.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::predict {

// The largest magnitude of an input, and the largest number of rows: 2047 * 127 * 8192 < 2^31.
inline constexpr std::int32_t kMaxInput = 2047;
inline constexpr std::size_t kMaxMatrixRows = 8192;

using Int16Rows = std::vector<std::int16_t, AlignedAllocator<std::int16_t>>;
using Int32Rows = std::vector<std::int32_t, AlignedAllocator<std::int32_t>>;

class IntegerMatrix {
 public:
  IntegerMatrix() = default;
  // Shapes: values [n_rows, n_cols]. Requires: n_rows <= kMaxMatrixRows; no value is -128.
  IntegerMatrix(std::size_t n_rows, std::size_t n_cols, std::span<const std::int8_t> values);

  std::size_t n_rows() const { return n_rows_; }
  // Values between two rows of the input, and of the result.
  std::size_t input_stride() const { return 2 * n_pairs_; }
  std::size_t output_stride() const { return 16 * n_groups_; }

  // out = x * matrix. Shapes: x [n, input_stride()], where an odd last column is 0; out
  // [n, output_stride()]. Requires: no input is beyond kMaxInput.
  void multiply(const std::int16_t* x, std::size_t n, std::int32_t* out,
                codec::Isa isa = codec::best_kernels().isa) const;

 private:
  std::size_t n_rows_ = 0;
  std::size_t n_pairs_ = 0;   // of rows
  std::size_t n_groups_ = 0;  // of sixteen columns
  Int16Rows values_;          // [n_groups, n_pairs, 16, 2]
};

}  // namespace tqcache::predict
