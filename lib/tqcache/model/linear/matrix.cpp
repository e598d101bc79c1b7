#include "tqcache/model/linear/matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernels.h"
#include "tqcache/model/linear/quantized_vector.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace {

using tensors::TensorType;

using tensors::find_block_type;

// Multiplications per task: a few microseconds, enough to pay for a task switch.
constexpr std::int64_t kProductsPerTask = 64 * 1024;

// Tasks have a multiple of the rows whose sums kernels fold together.
constexpr std::int64_t kRowsAtOnce = 4;

// Rows of plain weights that multiply_chunk widens at a time.
constexpr std::int64_t kSlabRows = 128;

// Vectors that multiply_chunk quantizes per task.
constexpr std::int64_t kVectorsPerTask = 16;

// Plain types, whose values are stored one by one.
struct PlainType {
  TensorType type;
  Dtype dtype;
  Kernels::Dot* Kernels::*dot;
};

constexpr std::array kPlainTypes = {
    PlainType{TensorType::kF32, Dtype::kF32, &Kernels::dot_f32},
    PlainType{TensorType::kF16, Dtype::kF16, &Kernels::dot_f16},
    PlainType{TensorType::kBF16, Dtype::kBF16, &Kernels::dot_bf16},
};

const PlainType* find_plain_type(TensorType type) {
  const auto found = std::ranges::find(kPlainTypes, type, &PlainType::type);
  return found == kPlainTypes.end() ? nullptr : &*found;
}

const std::byte* row_at(const Matrix& matrix, std::int64_t row) {
  return matrix.bytes.data() +
         to_size(row) * row_bytes(matrix.type, static_cast<std::uint64_t>(matrix.n_cols));
}

// Rows [first, first + count) of one product.
struct Task {
  const Product* product;
  std::int64_t first;
  std::int64_t count;
};

std::int64_t rows_per_task(const Matrix& matrix) {
  const std::int64_t rows = kProductsPerTask / std::max<std::int64_t>(1, matrix.n_cols);
  return std::max<std::int64_t>(kRowsAtOnce, rows / kRowsAtOnce * kRowsAtOnce);
}

std::int64_t task_count(const Matrix& matrix) {
  const std::int64_t rows = rows_per_task(matrix);
  return (matrix.n_rows + rows - 1) / rows;
}

Task find_task(std::initializer_list<Product> products, std::int64_t index) {
  const Product* product = products.begin();
  for (; index >= task_count(*product->matrix); ++product) index -= task_count(*product->matrix);
  const std::int64_t rows = rows_per_task(*product->matrix);
  return {product, index * rows, std::min(rows, product->matrix->n_rows - index * rows)};
}

// One vector as f32 and quantized; quantized only if a matrix needs it.
struct Input {
  std::span<const float> plain;
  std::variant<QuantizedVector<std::int16_t>, QuantizedVector<std::int8_t>> quantized;
};

Input make_input(std::initializer_list<Product> products, std::span<const float> x,
                 ActivationBits bits) {
  Input input = {x, {}};
  const bool is_wanted = std::ranges::any_of(products, [](const Product& product) {
    return find_block_type(product.matrix->type) != nullptr;
  });
  if (!is_wanted) return input;
  if (bits == ActivationBits::k8) {
    input.quantized = QuantizedVector<std::int8_t>(x, best_blocks());
  } else {
    input.quantized = QuantizedVector<std::int16_t>(x, best_blocks());
  }
  return input;
}

template <class Code>
void multiply_blocks(const Task& task, const QuantizedVector<Code>& x, std::size_t n_groups) {
  const Matrix& matrix = *task.product->matrix;
  const tensors::BlockType* const first = tensors::block_types().data();
  const auto index = static_cast<std::size_t>(find_block_type(matrix.type) - first);
  best_blocks().of<Code>().multiply[index](row_at(matrix, task.first), to_size(task.count),
                                           x.view(), n_groups, task.product->y + task.first);
}

void multiply_plain(const Task& task, const PlainType& plain, std::span<const float> x) {
  const Matrix& matrix = *task.product->matrix;
  Kernels::Dot* const dot = best_kernels().*(plain.dot);
  const std::uint64_t bytes = row_bytes(matrix.type, static_cast<std::uint64_t>(matrix.n_cols));
  const std::byte* row = row_at(matrix, task.first);
  for (std::int64_t i = 0; i < task.count; ++i, row += bytes) {
    task.product->y[task.first + i] = dot(row, x.data(), x.size());
  }
}

void run_task(const Task& task, const Input& x) {
  if (const PlainType* plain = find_plain_type(task.product->matrix->type)) {
    return multiply_plain(task, *plain, x.plain);
  }
  std::visit([&](const auto& codes) { multiply_blocks(task, codes, x.plain.size() / kGroup); },
             x.quantized);
}

// The pieces of a matrix that multiply_chunk unpacks or widens.
std::int64_t piece_rows(const Matrix& matrix) {
  return find_block_type(matrix.type) != nullptr ? static_cast<std::int64_t>(kPanelRows)
                                                 : kSlabRows;
}

std::int64_t piece_count(const Matrix& matrix) {
  return (matrix.n_rows + piece_rows(matrix) - 1) / piece_rows(matrix);
}

