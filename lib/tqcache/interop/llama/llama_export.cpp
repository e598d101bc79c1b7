#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_parse.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

struct LlamaRowTypes {
  const LlamaRowType* k;
  const LlamaRowType* v;
};

std::string layer_name(std::size_t layer) { return fmt::format("layer {}", layer); }

Result<void> check_version(const LlamaExport& options) {
  const bool is_session = options.kind == LlamaFile::kSession;
  const std::uint32_t first = is_session ? 9 : 2;
  const std::uint32_t last = first + 2;
  if (options.version >= first && options.version <= last) return {};
  return invalid(fmt::format("{} files of version {}, only {} to {} are written",
                             is_session ? "session" : "sequence", options.version, first, last));
}

Result<const LlamaRowType*> row_type(std::string_view name) {
  const LlamaRowType* type = find_row_type(name);
  if (type == nullptr) return invalid("row type " + tensors::printable_name(name));
  return type;
}

// llama.cpp accepts quantized types only if their blocks divide a head vector, not just a row.
Result<void> check_blocks(const LlamaRowType& type, std::int64_t head_dim) {
  const auto block = static_cast<std::int64_t>(type.block_values);
  if (head_dim % block == 0) return {};
  return invalid(fmt::format("{} has blocks of {} values, which do not divide a head_dim of {}",
                             type.name, block, head_dim));
}

Result<void> check_kind(LlamaLayerKind of_model, const cache::LayerDesc& layer) {
  if (of_model == LlamaLayerKind::kRecurrent) {
    return unsupported("recurrent state, which llama-server cannot resume from");
  }
  if (of_model == LlamaLayerKind::kSlidingWindow ||
      std::holds_alternative<cache::WindowDesc>(layer)) {
    return unsupported("a sliding window, which llama-server cannot resume from");
  }
  if (std::holds_alternative<cache::AttentionDesc>(layer)) return {};
  return mismatch("not an attention layer, unlike the model's");
}

Result<void> check_shape(const LlamaLayer& of_model, cache::HeadShape shape) {
  if (of_model.n_kv_heads == shape.n_kv_heads && of_model.k_head_dim == shape.head_dim &&
      of_model.v_head_dim == shape.head_dim) {
    return {};
  }
  return mismatch(fmt::format(
      "{} kv heads of {}, the model has {} with keys of {} and values of {}", shape.n_kv_heads,
      shape.head_dim, of_model.n_kv_heads, of_model.k_head_dim, of_model.v_head_dim));
}

Result<void> check_layer(const LlamaLayer& of_model, const cache::LayerDesc& layer,
                         const LlamaRowTypes& types) {
  TQC_TRY(check_kind(of_model.kind, layer));
  const cache::HeadShape shape = std::get<cache::AttentionDesc>(layer).shape;
  TQC_TRY(check_shape(of_model, shape));
  TQC_TRY(check_blocks(*types.k, shape.head_dim));
  return check_blocks(*types.v, shape.head_dim);
}

Result<void> check_architecture(const std::string& of_cache, const std::string& of_model) {
  if (of_cache.empty() || of_cache == of_model) return {};
  return mismatch("a cache of architecture " + tensors::printable_name(of_cache) +
                  " for a model of architecture " + tensors::printable_name(of_model));
}

// Errors: kInvalidArgument.
Result<LlamaRowTypes> check_export_options(const LlamaExport& options) {
  TQC_TRY(check_version(options));
  LlamaRowTypes types{};
  TQC_TRY_ASSIGN(types.k, row_type(options.k_type));
  TQC_TRY_ASSIGN(types.v, row_type(options.v_type));
  if (!options.flash_attention && !types.v->dense) {
    return invalid("values of type " + std::string(types.v->name) + " without flash attention");
  }
  if (options.server_tokens && options.kind == LlamaFile::kSession) {
    return invalid("a session file with the tokens of llama-server, which writes sequences");
  }
  if (options.next_token && *options.next_token < 0) {
    return invalid(fmt::format("next token {}", *options.next_token));
  }
  return types;
}

// Checks that the cache belongs to this model and contains all that llama.cpp would keep. Errors:
// kInvalidArgument, kUnsupported, kMismatch, as export_llama_state().
Result<void> check_export_cache(const cache::CacheDesc& manifest, const LlamaGeometry& model,
                                const LlamaRowTypes& types) {
  if (manifest.hidden_tokens) return invalid("the cache hides its tokens, which llama.cpp needs");
  TQC_TRY(check_architecture(manifest.identity.architecture, model.architecture));
  if (manifest.layers.size() != model.layers.size()) {
    return mismatch(
        fmt::format("{} layers, the model has {}", manifest.layers.size(), model.layers.size()));
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto checked = check_layer(model.layers[i], manifest.layers[i], types);
    if (!checked) return in_context(layer_name(i), std::move(checked).error());
  }
  return {};
}

