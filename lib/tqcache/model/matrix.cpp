#include "tqcache/model/matrix.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "tqcache/base/aligned.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/half.h"
#include "tqcache/model/blas.h"
#include "tqcache/model/kernels.h"

namespace tqcache::model {
namespace {

using tensors::TensorType;

constexpr std::size_t kQ8Block = 32;                 // values
constexpr std::size_t kQ8BlockBytes = 2 + kQ8Block;  // f16 scale, codes

// Products of two numbers that are worth a task switch: some microseconds.
constexpr std::int64_t kProductsPerPiece = 64 * 1024;

// Rows that multiply_matrix widens at a time.
constexpr std::int64_t kSlabRows = 128;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

void load_q8_0(const std::byte* blocks, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += kQ8Block, blocks += kQ8BlockBytes) {
    std::uint16_t half;
    std::int8_t codes[kQ8Block];
    std::memcpy(&half, blocks, sizeof(half));
    std::memcpy(codes, blocks + sizeof(half), kQ8Block);
    const float scale = f16_to_f32(half);
    for (std::size_t l = 0; l < kQ8Block; ++l) out[i + l] = scale * static_cast<float>(codes[l]);
  }
}

Kernels::Dot* dot_kernel(const Kernels& kernels, TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return kernels.dot_f16;
    case TensorType::kBF16:
      return kernels.dot_bf16;
    case TensorType::kQ8_0:
      return kernels.dot_q8_0;
    default:
      assert(type == TensorType::kF32);
      return kernels.dot_f32;
  }
}

const std::byte* row_at(const Matrix& matrix, std::int64_t row) {
  return matrix.bytes.data() +
         to_size(row) * row_bytes(matrix.type, static_cast<std::uint64_t>(matrix.n_cols));
}

// Rows [first, first + count) of one product.
struct Piece {
  const Product* product;
  std::int64_t first;
  std::int64_t count;
};

std::int64_t rows_per_piece(const Matrix& matrix) {
  return std::max<std::int64_t>(1, kProductsPerPiece / std::max<std::int64_t>(1, matrix.n_cols));
}

std::int64_t piece_count(const Matrix& matrix) {
  const std::int64_t rows = rows_per_piece(matrix);
  return (matrix.n_rows + rows - 1) / rows;
}

Piece find_piece(std::initializer_list<Product> products, std::int64_t index) {
  const Product* product = products.begin();
  for (; index >= piece_count(*product->matrix); ++product) index -= piece_count(*product->matrix);
  const std::int64_t rows = rows_per_piece(*product->matrix);
  return {product, index * rows, std::min(rows, product->matrix->n_rows - index * rows)};
}

void multiply_piece(const Piece& piece, std::span<const float> x, const Kernels& kernels) {
  const Matrix& matrix = *piece.product->matrix;
  Kernels::Dot* const dot = dot_kernel(kernels, matrix.type);
  for (std::int64_t row = piece.first; row < piece.first + piece.count; ++row) {
    piece.product->y[row] = dot(row_at(matrix, row), x.data(), x.size());
  }
}

// Rows as the BLAS wants them: in place when they are aligned f32, otherwise widened to `slab`.
const float* f32_rows(const Matrix& matrix, std::int64_t first, std::int64_t count,
                      AlignedFloats& slab) {
  const std::byte* bytes = row_at(matrix, first);
  if (matrix.type == TensorType::kF32 &&
      reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(bytes);
  }
  slab.resize(to_size(count * matrix.n_cols));
  load_rows(matrix, first, count, slab);
  return slab.data();
}

}  // namespace

std::uint64_t row_bytes(TensorType type, std::uint64_t n_cols) {
  switch (type) {
    case TensorType::kF32:
      return 4 * n_cols;
    case TensorType::kF16:
    case TensorType::kBF16:
      return 2 * n_cols;
    case TensorType::kQ8_0:
      return n_cols % kQ8Block == 0 ? n_cols / kQ8Block * kQ8BlockBytes : 0;
    default:
      return 0;
  }
}

void load_rows(const Matrix& matrix, std::int64_t first, std::int64_t count, std::span<float> out) {
  out = out.first(to_size(count * matrix.n_cols));
  const std::byte* rows = row_at(matrix, first);  // rows follow each other without a gap
  switch (matrix.type) {
    case TensorType::kF16:
      return load_f32(Dtype::kF16, rows, out);
    case TensorType::kBF16:
      return load_f32(Dtype::kBF16, rows, out);
    case TensorType::kQ8_0:
      return load_q8_0(rows, out);
    default:
      assert(matrix.type == TensorType::kF32);
      return load_f32(Dtype::kF32, rows, out);
  }
}

void multiply_vector(std::initializer_list<Product> products, std::span<const float> x,
                     const Workers& workers) {
  std::int64_t n_pieces = 0;
  for (const Product& product : products) {
    assert(to_size(product.matrix->n_cols) == x.size());
    n_pieces += piece_count(*product.matrix);
  }
  const Kernels& kernels = best_kernels();
  workers.run(to_size(n_pieces), [&](std::size_t i) {
    multiply_piece(find_piece(products, static_cast<std::int64_t>(i)), x, kernels);
  });
}

void multiply_matrix(const Product& product, std::int64_t n, std::span<const float> x,
                     const Workers& workers) {
  const Matrix& matrix = *product.matrix;
  assert(x.size() == to_size(n * matrix.n_cols));
  use_blas_in_one_thread();
  const std::int64_t n_slabs = (matrix.n_rows + kSlabRows - 1) / kSlabRows;
  workers.run(to_size(n_slabs), [&](std::size_t i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kSlabRows;
    const std::int64_t count = std::min(kSlabRows, matrix.n_rows - first);
    AlignedFloats slab;
    multiply_transposed(n, count, matrix.n_cols, 1.0f, {x.data(), matrix.n_cols},
                        {f32_rows(matrix, first, count, slab), matrix.n_cols},
                        {product.y + first, matrix.n_rows});
  });
}

}  // namespace tqcache::model