// Memory of a thread for one piece: f32 of plain weights, or a panel (PanelView).
struct Piece {
  AlignedFloats plain;
  std::vector<std::int8_t, AlignedAllocator<std::int8_t>> codes;
  AlignedFloats scales;
  AlignedFloats minima;
};

// Rows as the BLAS needs them: in place if they are aligned f32, otherwise widened to `slab`.
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

// Rows [first, first + count) of plain weights.
void multiply_plain_piece(const Product& product, std::int64_t first, std::int64_t count,
                          std::int64_t n, std::span<const float> x, Piece& piece) {
  const Matrix& matrix = *product.matrix;
  multiply_transposed(n, count, matrix.n_cols, 1.0f, {x.data(), matrix.n_cols},
                      {f32_rows(matrix, first, count, piece.plain), matrix.n_cols},
                      {product.y + first, matrix.n_rows});
}

// Rows [first, first + count) of quantized weights, of which a panel has room for 16.
void multiply_quantized_piece(const Product& product, std::int64_t first, std::int64_t count,
                              const ChunkView& x, Piece& piece) {
  const Matrix& matrix = *product.matrix;
  const tensors::BlockType* const types = tensors::block_types().data();
  const auto type = static_cast<std::size_t>(find_block_type(matrix.type) - types);
  const RunShape shape = run_shapes()[type];
  const std::size_t n_cols = to_size(matrix.n_cols);
  const std::size_t n_scales = n_cols / shape.run * kPanelRows;
  piece.codes.resize(n_cols * kPanelRows);
  piece.scales.resize(n_scales);
  piece.minima.resize(shape.has_minimum ? n_scales : 0);
  const ChunkKernels& kernels = *best_kernels().chunks;
  kernels.pack[type](row_at(matrix, first), to_size(count), n_cols / kGroup, piece.codes.data(),
                     piece.scales.data(), piece.minima.data());
  const PanelView panel = {
      piece.codes.data(), piece.scales.data(), shape.has_minimum ? piece.minima.data() : nullptr,
      shape.run,          n_cols / kGroup,     to_size(count)};
  kernels.multiply(panel, x, product.y + first, to_size(matrix.n_rows));
}

}  // namespace

std::uint64_t row_bytes(TensorType type, std::uint64_t n_cols) {
  if (const PlainType* plain = find_plain_type(type)) return dtype_size(plain->dtype) * n_cols;
  const tensors::BlockType* blocks = find_block_type(type);
  if (blocks == nullptr || n_cols % blocks->block_values != 0) return 0;
  return n_cols / blocks->block_values * blocks->block_bytes;
}

void load_rows(const Matrix& matrix, std::int64_t first, std::int64_t count, std::span<float> out) {
  out = out.first(to_size(count * matrix.n_cols));
  const std::byte* rows = row_at(matrix, first);  // rows are contiguous
  if (const PlainType* plain = find_plain_type(matrix.type)) {
    return load_f32(plain->dtype, rows, out);
  }
  find_block_type(matrix.type)->widen(rows, out);
}

void multiply_vector(std::initializer_list<Product> products, std::span<const float> x,
                     ActivationBits bits, const Workers& workers) {
  std::int64_t n_tasks = 0;
  for (const Product& product : products) {
    assert(to_size(product.matrix->n_cols) == x.size());
    n_tasks += task_count(*product.matrix);
  }
  const Input input = make_input(products, x, bits);
  workers.run(to_size(n_tasks), [&](std::size_t i) {
    run_task(find_task(products, static_cast<std::int64_t>(i)), input);
  });
}

void multiply_chunk(std::initializer_list<Product> products, std::int64_t n,
                    std::span<const float> x, const Workers& workers) {
  const std::int64_t n_cols = products.begin()->matrix->n_cols;
  assert(x.size() == to_size(n * n_cols));
  const bool has_blocks = std::ranges::any_of(products, [](const Product& product) {
    return find_block_type(product.matrix->type) != nullptr;
  });
  QuantizedChunk quantized(has_blocks ? to_size(n) : 0, has_blocks ? to_size(n_cols) : 0);
  if (has_blocks) {
    workers.run(to_size((n + kVectorsPerTask - 1) / kVectorsPerTask), [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) * kVectorsPerTask;
      for (std::int64_t i = first; i < std::min(first + kVectorsPerTask, n); ++i) {
        quantized.set(to_size(i), x.data() + i * n_cols, best_blocks());
      }
    });
  }
  std::int64_t n_pieces = 0;
  for (const Product& product : products) {
    assert(product.matrix->n_cols == n_cols);
    n_pieces += piece_count(*product.matrix);
  }
  std::vector<Piece> pieces(workers.count());
  workers.run_in_slots(to_size(n_pieces), [&](std::size_t i, std::size_t slot) {
    const Product* product = products.begin();
    auto index = static_cast<std::int64_t>(i);
    for (; index >= piece_count(*product->matrix); ++product)
      index -= piece_count(*product->matrix);
    const std::int64_t rows = piece_rows(*product->matrix);
    const std::int64_t first = index * rows;
    const std::int64_t count = std::min(rows, product->matrix->n_rows - first);
    if (find_block_type(product->matrix->type) != nullptr) {
      multiply_quantized_piece(*product, first, count, quantized.view(), pieces[slot]);
    } else {
      multiply_plain_piece(*product, first, count, n, x, pieces[slot]);
    }
  });
}

}  // namespace tqcache::model
