#include "tqcache/interop/llama/llama_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_rows.h"

namespace tqcache::interop {
namespace {

constexpr std::uint32_t kMaxSequences = 4096;
constexpr std::uint64_t kLeastCellBytes = 8;
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

struct Cell {
  std::int32_t position = 0;
  std::optional<std::int32_t> sequence;  // the first one
  bool has_several = false;
  std::int32_t row = 0, column = 0;
  bool is_of_image = false;
};

Result<void> check_count(std::uint32_t n, LlamaFile kind) {
  // A file of one sequence may omit the sequence of its cells.
  const bool is_sequence = kind == LlamaFile::kSequence;
  if (n <= (is_sequence ? 1 : kMaxSequences) && (n > 0 || is_sequence)) return {};
  return corrupt(fmt::format("a cell of {} sequences", n));
}

Result<std::int32_t> read_sequence(FileCursor& cursor) {
  TQC_TRY_ASSIGN(const auto id, cursor.read<std::int32_t>());
  if (id >= 0 && id < static_cast<std::int32_t>(kMaxSequences)) return id;
  return corrupt(fmt::format("a cell of sequence {}", id));
}

Result<Cell> read_cell(FileCursor& cursor, const LlamaCellLayout& layout) {
  Cell cell;
  TQC_TRY_ASSIGN(cell.position, cursor.read<std::int32_t>());
  if (cell.position < 0) return corrupt(fmt::format("a cell at position {}", cell.position));
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  TQC_TRY(check_count(n, layout.kind));
  // Text has the coordinates (0, 0), or its position twice.
  std::uint64_t n_ext = layout.ext_bytes;
  if (n_ext >= 2 * sizeof(std::int32_t)) {
    TQC_TRY_ASSIGN(const auto x, cursor.read<std::int32_t>());
    TQC_TRY_ASSIGN(const auto y, cursor.read<std::int32_t>());
    cell.row = y;
    cell.column = x;
    cell.is_of_image = x != y || (x != 0 && x != cell.position);
    n_ext -= 2 * sizeof(std::int32_t);
  }
  TQC_TRY(cursor.skip(n_ext));
  cell.has_several = n > 1;
  for (std::uint32_t i = 0; i < n; ++i) {
    TQC_TRY_ASSIGN(const std::int32_t id, read_sequence(cursor));
    if (i == 0) cell.sequence = id;
  }
  return cell;
}

bool are_in_order(const LlamaCells& cells, std::int64_t first, std::int64_t n) {
  if (std::ssize(cells.positions) != n) return false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (cells.positions[static_cast<std::size_t>(i)] != first + i) return false;
  }
  return true;
}

constexpr std::int64_t kSmallestRotation = 64;

// The Hadamard sums and differences of all components in natural order, without the factor of H.
void add_up(std::span<double> x) {
  for (std::size_t step = 1; step < x.size(); step *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & step) != 0) continue;
      const double first = x[i];
      const double second = x[i + step];
      x[i] = first + second;
      x[i + step] = first - second;
    }
  }
}

using HeadVector = std::array<std::byte, cache::kMaxHeadDim * sizeof(float)>;

HeadVector copy_of(ByteView x) {
  assert(x.size() <= sizeof(HeadVector));
  HeadVector copy;
  std::memcpy(copy.data(), x.data(), x.size());
  return copy;
}

// Calls move(i, j) for each component i in interleaved order and its index j in half-split order.
template <class Move>
void for_each_pair_place(std::size_t n_rot, Move move) {
  const std::size_t half = n_rot / 2;
  for (std::size_t i = 0; i < half; ++i) {
    move(2 * i, i);
    move(2 * i + 1, half + i);
  }
}

}  // namespace

namespace {

Result<std::vector<std::uint32_t>> order_of_images(const LlamaCells& cells, std::int64_t first,
                                                   std::int64_t n) {
  if (first != 0 || std::ssize(cells.positions) != n) {
    return unsupported("a part of the cells, with positions of images (M-RoPE)");
  }
  const auto place = [&](std::uint32_t cell) {
    return std::tuple(cells.positions[cell], cells.rows[cell], cells.columns[cell]);
  };
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, place);
  const auto twice = std::ranges::adjacent_find(order, {}, place);
  if (twice == order.end()) return order;
  return unsupported(fmt::format("two cells at position {}", cells.positions[*twice]));
}

}  // namespace

