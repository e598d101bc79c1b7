#include "tqcache/interop/llama/llama_cells.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::interop {
namespace {

constexpr std::uint32_t kMaxSequences = 4096;
constexpr std::uint64_t kLeastCellBytes = 8;
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

struct Cell {
  std::int32_t position = 0;
  std::optional<std::int32_t> sequence;  // the first one
  bool has_several = false;
};

Result<void> check_count(std::uint32_t n, LlamaFile kind) {
  // A file of one sequence need not say whose cells they are.
  const bool is_sequence = kind == LlamaFile::kSequence;
  if (n <= (is_sequence ? 1 : kMaxSequences) && (n > 0 || is_sequence)) return {};
  return corrupt("a cell of " + std::to_string(n) + " sequences");
}

Result<std::int32_t> read_sequence(LlamaCursor& cursor) {
  TQC_TRY_ASSIGN(const auto id, cursor.read<std::int32_t>());
  if (id >= 0 && id < static_cast<std::int32_t>(kMaxSequences)) return id;
  return corrupt("a cell of sequence " + std::to_string(id));
}

Result<Cell> read_cell(LlamaCursor& cursor, const LlamaCellLayout& layout) {
  Cell cell;
  TQC_TRY_ASSIGN(cell.position, cursor.read<std::int32_t>());
  if (cell.position < 0) return corrupt("a cell at position " + std::to_string(cell.position));
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  TQC_TRY(check_count(n, layout.kind));
  TQC_TRY(cursor.skip(layout.ext_bytes));
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

}  // namespace

Result<LlamaCells> read_llama_cells(LlamaCursor& cursor, const LlamaCellLayout& layout) {
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  if (n > cache::kMaxTokens) return Error{ErrorCode::kTooLarge, std::to_string(n) + " cells"};
  if (n > cursor.remaining() / kLeastCellBytes) {
    return Error{ErrorCode::kTruncated, std::to_string(n) + " cells, and the file ends before"};
  }
  LlamaCells cells;
  cells.positions.reserve(n);
  std::optional<std::int32_t> sequence;
  for (std::uint32_t i = 0; i < n; ++i) {
    TQC_TRY_ASSIGN(const Cell cell, read_cell(cursor, layout));
    if (i == 0) sequence = cell.sequence;
    if (cell.sequence.has_value() != sequence.has_value()) {
      return corrupt("cells with and without a sequence");
    }
    cells.positions.push_back(cell.position);
    if (cell.has_several || cell.sequence != sequence) cells.has_several_sequences = true;
  }
  return cells;
}

Result<std::vector<std::uint32_t>> order_llama_cells(const LlamaCells& cells, std::int64_t first,
                                                     std::int64_t n) {
  if (cells.has_several_sequences) return unsupported("cells of more than one sequence");
  if (are_in_order(cells, first, n)) return std::vector<std::uint32_t>();
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n), kNone);
  for (std::size_t i = 0; i < cells.positions.size(); ++i) {
    const std::int64_t at = cells.positions[i] - first;
    if (at < 0) continue;
    if (at >= n) {
      return unsupported("positions with gaps: " + std::to_string(first + n) +
                         " tokens, and one at position " + std::to_string(cells.positions[i]));
    }
    std::uint32_t& cell = order[static_cast<std::size_t>(at)];
    if (cell != kNone) {
      return unsupported("two cells at position " + std::to_string(cells.positions[i]));
    }
    cell = static_cast<std::uint32_t>(i);
  }
  const auto gap = std::ranges::find(order, kNone);
  if (gap == order.end()) return order;
  return unsupported("no cell at position " + std::to_string(first + (gap - order.begin())));
}

}  // namespace tqcache::interop
