#pragma once
// model/linear/matrix.h: a weight matrix in the layout of its file, and products with it.

#include <cstdint>
#include <initializer_list>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

// y = W x, with W in the layout of its file: F32, F16, BF16, or a type of tensors/block_types.h
// whose GGML blocks divide a row. A view, at any alignment.
struct Matrix {
  tensors::TensorType type = tensors::TensorType::kF32;
  std::int64_t n_rows = 0;  // outputs
  std::int64_t n_cols = 0;  // inputs
  ByteView bytes;           // [n_rows, n_cols] of type
};

// Bytes of one row; 0 for a type or a length that a Matrix cannot have.
std::uint64_t row_bytes(tensors::TensorType type, std::uint64_t n_cols);

// Widens rows [first, first + count) to f32. Shapes: out [count, n_cols].
void load_rows(const Matrix& matrix, std::int64_t first, std::int64_t count, std::span<float> out);

// A matrix and the destination of its product. Several may share one x.
struct Product {
  const Matrix* matrix;
  float* y;  // [n, n_rows]
};

// y = W x for one x. Quantized weights multiply x as integers of `bits`. The sum of a row has a
// fixed order (model/linear/product_kernels.h, model/linear/block_kernels.h): the same bits for any
// number of threads and on any CPU. Shapes: x [n_cols]; n is 1.
void multiply_vector(std::initializer_list<Product> products, std::span<const float> x,
                     ActivationBits bits, const Workers& workers);

// Y = X W^T for several x, by best_products() (model/linear/products.h). Quantized weights multiply
// x there only in AMX; without, as integers of 16 bits, in the order of
// model/linear/chunk_kernels.h. The same bits for any number of threads, and without AMX on any
// CPU. W is unpacked, widened or packed piece by piece, never as a whole.
// Shapes: x [n, n_cols].
void multiply_chunk(std::initializer_list<Product> products, std::int64_t n,
                    std::span<const float> x, const Workers& workers);

// Products of the rows of some tokens with matrices, by the method that suits their number.
//
// One token goes through multiply_vector, several go through multiply_chunk.
// Shapes: rows [n, n_cols] at least, where n_cols is that of all matrices.
inline void multiply_rows(std::int64_t n, std::span<const float> rows,
                          std::initializer_list<Product> products, ActivationBits bits,
                          const Workers& workers) {
  const std::int64_t n_cols = products.begin()->matrix->n_cols;
  const std::span<const float> used = rows.first(static_cast<std::size_t>(n * n_cols));
  if (n == 1) return multiply_vector(products, used, bits, workers);
  multiply_chunk(products, n, used, workers);
}

}  // namespace tqcache::model
