#include "tqcache/model/linear/matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <variant>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/block_kernels.h"
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

// Rows that multiply_matrix widens at a time.
constexpr std::int64_t kSlabRows = 128;

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

void multiply_matrix(const Product& product, std::int64_t n, std::span<const float> x,
                     const Workers& workers) {
  const Matrix& matrix = *product.matrix;
  assert(x.size() == to_size(n * matrix.n_cols));
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
