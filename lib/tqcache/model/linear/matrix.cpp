#include "tqcache/model/linear/matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/model/linear/products.h"
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

// Vectors that multiply_chunk quantizes or packs per task.
constexpr std::int64_t kVectorsPerTask = kProductRows;

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

// Whether multiply_chunk multiplies a matrix as integers (model/linear/chunk_kernels.h), not by
// best_products().
bool goes_in_integers(const Matrix& matrix) {
  return best_products().pack_panel == nullptr && find_block_type(matrix.type) != nullptr;
}

// Rows of a matrix that multiply_chunk unpacks or packs at a time.
std::int64_t piece_rows(const Matrix& matrix) {
  return static_cast<std::int64_t>(goes_in_integers(matrix) ? kPanelRows : kProductRows);
}

std::int64_t piece_count(const Matrix& matrix) {
  return (matrix.n_rows + piece_rows(matrix) - 1) / piece_rows(matrix);
}

// Fetches the rows of a piece that this thread will probably take later: the first use of weights
// in a chunk waits for memory.
void fetch_rows(const Matrix& matrix, std::int64_t first) {
  if (first >= matrix.n_rows) return;
  const std::int64_t count = std::min(piece_rows(matrix), matrix.n_rows - first);
  const std::byte* const rows = row_at(matrix, first);
  const std::size_t n_bytes = static_cast<std::size_t>(row_at(matrix, first + count) - rows);
  for (std::size_t at = 0; at < n_bytes; at += 64) __builtin_prefetch(rows + at, 0, 2);
}

// Memory of a thread for such rows: f32 of plain weights, or a panel (PanelView); and packed ones.
struct Piece {
  AlignedFloats plain;
  std::vector<std::int8_t, AlignedAllocator<std::int8_t>> codes;
  AlignedFloats scales;
  AlignedFloats minima;
  AlignedBytes packed;
};

// Parts of the vectors, and of quantized weights, in AMX: the table in model/linear/tiles.h.
constexpr std::size_t kPartsForPlain = 3, kPartsForBlocks = 2;

// The vectors of a chunk [n, n_cols], in the layouts that kernels multiply; only those that are
// needed.
struct ChunkInput {
  std::int64_t n;
  std::int64_t n_cols;
  QuantizedChunk quantized;
  PackedView for_plain;
  PackedView for_blocks;
  AlignedBytes memory_for_plain;
  AlignedBytes memory_for_blocks;
};

// Rows as f32: in place if they are aligned f32, otherwise widened to `wide`.
const float* f32_rows(const Matrix& matrix, std::int64_t first, std::int64_t count,
                      AlignedFloats& wide) {
  const std::byte* bytes = row_at(matrix, first);
  if (matrix.type == TensorType::kF32 &&
      reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(bytes);
  }
  wide.resize(to_size(count * matrix.n_cols));
  load_rows(matrix, first, count, wide);
  return wide.data();
}

// Unpacks up to 16 rows of quantized weights from row `first` on.
PanelView unpack_panel(const Matrix& matrix, std::int64_t first, std::int64_t count, Piece& piece) {
  const tensors::BlockType* const types = tensors::block_types().data();
  const auto type = static_cast<std::size_t>(find_block_type(matrix.type) - types);
  const RunShape shape = run_shapes()[type];
  const std::size_t n_cols = to_size(matrix.n_cols);
  const std::size_t n_scales = n_cols / shape.run * kPanelRows;
  piece.codes.resize(n_cols * kPanelRows);
  piece.scales.resize(n_scales);
  piece.minima.resize(shape.has_minimum ? n_scales : 0);
  best_kernels().chunks->pack[type](row_at(matrix, first), to_size(count), n_cols / kGroup,
                                    piece.codes.data(), piece.scales.data(), piece.minima.data());
  return {
      piece.codes.data(), piece.scales.data(), shape.has_minimum ? piece.minima.data() : nullptr,
      shape.run,          n_cols / kGroup,     to_size(count)};
}

// Parts that a plain type needs: bf16 has 8 bits of mantissa, f16 11, f32 24.
std::size_t parts_of_plain(TensorType type) {
  if (type == TensorType::kBF16) return 1;
  return type == TensorType::kF16 ? 2 : 3;
}

