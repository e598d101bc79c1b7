#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/format/dense_sections.h"
#include "tqcache/interop/llama/llama_export_rules.h"
#include "tqcache/interop/llama/llama_row_maker.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {
namespace {

using format::SideName;

constexpr std::uint32_t kSessionMagic = 0x6767736e;   // "ggsn", read as a number
constexpr std::uint32_t kSequenceMagic = 0x67677371;  // "ggsq"
constexpr std::int32_t kWrapperMark = -1;             // no token has this id
constexpr std::uint32_t kExportWrapperVersion = 1;
constexpr std::size_t kCellsAtOnce = 4096;

// A file that is being written, and what the cache is written from.
class StateWriter {
 public:
  // Everything must outlive this.
  StateWriter(const format::DenseSections& source, const LlamaGeometry& model,
              const LlamaExport& options, const LlamaRowTypes& types, const Progress& progress,
              AtomicFile& file)
      : source_(source),
        model_(model),
        options_(options),
        types_(types),
        progress_(progress),
        file_(file) {
    number_sections();
  }

  Result<void> write() {
    TQC_TRY(write_head());
    TQC_TRY(write_tokens());
    TQC_TRY(write_memory_head());
    if (n_tokens() == 0) return {};  // llama.cpp writes nothing more of an empty cache
    TQC_TRY(write_cells());
    TQC_TRY(write_data_head());
    for (std::size_t i = 0; i < n_layers(); ++i) TQC_TRY(write_rows(i, SideName::kKeys));
    for (std::size_t i = 0; i < n_layers(); ++i) {
      TQC_TRY(options_.flash_attention ? write_rows(i, SideName::kValues) : write_columns(i));
    }
    return {};
  }

 private:
  const format::Manifest& manifest() const { return source_.manifest(); }
  std::size_t n_tokens() const { return manifest().tokens.size(); }
  std::size_t n_layers() const { return manifest().layers.size(); }
  bool is_session() const { return options_.kind == LlamaFile::kSession; }
  // 0: the layout of April 2026. 1: cells of M-RoPE have token ids. 2: rotations are told.
  std::uint32_t age() const { return options_.version - (is_session() ? 9 : 2); }
  bool has_token_ids() const { return age() >= 1; }
  bool has_rotations() const { return age() >= 2; }

  // Where each side's token blocks stand in the section table.
  void number_sections() {
    numbers_.resize(2 * n_layers());
    for (std::size_t i = 0; i < manifest().sections.size(); ++i) {
      const format::SectionInfo& section = manifest().sections[i];
      numbers_[2 * to_size(section.layer) + static_cast<std::size_t>(section.side)].push_back(i);
      total_ += section.raw_bytes;
    }
  }

  Result<void> write_head() {
    ByteWriter head;
    head.write(is_session() ? kSessionMagic : kSequenceMagic);
    head.write(options_.version);
    return file_.write(head.bytes());
  }

  // The list, or llama-server's: a mark, a version and a length before it, and after it the number
  // of media, each a word of the list too.
  Result<void> write_tokens() {
    const auto n = static_cast<std::uint32_t>(n_tokens() + (options_.next_token ? 1 : 0));
    ByteWriter before;
    before.write(options_.server_tokens ? n + 4 : n);
    if (options_.server_tokens) {
      before.write(kWrapperMark);
      before.write(kExportWrapperVersion);
      before.write(n);
    }
    TQC_TRY(file_.write(before.bytes()));
    TQC_TRY(file_.write(object_bytes(manifest().tokens)));
    ByteWriter after;
    if (options_.next_token) after.write(*options_.next_token);
    if (options_.server_tokens) after.write(std::uint32_t{0});
    return file_.write(after.bytes());
  }

  // Only sessions name the architecture. One stream, for one sequence.
  Result<void> write_memory_head() {
    ByteWriter head;
    if (is_session()) {
      head.write(static_cast<std::uint32_t>(model_.architecture.size()));
      head.append(as_bytes(model_.architecture));
    }
    head.write(std::uint32_t{1});
    head.write(static_cast<std::uint32_t>(n_tokens()));
    return file_.write(head.bytes());
  }

  Result<void> write_cells() {
    for (std::size_t first = 0; first < n_tokens(); first += kCellsAtOnce) {
      ByteWriter cells;
      const std::size_t end = std::min(first + kCellsAtOnce, n_tokens());
      for (std::size_t i = first; i < end; ++i) append_cell(i, cells);
      TQC_TRY(file_.write(cells.bytes()));
    }
    return {};
  }

  void append_cell(std::size_t token, ByteWriter& out) const {
    const auto position = static_cast<std::int32_t>(token);
    out.write(position);
    out.write(std::uint32_t{1});  // sequences that the cell is of
    if (model_.has_positions_2d) {
      out.write(position);  // of text, both coordinates are the position
      out.write(position);
      if (has_token_ids()) out.write(manifest().tokens[token]);
    }
    out.write(std::int32_t{0});  // the sequence
  }