struct LlamaRowPlan {
  cache::HeadShape shape;
  Dtype dtype = Dtype::kF16;  // of the token blocks
  const LlamaRowType* type = nullptr;
  std::int64_t n_rot = 0;     // components to interleave as pairs; 0: no reordering
  std::int64_t rotation = 0;  // run length of the Hadamard transform; 0: no transform
};

class LlamaRowMaker {
 public:
  // Requires: the GGML blocks of the type divide the row.
  explicit LlamaRowMaker(const LlamaRowPlan& side);

  std::uint64_t row_size() const { return row_size_; }  // bytes

  // `block` is [n_kv_heads, n, head_dim]; `rows` receives n rows, each the heads of one token.
  // Values that already have the type of the row keep every bit.
  void make(ByteView block, std::int64_t n, std::span<std::byte> rows);

 private:
  void copy_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row) const;
  void convert_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row);

  LlamaRowPlan side_;
  std::size_t n_heads_;
  std::size_t head_bytes_;  // one head vector in a block
  std::uint64_t row_size_;
  std::vector<float> values_;  // [n_kv_heads, head_dim]
};

LlamaRowMaker::LlamaRowMaker(const LlamaRowPlan& side)
    : side_(side),
      n_heads_(static_cast<std::size_t>(side.shape.n_kv_heads)),
      head_bytes_(static_cast<std::size_t>(side.shape.head_dim) * dtype_size(side.dtype)),
      row_size_(row_bytes(*side.type, n_heads_ * static_cast<std::size_t>(side.shape.head_dim))),
      values_(n_heads_ * static_cast<std::size_t>(side.shape.head_dim)) {}

void LlamaRowMaker::make(ByteView block, std::int64_t n, std::span<std::byte> rows) {
  const auto n_tokens = static_cast<std::size_t>(n);
  const bool as_it_is = side_.type->dense == side_.dtype && side_.rotation == 0;
  for (std::size_t token = 0; token < n_tokens; ++token) {
    const std::span<std::byte> row = rows.subspan(token * row_size_, row_size_);
    if (as_it_is) {
      copy_row(block, n_tokens, token, row);
    } else {
      convert_row(block, n_tokens, token, row);
    }
  }
}

void LlamaRowMaker::copy_row(ByteView block, std::size_t n, std::size_t token,
                             std::span<std::byte> row) const {
  for (std::size_t head = 0; head < n_heads_; ++head) {
    const std::span<std::byte> out = row.subspan(head * head_bytes_, head_bytes_);
    std::memcpy(out.data(), block.data() + (head * n + token) * head_bytes_, head_bytes_);
    if (side_.n_rot > 0) to_interleaved(side_.n_rot, dtype_size(side_.dtype), out);
  }
}

void LlamaRowMaker::convert_row(ByteView block, std::size_t n, std::size_t token,
                                std::span<std::byte> row) {
  const auto head_dim = static_cast<std::size_t>(side_.shape.head_dim);
  for (std::size_t head = 0; head < n_heads_; ++head) {
    const std::span<float> out = std::span(values_).subspan(head * head_dim, head_dim);
    load_f32(side_.dtype, block.data() + (head * n + token) * head_bytes_, out);
    if (side_.n_rot > 0) {
      to_interleaved(side_.n_rot, sizeof(float), std::as_writable_bytes(out));
    }
  }
  if (side_.rotation > 0) hadamard(side_.rotation, values_);
  encode_row(*side_.type, values_, row);
}

using cache::TensorKind;

constexpr std::int32_t kWrapperMark = -1;  // no token has this id
constexpr std::uint32_t kExportWrapperVersion = 1;
constexpr std::size_t kCellsAtOnce = 4096;

// Writes a cache into a state file.
class StateWriter {
 public:
  // All arguments must outlive the writer.
  StateWriter(const cache::CacheReader& source, const LlamaGeometry& model,
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
    if (n_tokens() == 0) return {};  // llama.cpp writes nothing further for an empty cache
    TQC_TRY(write_cells());
    TQC_TRY(write_data_head());
    for (std::size_t i = 0; i < n_layers(); ++i) TQC_TRY(write_rows(i, TensorKind::kKeys));
    for (std::size_t i = 0; i < n_layers(); ++i) {
      TQC_TRY(options_.flash_attention ? write_rows(i, TensorKind::kValues) : write_columns(i));
    }
    return {};
  }