// Rows [first, first + count) of a product, as many as piece_rows().
void multiply_piece(const Product& product, std::int64_t first, std::int64_t count,
                    const ChunkInput& x, Piece& piece) {
  const Matrix& matrix = *product.matrix;
  if (goes_in_integers(matrix)) {
    return best_kernels().chunks->multiply(unpack_panel(matrix, first, count, piece),
                                           x.quantized.view(), product.y + first,
                                           to_size(matrix.n_rows));
  }
  const MatrixProducts& products = best_products();
  const std::size_t n_cols = to_size(matrix.n_cols);
  const bool is_plain = find_block_type(matrix.type) == nullptr;
  const std::size_t n_parts = is_plain ? parts_of_plain(matrix.type) : kPartsForBlocks;
  piece.packed.resize(products.size(kProductRows, n_cols, n_parts));
  if (is_plain) {
    const float* const rows = f32_rows(matrix, first, count, piece.plain);
    products.pack_right({rows, matrix.n_cols}, to_size(count), n_cols, n_parts,
                        piece.packed.data());
  } else {
    constexpr auto kRows = static_cast<std::int64_t>(kPanelRows);
    for (std::int64_t at = 0; at < count; at += kRows) {
      const PanelView panel = unpack_panel(matrix, first + at, std::min(kRows, count - at), piece);
      products.pack_panel(panel,
                          piece.packed.data() + piece.packed.size() / 2 * to_size(at / kRows));
    }
  }
  products.multiply(is_plain ? x.for_plain : x.for_blocks, {piece.packed.data(), n_cols, n_parts},
                    to_size(x.n), to_size(count), n_cols, product.y + first,
                    to_size(matrix.n_rows));
}

ChunkInput make_chunk_input(std::initializer_list<Product> products, std::int64_t n,
                            std::span<const float> x, const Workers& workers) {
  const std::int64_t n_cols = products.begin()->matrix->n_cols;
  const auto is_quantized = [](const Product& product) {
    return find_block_type(product.matrix->type) != nullptr;
  };
  const bool has_blocks = std::ranges::any_of(products, is_quantized);
  const bool has_plain = !std::ranges::all_of(products, is_quantized);
  const MatrixProducts& kernels = best_products();
  const bool in_integers = has_blocks && kernels.pack_panel == nullptr;
  ChunkInput input = {
      n,  n_cols, QuantizedChunk(in_integers ? to_size(n) : 0, in_integers ? to_size(n_cols) : 0),
      {}, {},     {},
      {}};
  const auto make_room = [&](std::size_t n_parts, AlignedBytes& memory) {
    memory.resize(kernels.size(to_size(n), to_size(n_cols), n_parts));
    return PackedView{memory.data(), to_size(n_cols), n_parts};
  };
  if (has_plain && kernels.takes_rows) {
    input.for_plain = {reinterpret_cast<const std::byte*>(x.data()), to_size(n_cols),
                       kPartsForPlain};
  } else if (has_plain) {
    input.for_plain = make_room(kPartsForPlain, input.memory_for_plain);
  }
  if (has_blocks && !in_integers) {
    input.for_blocks = make_room(kPartsForBlocks, input.memory_for_blocks);
  }
  if (!in_integers && kernels.takes_rows) return input;
  workers.run(to_size((n + kVectorsPerTask - 1) / kVectorsPerTask), [&](std::size_t task) {
    const std::int64_t first = static_cast<std::int64_t>(task) * kVectorsPerTask;
    const std::int64_t count = std::min(kVectorsPerTask, n - first);
    const ConstRows rows = {x.data() + first * n_cols, n_cols};
    const auto pack = [&](AlignedBytes& memory, std::size_t n_parts) {
      if (memory.empty()) return;
      kernels.pack_left(
          rows, to_size(count), to_size(n_cols), 1.0f, n_parts,
          memory.data() + kernels.left_place(to_size(first), 0, to_size(n_cols), n_parts));
    };
    pack(input.memory_for_plain, kPartsForPlain);
    pack(input.memory_for_blocks, kPartsForBlocks);
    if (!in_integers) return;
    for (std::int64_t i = first; i < first + count; ++i) {
      input.quantized.set(to_size(i), x.data() + i * n_cols, best_blocks());
    }
  });
  return input;
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
  const ChunkInput input = make_chunk_input(products, n, x, workers);
  assert(x.size() == to_size(n * input.n_cols));
  std::int64_t n_pieces = 0;
  for (const Product& product : products) {
    assert(product.matrix->n_cols == input.n_cols);
    n_pieces += piece_count(*product.matrix);
  }
  std::vector<Piece> pieces(workers.count());
  workers.run_in_slots(to_size(n_pieces), [&](std::size_t i, std::size_t slot) {
    auto index = static_cast<std::int64_t>(i);
    const Product* product = products.begin();
    while (index >= piece_count(*product->matrix)) index -= piece_count(*product++->matrix);
    const std::int64_t first = index * piece_rows(*product->matrix);
    const std::int64_t count =
        std::min(piece_rows(*product->matrix), product->matrix->n_rows - first);
    const std::int64_t n_threads = static_cast<std::int64_t>(workers.count());
    fetch_rows(*product->matrix, first + n_threads * piece_rows(*product->matrix));
    multiply_piece(*product, first, count, input, pieces[slot]);
  });
}

}  // namespace tqcache::model