  Result<void> write_data_head() {
    ByteWriter head;
    head.write(std::uint32_t{options_.flash_attention ? 0u : 1u});
    head.write(static_cast<std::uint32_t>(n_layers()));
    if (has_rotations()) {
      head.write(static_cast<std::uint32_t>(side_of(0, SideName::kKeys).rotation));
      head.write(static_cast<std::uint32_t>(side_of(0, SideName::kValues).rotation));
    }
    return file_.write(head.bytes());
  }

  LlamaRowPlan side_of(std::size_t layer, SideName name) const {
    const cache::LayerDesc& desc = manifest().layers[layer];
    const bool is_keys = name == SideName::kKeys;
    LlamaRowPlan side;
    side.shape = cache::attention_of(desc)->shape;
    side.dtype = format::side_of(desc, name).dtype;
    side.type = is_keys ? types_.k : types_.v;
    if (is_keys && model_.interleaved_keys) side.n_rot = model_.n_rot;
    if (side.type->dense || options_.rotation == LlamaRotation::kOff) return side;
    const std::int64_t head_dim = side.shape.head_dim;
    side.rotation = is_keys ? key_rotation_size(head_dim) : value_rotation_size(head_dim);
    return side;
  }

  // Calls use(block, n) with the rows of each token block, in order.
  template <class Use>
  Result<void> for_each_block(std::size_t layer, SideName name, LlamaRowMaker& maker, Use use) {
    const auto& numbers = numbers_[2 * layer + static_cast<std::size_t>(name)];
    for (const std::size_t number : numbers) {
      const format::SectionInfo& section = manifest().sections[number];
      const auto n = cache::tokens_in_block(manifest().n_tokens(), section.block);
      TQC_TRY(source_.read(number, block_));
      rows_.resize(to_size(n) * maker.row_size());
      maker.make(block_, n, rows_);
      TQC_TRY(use(to_size(section.block * cache::kTokenBlock), to_size(n)));
      done_ += section.raw_bytes;
      if (progress_ && !progress_(done_, total_)) {
        return interrupted_error();
      }
    }
    return {};
  }

  Result<void> write_rows(std::size_t layer, SideName name) {
    const LlamaRowPlan side = side_of(layer, name);
    LlamaRowMaker maker(side);
    ByteWriter head;
    head.write(side.type->id);
    head.write(maker.row_size());
    TQC_TRY(file_.write(head.bytes()));
    return for_each_block(layer, name, maker,
                          [&](std::size_t, std::size_t) { return file_.write(rows_); });
  }

  // Values as they are kept without flash attention: of each component, all tokens.
  Result<void> write_columns(std::size_t layer) {
    const LlamaRowPlan side = side_of(layer, SideName::kValues);
    LlamaRowMaker maker(side);
    const std::size_t size = side.type->block_bytes;
    const std::size_t width = maker.row_size() / size;
    ByteWriter head;
    head.write(side.type->id);
    head.write(static_cast<std::uint32_t>(size));
    head.write(static_cast<std::uint32_t>(width));
    TQC_TRY(file_.write(head.bytes()));
    columns_.resize(width * n_tokens() * size);
    TQC_TRY(for_each_block(layer, SideName::kValues, maker, [&](std::size_t first, std::size_t n) {
      put_into_columns(first, n, width, size);
      return Result<void>();
    }));
    return file_.write(columns_);
  }

  void put_into_columns(std::size_t first, std::size_t n, std::size_t width, std::size_t size) {
    for (std::size_t i = 0; i < width; ++i) {
      std::byte* column = columns_.data() + (i * n_tokens() + first) * size;
      for (std::size_t token = 0; token < n; ++token) {
        std::memcpy(column + token * size, rows_.data() + (token * width + i) * size, size);
      }
    }
  }

  const format::DenseSections& source_;
  const LlamaGeometry& model_;
  const LlamaExport& options_;
  const LlamaRowTypes& types_;
  const Progress& progress_;
  AtomicFile& file_;
  std::vector<std::vector<std::size_t>> numbers_;  // [2 n_layers][token block]
  AlignedBytes block_;                             // [n_kv_heads, n, head_dim]
  Bytes rows_;                                     // [n, row_size]
  Bytes columns_;                                  // [n_kv_heads * head_dim, n_tokens]
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

Result<void> export_llama_state(const format::SectionSource& cache, const LlamaGeometry& model,
                                const std::filesystem::path& path, const LlamaExport& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const LlamaRowTypes types, check_export_options(options));
  TQC_TRY(check_export_cache(cache.manifest(), model, types));
  TQC_TRY_ASSIGN(const auto dense, format::DenseSections::make(cache));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(StateWriter(dense, model, options, types, progress, file).write());
  return file.commit();
}

}  // namespace tqcache::interop