 private:
  const cache::CacheDesc& description() const { return source_.description(); }
  std::size_t n_tokens() const { return description().tokens.size(); }
  std::size_t n_layers() const { return description().layers.size(); }
  bool is_session() const { return options_.kind == LlamaFile::kSession; }
  // Layout version. 0: April 2026. 1: cells of M-RoPE have token ids. 2: the file states rotations.
  std::uint32_t age() const { return options_.version - (is_session() ? 9 : 2); }
  bool has_token_ids() const { return age() >= 1; }
  bool has_rotations() const { return age() >= 2; }

  // Finds the sections of each K and V token block in the section table.
  void number_sections() {
    numbers_.resize(2 * n_layers());
    for (std::size_t i = 0; i < source_.blocks().size(); ++i) {
      const cache::BlockInfo& section = source_.blocks()[i];
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

  // Writes the plain list, or llama-server's: a marker, a version and a length before the list, and
  // the number of media after it. Each is also a 32-bit element of the list.
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
    TQC_TRY(file_.write(object_bytes(description().tokens)));
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
    out.write(std::uint32_t{1});  // number of sequences of the cell
    if (model_.has_positions_2d) {
      out.write(position);  // for text, both coordinates are the position
      out.write(position);
      if (has_token_ids()) out.write(description().tokens[token]);
    }
    out.write(std::int32_t{0});  // the sequence id
  }

  Result<void> write_data_head() {
    ByteWriter head;
    head.write(std::uint32_t{options_.flash_attention ? 0u : 1u});
    head.write(static_cast<std::uint32_t>(n_layers()));
    if (has_rotations()) {
      head.write(static_cast<std::uint32_t>(side_of(0, TensorKind::kKeys).rotation));
      head.write(static_cast<std::uint32_t>(side_of(0, TensorKind::kValues).rotation));
    }
    return file_.write(head.bytes());
  }

  LlamaRowPlan side_of(std::size_t layer, TensorKind name) const {
    const cache::LayerDesc& desc = description().layers[layer];
    const bool is_keys = name == TensorKind::kKeys;
    LlamaRowPlan side;
    side.shape = cache::attention_of(desc)->shape;
    side.dtype = cache::tensor_of(desc, name).dtype;
    side.type = is_keys ? types_.k : types_.v;
    if (is_keys && model_.interleaved_keys) side.n_rot = model_.n_rot;
    if (side.type->dense || options_.rotation == LlamaRotation::kOff) return side;
    const std::int64_t head_dim = side.shape.head_dim;
    side.rotation = is_keys ? key_rotation_size(head_dim) : value_rotation_size(head_dim);
    return side;
  }

  // Calls use(block, n) with the rows of each token block, in order.
  template <class Use>
  Result<void> for_each_block(std::size_t layer, TensorKind name, LlamaRowMaker& maker, Use use) {
    const auto& numbers = numbers_[2 * layer + static_cast<std::size_t>(name)];
    for (const std::size_t number : numbers) {
      const cache::BlockInfo& section = source_.blocks()[number];
      const auto n = cache::tokens_in_block(description().n_tokens(), section.block);
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

  Result<void> write_rows(std::size_t layer, TensorKind name) {
    const LlamaRowPlan side = side_of(layer, name);
    LlamaRowMaker maker(side);
    ByteWriter head;
    head.write(side.type->id);
    head.write(maker.row_size());
    TQC_TRY(file_.write(head.bytes()));
    return for_each_block(layer, name, maker,
                          [&](std::size_t, std::size_t) { return file_.write(rows_); });
  }

  // Values as stored without flash attention: for each component, all tokens.
  Result<void> write_columns(std::size_t layer) {
    const LlamaRowPlan side = side_of(layer, TensorKind::kValues);
    LlamaRowMaker maker(side);
    const std::size_t size = side.type->block_bytes;
    const std::size_t width = maker.row_size() / size;
    ByteWriter head;
    head.write(side.type->id);
    head.write(static_cast<std::uint32_t>(size));
    head.write(static_cast<std::uint32_t>(width));
    TQC_TRY(file_.write(head.bytes()));
    columns_.resize(width * n_tokens() * size);
    TQC_TRY(
        for_each_block(layer, TensorKind::kValues, maker, [&](std::size_t first, std::size_t n) {
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

  const cache::CacheReader& source_;
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

Result<void> export_llama_state(const cache::CacheReader& cache, const LlamaGeometry& model,
                                const std::filesystem::path& path, const LlamaExport& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const LlamaRowTypes types, check_export_options(options));
  TQC_TRY(check_export_cache(cache.description(), model, types));
  TQC_TRY_ASSIGN(const auto dense, cache::dequantize(cache::borrow(cache)));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(StateWriter(*dense, model, options, types, progress, file).write());
  return file.commit();
}

}  // namespace tqcache::interop
