// Recognizes the state that ik_llama.cpp writes behind the same magics and tokens: cells without
// streams, all layers of the model, those without rows with type -1.
//
// Source: ikawrakow/ik_llama.cpp src/llama.cpp, write_kv_cache().

#include <string>

#include "tqcache/base/integers.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/llama/llama_cells.h"
#include "tqcache/interop/llama/llama_cursor.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::interop {
namespace {

constexpr std::uint32_t kMaxNameBytes = 256;
constexpr std::uint32_t kTransposed = 1, kNoValues = 2;  // 0: rows

Error other() { return {ErrorCode::kCorrupt, "not of ik_llama.cpp"}; }

Result<void> skip_rows(LlamaCursor& cursor, std::uint64_t n, std::uint64_t bytes) {
  const auto all = checked_mul(n, bytes);
  return all ? cursor.skip(*all) : other();
}

Result<void> skip_session_head(LlamaCursor& cursor) {
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  if (n > kMaxNameBytes) return other();
  TQC_TRY(cursor.skip(n));
  TQC_TRY_ASSIGN(const auto n_outputs, cursor.read<std::uint32_t>());
  TQC_TRY(skip_rows(cursor, n_outputs, sizeof(std::int32_t)));
  for (int i = 0; i < 2; ++i) {
    TQC_TRY_ASSIGN(const auto n_values, cursor.read<std::uint64_t>());
    TQC_TRY(skip_rows(cursor, n_values, sizeof(float)));
  }
  return {};
}

// Type, bytes of a row, and the rows; of transposed ones type, bytes of a value and their number.
Result<void> skip_layer(LlamaCursor& cursor, std::uint64_t n_cells, bool transposed) {
  TQC_TRY_ASSIGN(const auto type, cursor.read<std::int32_t>());
  TQC_TRY_ASSIGN(const auto first, cursor.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto second, cursor.read<std::uint32_t>());
  const std::uint64_t row = std::uint64_t{second} << 32 | first;
  if (type < -1 || (type == -1 && row != 0)) return other();
  return skip_rows(cursor, n_cells, transposed ? std::uint64_t{first} * second : row);
}

Result<void> skip_recurrent(LlamaCursor& cursor, std::uint32_t n_layers) {
  for (std::uint32_t i = 0; i < n_layers; ++i) {
    TQC_TRY_ASSIGN(const auto type, cursor.read<std::int32_t>());
    TQC_TRY_ASSIGN(const auto row, cursor.read<std::uint64_t>());
    TQC_TRY_ASSIGN(const auto n_rows, cursor.read<std::uint32_t>());
    if (type < -1) return other();
    TQC_TRY(skip_rows(cursor, n_rows, row));
  }
  return {};
}

Result<void> skip_layers(LlamaCursor& cursor, std::uint64_t n_cells) {
  TQC_TRY_ASSIGN(const auto value_state, cursor.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto n_layers, cursor.read<std::uint32_t>());
  if (value_state > kNoValues || n_layers == 0 || n_layers > cache::kMaxLayers) return other();
  for (std::uint32_t i = 0; i < n_layers; ++i) TQC_TRY(skip_layer(cursor, n_cells, false));
  for (std::uint32_t i = 0; value_state != kNoValues && i < n_layers; ++i) {
    TQC_TRY(skip_layer(cursor, n_cells, value_state == kTransposed));
  }
  TQC_TRY_ASSIGN(const auto has_recurrent, cursor.read<std::uint32_t>());
  if (has_recurrent > 1) return other();
  return has_recurrent == 1 ? skip_recurrent(cursor, n_layers) : Result<void>();
}

Result<void> walk(LlamaCursor cursor, LlamaFile kind) {
  if (kind == LlamaFile::kSession) TQC_TRY(skip_session_head(cursor));
  TQC_TRY_ASSIGN(const LlamaCells cells, read_llama_cells(cursor, {kind, 0}));
  if (cells.positions.empty()) return other();
  TQC_TRY(skip_layers(cursor, cells.positions.size()));
  // What follows belongs to single architectures.
  TQC_TRY_ASSIGN(const auto has_indexer, cursor.read<std::uint32_t>());
  return has_indexer <= 1 ? Result<void>() : other();
}

}  // namespace

Result<bool> is_ik_llama_body(const ByteSource& file, std::uint64_t begin, LlamaFile kind) {
  const auto walked = walk(LlamaCursor(file, begin), kind);
  if (!walked && walked.error().code == ErrorCode::kIo) return walked.error();
  return walked.ok();
}

}  // namespace tqcache::interop