Result<LlamaCells> read_llama_cells(FileCursor& cursor, const LlamaCellLayout& layout) {
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  if (n > cache::kMaxTokens) return too_large(fmt::format("{} cells", n));
  if (n > cursor.remaining() / kLeastCellBytes) {
    return Error{ErrorCode::kTruncated, fmt::format("{} cells, and the file ends before", n)};
  }
  LlamaCells cells;
  cells.positions.reserve(n);
  std::optional<std::int32_t> sequence;
  bool has_images = false;
  for (std::uint32_t i = 0; i < n; ++i) {
    TQC_TRY_ASSIGN(const Cell cell, read_cell(cursor, layout));
    if (i == 0) sequence = cell.sequence;
    if (cell.sequence.has_value() != sequence.has_value()) {
      return corrupt("cells with and without a sequence");
    }
    cells.positions.push_back(cell.position);
    has_images = has_images || cell.is_of_image;
    if (layout.ext_bytes >= 2 * sizeof(std::int32_t)) {
      cells.rows.push_back(cell.row);
      cells.columns.push_back(cell.column);
    }
    if (cell.has_several || cell.sequence != sequence) cells.has_several_sequences = true;
  }
  if (!has_images) {
    cells.rows.clear();
    cells.columns.clear();
  }
  return cells;
}

Result<std::vector<std::uint32_t>> order_llama_cells(const LlamaCells& cells, std::int64_t first,
                                                     std::int64_t n) {
  if (cells.has_several_sequences) return unsupported("cells of more than one sequence");
  if (!cells.rows.empty()) return order_of_images(cells, first, n);
  if (are_in_order(cells, first, n)) return std::vector<std::uint32_t>();
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n), kNone);
  for (std::size_t i = 0; i < cells.positions.size(); ++i) {
    const std::int64_t at = cells.positions[i] - first;
    if (at < 0) continue;
    if (at >= n) {
      return unsupported(fmt::format("positions with gaps: {} tokens, and one at position {}",
                                     first + n, cells.positions[i]));
    }
    std::uint32_t& cell = order[static_cast<std::size_t>(at)];
    if (cell != kNone) {
      return unsupported(fmt::format("two cells at position {}", cells.positions[i]));
    }
    cell = static_cast<std::uint32_t>(i);
  }
  const auto gap = std::ranges::find(order, kNone);
  if (gap == order.end()) return order;
  return unsupported(fmt::format("no cell at position {}", first + (gap - order.begin())));
}

void hadamard(std::int64_t size, std::span<float> x) {
  const auto n = static_cast<std::size_t>(size);
  assert(std::has_single_bit(n) && x.size() % n == 0);
  // llama.cpp multiplies by a matrix of this f32 number and its negative.
  const double factor = 1.0f / std::sqrt(static_cast<float>(size));
  std::vector<double> sums(n);
  for (std::size_t at = 0; at < x.size(); at += n) {
    for (std::size_t i = 0; i < n; ++i) sums[i] = x[at + i];
    add_up(sums);
    for (std::size_t i = 0; i < n; ++i) x[at + i] = static_cast<float>(sums[i] * factor);
  }
}

std::int64_t key_rotation_size(std::int64_t head_dim) {
  if (head_dim % kSmallestRotation != 0) return 0;
  return head_dim & -head_dim;  // the lowest set bit
}

std::int64_t value_rotation_size(std::int64_t head_dim) {
  return head_dim % kSmallestRotation == 0 ? kSmallestRotation : 0;
}

void to_half_split(std::int64_t n_rot, std::size_t size, std::span<std::byte> x) {
  const auto n = static_cast<std::size_t>(n_rot);
  const HeadVector pairs = copy_of(x.first(n * size));
  for_each_pair_place(n, [&](std::size_t from, std::size_t to) {
    std::memcpy(x.data() + to * size, pairs.data() + from * size, size);
  });
}

void to_interleaved(std::int64_t n_rot, std::size_t size, std::span<std::byte> x) {
  const auto n = static_cast<std::size_t>(n_rot);
  const HeadVector halves = copy_of(x.first(n * size));
  for_each_pair_place(n, [&](std::size_t to, std::size_t from) {
    std::memcpy(x.data() + to * size, halves.data() + from * size, size);
  });
}

}  // namespace tqcache::interop
