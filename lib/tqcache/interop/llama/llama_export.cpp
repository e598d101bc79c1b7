#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_parse.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/llama/llama_states.h"
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

std::string_view name_of(LlamaLayerKind kind) {
  switch (kind) {
    case LlamaLayerKind::kAttention:
      return "full attention";
    case LlamaLayerKind::kSlidingWindow:
      return "a sliding window";
    case LlamaLayerKind::kRecurrent:
      return "recurrent state";
  }
  return "";
}

LlamaLayerKind kind_of(const cache::LayerDesc& layer) {
  return std::visit(
      Overload{[](const cache::AttentionDesc&) { return LlamaLayerKind::kAttention; },
               [](const cache::WindowDesc&) { return LlamaLayerKind::kSlidingWindow; },
               [](const cache::StateDesc&) { return LlamaLayerKind::kRecurrent; }},
      layer);
}

Result<void> check_window(const LlamaGeometry& model, const cache::WindowDesc& layer) {
  if (layer.window.keep > 0) return unsupported("a sliding window that keeps first tokens");
  if (layer.window.size == model.window) return {};
  return mismatch(fmt::format("a sliding window of {} tokens, the model has {}", layer.window.size,
                              model.window));
}

Result<void> check_shape(const LlamaLayer& of_model, const cache::AttentionDesc& layer) {
  const std::int64_t n_kv_heads = layer.shape.n_kv_heads;
  const std::int64_t k_dim = layer.shape.head_dim, v_dim = layer.value_shape().head_dim;
  if (of_model.n_kv_heads == n_kv_heads && of_model.k_head_dim == k_dim &&
      of_model.v_head_dim == v_dim) {
    return {};
  }
  return mismatch(fmt::format(
      "{} kv heads with keys of {} and values of {}, the model has {} with {} and {}", n_kv_heads,
      k_dim, v_dim, of_model.n_kv_heads, of_model.k_head_dim, of_model.v_head_dim));
}

Result<void> check_layer(const LlamaGeometry& model, const LlamaLayer& of_model,
                         const cache::LayerDesc& layer, const LlamaRowTypes& types) {
  if (kind_of(layer) != of_model.kind) {
    return mismatch(
        fmt::format("{}, the model has {}", name_of(kind_of(layer)), name_of(of_model.kind)));
  }
  if (const auto* state = std::get_if<cache::StateDesc>(&layer)) {
    return check_llama_state(of_model, *state);
  }
  if (const auto* window = std::get_if<cache::WindowDesc>(&layer)) {
    TQC_TRY(check_window(model, *window));
  }
  const cache::AttentionDesc& attention = *cache::attention_of(layer);
  TQC_TRY(check_shape(of_model, attention));
  if (of_model.is_latent) {
    if (attention.k.dtype != attention.v.dtype) {
      return unsupported("a latent and its rotated part of two types, llama.cpp has one row");
    }
    return check_blocks(*types.k, key_row_dim(of_model));
  }
  TQC_TRY(check_blocks(*types.k, attention.shape.head_dim));
  return check_blocks(*types.v, attention.value_shape().head_dim);
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
  if (options.n_streams < 1 || options.n_streams > cache::kMaxLlamaStreams) {
    return invalid(fmt::format("{} streams, only 1 to {} are written", options.n_streams,
                               cache::kMaxLlamaStreams));
  }
  if (options.next_token && *options.next_token < 0) {
    return invalid(fmt::format("next token {}", *options.next_token));
  }
  return types;
}

// Checks that the cache belongs to this model and contains all that llama.cpp would keep. Errors:
// kInvalidArgument, kUnsupported, kMismatch, as export_llama_state().
Result<void> check_export_cache(const cache::CacheDesc& manifest, const LlamaGeometry& model,
                                const LlamaRowTypes& types, bool has_server_tokens) {
  if (manifest.hidden_tokens) return invalid("the cache hides its tokens, which llama.cpp needs");
  for (const cache::MediaSpan& span : manifest.media) {
    if (span.source.empty() || !manifest.identity.source_format.starts_with("llama.cpp")) {
      return unsupported(
          "the cache holds media of another program, of which llama-server needs to "
          "know more than the cache does");
    }
    if (!has_server_tokens) {
      return unsupported("only the token list of llama-server names media (--llama-server-tokens)");
    }
    if (span.coordinates.empty() == model.has_positions_2d) {
      return mismatch("coordinates of media that are not those of the model's positions");
    }
    if (span.end() > manifest.n_tokens()) return unsupported("the cache ends within a medium");
  }
  TQC_TRY(check_architecture(manifest.identity.architecture, model.architecture));
  if (manifest.layers.size() != model.layers.size()) {
    return mismatch(
        fmt::format("{} layers, the model has {}", manifest.layers.size(), model.layers.size()));
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto checked = check_layer(model, model.layers[i], manifest.layers[i], types);
    if (!checked) return in_context(layer_name(i), std::move(checked).error());
  }
  const bool can_go_back = cache::checkpoint_layers(manifest.layers).empty();
  if (manifest.n_tokens() == 0 && !can_go_back) return invalid("the cache is empty");
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
  explicit LlamaRowMaker(const LlamaRowPlan& tensor);

  std::uint64_t row_size() const { return row_size_; }  // bytes

  // `block` is [n_kv_heads, n, head_dim]; `rows` receives n rows, each the heads of one token.
  // Values that already have the type of the row keep every bit.
  void make(ByteView block, std::int64_t n, std::span<std::byte> rows);

 private:
  void copy_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row) const;
  void convert_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row);

  LlamaRowPlan tensor_;
  std::size_t n_heads_;
  std::size_t head_bytes_;  // one head vector in a block
  std::uint64_t row_size_;
  std::vector<float> values_;  // [n_kv_heads, head_dim]
};

LlamaRowMaker::LlamaRowMaker(const LlamaRowPlan& tensor)
    : tensor_(tensor),
      n_heads_(static_cast<std::size_t>(tensor.shape.n_kv_heads)),
      head_bytes_(static_cast<std::size_t>(tensor.shape.head_dim) * dtype_size(tensor.dtype)),
      row_size_(
          row_bytes(*tensor.type, n_heads_ * static_cast<std::size_t>(tensor.shape.head_dim))),
      values_(n_heads_ * static_cast<std::size_t>(tensor.shape.head_dim)) {}

void LlamaRowMaker::make(ByteView block, std::int64_t n, std::span<std::byte> rows) {
  const auto n_tokens = static_cast<std::size_t>(n);
  const bool as_it_is = tensor_.type->dense == tensor_.dtype && tensor_.rotation == 0;
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
    if (tensor_.n_rot > 0) to_interleaved(tensor_.n_rot, dtype_size(tensor_.dtype), out);
  }
}

void LlamaRowMaker::convert_row(ByteView block, std::size_t n, std::size_t token,
                                std::span<std::byte> row) {
  const auto head_dim = static_cast<std::size_t>(tensor_.shape.head_dim);
  for (std::size_t head = 0; head < n_heads_; ++head) {
    const std::span<float> out = std::span(values_).subspan(head * head_dim, head_dim);
    load_f32(tensor_.dtype, block.data() + (head * n + token) * head_bytes_, out);
    if (tensor_.n_rot > 0) {
      to_interleaved(tensor_.n_rot, sizeof(float), std::as_writable_bytes(out));
    }
  }
  if (tensor_.rotation > 0) hadamard(tensor_.rotation, values_);
  encode_row(*tensor_.type, values_, row);
}

using cache::TensorKind;

constexpr std::int32_t kWrapperMark = -1;  // no token has this id
constexpr std::uint32_t kExportWrapperVersion = 1;
constexpr std::int64_t kCellsAtOnce = 4096;

// The cache itself, or a checkpoint: a reader, and the layers of the model that its layers are.
struct LlamaSource {
  const cache::CacheReader& reader;
  std::vector<std::size_t> layers;
};

std::vector<std::size_t> all_layers(const cache::CacheDesc& cache) {
  std::vector<std::size_t> layers(cache.layers.size());
  std::iota(layers.begin(), layers.end(), std::size_t{0});
  return layers;
}

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
        file_(file),
        ids_(source.description().tokens),
        positions_(cache::all_positions(source.description().media, source.n_tokens())),
        total_(cache::total_raw_bytes(cache::all_blocks(source))) {
    for (std::int32_t& id : ids_) id = std::max(id, cache::kUnknownToken);  // media have -1
  }

  Result<void> write() {
    TQC_TRY(write_head());
    TQC_TRY(write_tokens());
    if (is_session()) TQC_TRY(write_architecture());
    TQC_TRY(write_memory({source_, all_layers(description())}));
    return write_checkpoints();
  }

 private:
  using Layers = std::vector<std::size_t>;  // of a reader

  const cache::CacheDesc& description() const { return source_.description(); }
  bool is_session() const { return options_.kind == LlamaFile::kSession; }
  // Layout version. 0: April 2026. 1: cells of M-RoPE have token ids. 2: the file states rotations,
  // and checkpoints follow a sequence.
  std::uint32_t age() const { return options_.version - (is_session() ? 9 : 2); }
  bool has_token_ids() const { return age() >= 1; }
  bool has_rotations() const { return age() >= 2; }

  // Writes, or only counts.
  Result<void> put(ByteView bytes) {
    if (is_counting_) {
      counted_ += bytes.size();
      return {};
    }
    return file_.write(bytes);
  }

  Result<void> write_head() {
    ByteWriter head;
    head.write(is_session() ? kSessionMagic : kSequenceMagic);
    head.write(options_.version);
    return put(head.bytes());
  }

  // Writes the plain list, or llama-server's: a marker, a version and a length before the list, and
  // the number of media after it. Each is also a 32-bit element of the list.
  Result<void> write_tokens() {
    const auto n =
        static_cast<std::uint32_t>(description().tokens.size() + (options_.next_token ? 1 : 0));
    const std::vector<cache::MediaSpan>& media = description().media;
    ByteWriter chunks;
    for (const cache::MediaSpan& span : media) chunks.write(static_cast<std::int32_t>(span.begin));
    for (const cache::MediaSpan& span : media) {
      chunks.write(static_cast<std::uint32_t>(span.source.size()));
      chunks.append(span.source);
    }
    while (chunks.bytes().size() % sizeof(std::int32_t) != 0) chunks.write(std::uint8_t{0});
    const auto n_chunk_words =
        static_cast<std::uint32_t>(chunks.bytes().size() / sizeof(std::int32_t));
    ByteWriter before;
    before.write(options_.server_tokens ? n + 4 + n_chunk_words : n);
    if (options_.server_tokens) {
      before.write(kWrapperMark);
      before.write(kExportWrapperVersion);
      before.write(n);
    }
    TQC_TRY(put(before.bytes()));
    TQC_TRY(put(object_bytes(ids_)));
    ByteWriter after;
    if (options_.next_token) after.write(*options_.next_token);
    if (options_.server_tokens) after.write(static_cast<std::uint32_t>(media.size()));
    after.append(chunks.bytes());
    return put(after.bytes());
  }

  Result<void> write_architecture() {
    ByteWriter name;
    name.write(static_cast<std::uint32_t>(model_.architecture.size()));
    name.append(as_bytes(model_.architecture));
    return put(name.bytes());
  }

  // --- the memory of a sequence

  Layers layers_of(const LlamaSource& source, LlamaLayerKind kind) const {
    Layers layers;
    for (std::size_t i = 0; i < source.layers.size(); ++i) {
      if (model_.layers[source.layers[i]].kind == kind) layers.push_back(i);
    }
    return layers;
  }

  // Sections in llama.cpp's order. A model with windows has a section for full attention even if no
  // layer has it; a checkpoint never has one.
  Result<void> write_memory(const LlamaSource& source) {
    const bool is_whole = &source.reader == &source_;
    const Layers full = layers_of(source, LlamaLayerKind::kAttention);
    const Layers windows = layers_of(source, LlamaLayerKind::kSlidingWindow);
    const Layers recurrent = layers_of(source, LlamaLayerKind::kRecurrent);
    if (is_whole && (recurrent.empty() || !full.empty() || !windows.empty())) {
      TQC_TRY(write_attention(source, full, 0));
    }
    const std::int64_t n_tokens = source.reader.n_tokens();
    if (!windows.empty()) {
      const cache::Window window{model_.window, 0};
      TQC_TRY(write_attention(source, windows, n_tokens - cache::window_tokens(window, n_tokens)));
    }
    return recurrent.empty() ? Result<void>() : write_recurrent(source, recurrent);
  }

  // One sequence, with the tokens from `first` on, in the first stream; the others have no cells.
  Result<void> write_attention(const LlamaSource& source, const Layers& layers,
                               std::int64_t first) {
    const std::int64_t n_tokens = source.reader.n_tokens();
    ByteWriter head;
    head.write(options_.n_streams);
    head.write(static_cast<std::uint32_t>(n_tokens - first));
    TQC_TRY(put(head.bytes()));
    ByteWriter others;
    for (std::uint32_t i = 1; i < options_.n_streams; ++i) others.write(std::uint32_t{0});
    if (n_tokens == first) return put(others.bytes());  // nothing further for an empty stream
    TQC_TRY(write_cells(first, n_tokens));
    TQC_TRY(write_data_head(source, layers));
    for (const std::size_t layer : layers) {
      TQC_TRY(write_rows(source, layer, TensorKind::kKeys, first));
    }
    for (const std::size_t layer : layers) {
      if (is_latent(source, layer)) continue;
      TQC_TRY(options_.flash_attention ? write_rows(source, layer, TensorKind::kValues, first)
                                       : write_columns(source, layer, first));
    }
    return put(others.bytes());
  }

  Result<void> write_cells(std::int64_t first, std::int64_t n_tokens) {
    for (std::int64_t begin = first; begin < n_tokens; begin += kCellsAtOnce) {
      ByteWriter cells;
      const std::int64_t end = std::min(begin + kCellsAtOnce, n_tokens);
      for (std::int64_t i = begin; i < end; ++i) append_cell(i, cells);
      TQC_TRY(put(cells.bytes()));
    }
    return {};
  }

  void append_cell(std::int64_t token, ByteWriter& out) const {
    // For text, row and column are the position.
    const std::int32_t position = positions_[to_size(token)];
    std::int32_t row = position, column = position;
    const std::vector<cache::MediaSpan>& media = description().media;
    const auto behind = std::ranges::upper_bound(media, token, {}, &cache::MediaSpan::begin);
    if (behind != media.begin()) {
      const cache::MediaSpan& span = *std::prev(behind);
      if (token < span.end() && !span.coordinates.empty()) {
        const std::size_t at = to_size(token - span.begin), n = to_size(span.n_tokens);
        row = span.coordinates[n + at];
        column = span.coordinates[2 * n + at];
      }
    }
    out.write(position);
    out.write(std::uint32_t{1});  // number of sequences of the cell
    if (model_.has_positions_2d) {
      out.write(column);
      out.write(row);
      if (has_token_ids()) out.write(ids_[to_size(token)]);
    }
    out.write(std::int32_t{0});  // the sequence id
  }

  Result<void> write_data_head(const LlamaSource& source, const Layers& layers) {
    ByteWriter head;
    head.write(std::uint32_t{options_.flash_attention ? 0u : 1u});
    head.write(static_cast<std::uint32_t>(layers.size()));
    if (has_rotations()) {
      for (const TensorKind kind : {TensorKind::kKeys, TensorKind::kValues}) {
        const std::int64_t run = layers.empty() ? 0 : stated_rotation(source, layers.front(), kind);
        head.write(static_cast<std::uint32_t>(run));
      }
    }
    return put(head.bytes());
  }

  // llama.cpp states a run for latents as well, which it does not rotate.
  std::int64_t stated_rotation(const LlamaSource& source, std::size_t layer,
                               TensorKind name) const {
    const LlamaRowPlan tensor = tensor_of(source, layer, name);
    if (!is_latent(source, layer)) return tensor.rotation;
    const bool is_rotated = name == TensorKind::kKeys && !tensor.type->dense &&
                            options_.rotation != LlamaRotation::kOff;
    return is_rotated ? key_rotation_size(tensor.shape.head_dim) : 0;
  }

  LlamaRowPlan tensor_of(const LlamaSource& source, std::size_t layer, TensorKind name) const {
    const cache::LayerDesc& desc = source.reader.description().layers[layer];
    const bool is_keys = name == TensorKind::kKeys;
    LlamaRowPlan tensor;
    tensor.shape = cache::shape_of(desc, name);
    tensor.dtype = cache::tensor_of(desc, name).dtype;
    tensor.type = is_keys ? types_.k : types_.v;
    if (is_keys && model_.interleaved_keys) tensor.n_rot = model_.n_rot;
    const LlamaLayer& of_model = model_.layers[source.layers[layer]];
    if (is_keys) tensor.shape.head_dim = key_row_dim(of_model);
    if (of_model.is_latent) return tensor;  // not rotated; V is a part of the rows of K
    if (tensor.type->dense || options_.rotation == LlamaRotation::kOff) return tensor;
    const std::int64_t head_dim = tensor.shape.head_dim;
    tensor.rotation = is_keys ? key_rotation_size(head_dim) : value_rotation_size(head_dim);
    return tensor;
  }

  Result<void> read(const LlamaSource& source, std::size_t block) {
    TQC_TRY(source.reader.read(block, block_));
    done_ += source.reader.blocks()[block].raw_bytes;
    if (progress_ && !progress_(done_, total_)) return interrupted_error();
    return {};
  }

  // Calls use(token, n) with the rows of consecutive tokens, in order: those of a token block, or
  // of a whole window. `token` counts from `first`.
  template <class Use>
  Result<void> for_each_block(const LlamaSource& source, std::size_t layer, TensorKind name,
                              std::int64_t first, LlamaRowMaker& maker, Use use) {
    const std::int64_t n_tokens = source.reader.n_tokens();
    const std::vector<cache::BlockInfo>& blocks = source.reader.blocks();
    const bool is_window =
        std::holds_alternative<cache::WindowDesc>(source.reader.description().layers[layer]);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const cache::BlockInfo& block = blocks[i];
      if (to_size(block.layer) != layer) continue;
      const auto kind = is_window ? static_cast<TensorKind>(static_cast<std::uint8_t>(block.block))
                                  : block.tensor;
      if (kind != name) continue;
      const std::int64_t begin = is_window ? 0 : block.block * cache::kTokenBlock;
      const std::int64_t n =
          is_window ? n_tokens - first : cache::tokens_in_block(n_tokens, block.block);
      TQC_TRY(read(source, i));
      if (is_latent(source, layer)) TQC_TRY(join_latents(source, i, n));
      rows_.resize(to_size(n) * maker.row_size());
      maker.make(block_, n, rows_);
      TQC_TRY(use(to_size(begin), to_size(n)));
    }
    return {};
  }

  bool is_latent(const LlamaSource& source, std::size_t layer) const {
    return model_.layers[source.layers[layer]].is_latent;
  }

  // block_ holds block `keys`, the latents of n tokens: puts their rotated parts, which are the
  // next block, behind them.
  Result<void> join_latents(const LlamaSource& source, std::size_t keys, std::int64_t n) {
    AlignedBytes latents;
    std::swap(latents, block_);
    TQC_TRY(read(source, keys + 1));
    const std::size_t k = latents.size() / to_size(n), v = block_.size() / to_size(n);
    AlignedBytes rows(to_size(n) * (k + v));
    for (std::size_t token = 0; token < to_size(n); ++token) {
      std::memcpy(rows.data() + token * (k + v), latents.data() + token * k, k);
      std::memcpy(rows.data() + token * (k + v) + k, block_.data() + token * v, v);
    }
    block_ = std::move(rows);
    return {};
  }

  Result<void> write_rows(const LlamaSource& source, std::size_t layer, TensorKind name,
                          std::int64_t first) {
    const LlamaRowPlan tensor = tensor_of(source, layer, name);
    LlamaRowMaker maker(tensor);
    ByteWriter head;
    head.write(tensor.type->id);
    head.write(maker.row_size());
    TQC_TRY(put(head.bytes()));
    if (is_counting_) {
      counted_ += to_u64(source.reader.n_tokens() - first) * maker.row_size();
      return {};
    }
    return for_each_block(source, layer, name, first, maker,
                          [&](std::size_t, std::size_t) { return put(rows_); });
  }

  // Values as stored without flash attention: for each component, all tokens.
  Result<void> write_columns(const LlamaSource& source, std::size_t layer, std::int64_t first) {
    const LlamaRowPlan tensor = tensor_of(source, layer, TensorKind::kValues);
    LlamaRowMaker maker(tensor);
    const std::size_t size = tensor.type->block_bytes;
    const std::size_t width = maker.row_size() / size;
    const std::size_t n_rows = to_size(source.reader.n_tokens() - first);
    ByteWriter head;
    head.write(tensor.type->id);
    head.write(static_cast<std::uint32_t>(size));
    head.write(static_cast<std::uint32_t>(width));
    TQC_TRY(put(head.bytes()));
    if (is_counting_) {
      counted_ += n_rows * maker.row_size();
      return {};
    }
    columns_.resize(width * n_rows * size);
    const auto use = [&](std::size_t begin, std::size_t n) {
      for (std::size_t i = 0; i < width; ++i) {
        std::byte* column = columns_.data() + (i * n_rows + begin) * size;
        for (std::size_t token = 0; token < n; ++token) {
          std::memcpy(column + token * size, rows_.data() + (token * width + i) * size, size);
        }
      }
      return Result<void>();
    };
    TQC_TRY(for_each_block(source, layer, TensorKind::kValues, first, maker, use));
    return put(columns_);
  }

  // One cell, at the last token. In a sequence file it names no sequence.
  Result<void> write_recurrent(const LlamaSource& source, const Layers& layers) {
    ByteWriter head;
    head.write(std::uint32_t{1});
    head.write(static_cast<std::int32_t>(
        cache::position_of(description().media, source.reader.n_tokens()) - 1));
    head.write(std::uint32_t{is_session() ? 1u : 0u});
    if (is_session()) head.write(std::int32_t{0});
    head.write(std::uint32_t{0});
    head.write(static_cast<std::uint32_t>(model_.layers.size()));
    TQC_TRY(put(head.bytes()));
    std::vector<LlamaStateRows> rows(layers.size());
    for (std::size_t i = 0; i < layers.size() && !is_counting_; ++i) {
      TQC_TRY_ASSIGN(rows[i], read_state(source, layers[i]));
    }
    for (const bool is_r : {true, false}) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const LlamaLayer& of_model = model_.layers[source.layers[layers[i]]];
        const std::uint64_t bytes = (is_r ? of_model.r_values : of_model.s_values) * sizeof(float);
        ByteWriter row;
        row.write(std::uint32_t{0});  // f32
        row.write(bytes);
        TQC_TRY(put(row.bytes()));
        if (is_counting_) {
          counted_ += bytes;
        } else {
          TQC_TRY(put(object_bytes(is_r ? rows[i].r : rows[i].s)));
        }
      }
    }
    return {};
  }

  Result<LlamaStateRows> read_state(const LlamaSource& source, std::size_t layer) {
    const std::vector<cache::BlockInfo>& blocks = source.reader.blocks();
    std::vector<AlignedBytes> arrays;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (to_size(blocks[i].layer) != layer) continue;
      TQC_TRY(read(source, i));
      arrays.push_back(block_);
    }
    const auto& state = std::get<cache::StateDesc>(source.reader.description().layers[layer]);
    return llama_state_rows(model_.architecture, state, arrays);
  }

  // --- checkpoints

  // llama-server goes back to a checkpoint for every prompt that does not just extend the sequence,
  // and for windows even then. So a slot with windows gets one at its end if it has none.
  bool needs_checkpoint() const {
    const auto is_window = [](const LlamaLayer& layer) {
      return layer.kind == LlamaLayerKind::kSlidingWindow;
    };
    return options_.server_tokens && std::ranges::any_of(model_.layers, is_window);
  }

  Result<void> write_checkpoints() {
    if (is_session() || !has_rotations()) return {};
    const auto checkpoints = source_.checkpoints();
    if (checkpoints.empty() && !needs_checkpoint()) return {};
    ByteWriter head;
    head.write(kCheckpointsMagic);
    head.write(kCheckpointsVersion);
    head.write(static_cast<std::uint32_t>(std::max<std::size_t>(checkpoints.size(), 1)));
    TQC_TRY(put(head.bytes()));
    const Layers layers = cache::checkpoint_layers(description().layers);
    for (const cache::Checkpoint& checkpoint : checkpoints) {
      TQC_TRY(write_checkpoint({*checkpoint.state, layers}, checkpoint.first_position));
    }
    if (!checkpoints.empty()) return {};
    const auto end = cache::some_layers(cache::borrow(source_), layers);
    return write_checkpoint({*end, layers}, 0);
  }

  Result<void> write_checkpoint(const LlamaSource& source, std::int64_t first_position) {
    is_counting_ = true;
    counted_ = 0;
    TQC_TRY(write_partial_state(source));
    is_counting_ = false;
    const std::int64_t n_tokens = source.reader.n_tokens();
    ByteWriter head;
    head.write(n_tokens);
    head.write(static_cast<std::int32_t>(first_position));
    head.write(static_cast<std::int32_t>(n_tokens - 1));
    head.write(counted_);
    TQC_TRY(put(head.bytes()));
    TQC_TRY(write_partial_state(source));
    for (const std::string_view name : {kOpaqueDraft, kOpaqueSpeculative}) {
      TQC_TRY_ASSIGN(const Bytes bytes, read_opaque(source, name));
      ByteWriter length;
      length.write(std::uint64_t{bytes.size()});
      TQC_TRY(put(length.bytes()));
      TQC_TRY(put(bytes));
    }
    return {};
  }

  // The bytes of an array of the opaque layer; none without such an array.
  Result<Bytes> read_opaque(const LlamaSource& source, std::string_view name) {
    const std::vector<cache::LayerDesc>& layers = source.reader.description().layers;
    const cache::StateDesc* opaque = cache::opaque_layer(layers);
    if (opaque == nullptr) return Bytes();
    const std::vector<cache::BlockInfo>& blocks = source.reader.blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].layer + 1 != std::ssize(layers)) continue;
      if (opaque->arrays[to_size(blocks[i].block)].name != name) continue;
      TQC_TRY(read(source, i));
      const std::uint64_t room = block_.size();
      if (room < sizeof(room)) return corrupt("opaque array without its length");
      const auto size = number_at<std::uint64_t>(block_, 0);
      if (size > room - sizeof(size)) return corrupt("opaque array shorter than it says");
      const auto begin = block_.begin() + sizeof(size);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(size));
    }
    return Bytes();
  }

  Result<void> write_partial_state(const LlamaSource& source) {
    ByteWriter head;
    head.write(kPartialStateMagic);
    if (is_counting_) {
      head.write(std::int32_t{0});
    } else {
      TQC_TRY_ASSIGN(Bytes sequence, read_opaque(source, kOpaqueSequence));
      sequence.resize(sizeof(std::int32_t));  // 0 where it is not kept
      head.append(sequence);
    }
    TQC_TRY(put(head.bytes()));
    return write_memory(source);
  }

  const cache::CacheReader& source_;
  const LlamaGeometry& model_;
  const LlamaExport& options_;
  const LlamaRowTypes& types_;
  const Progress& progress_;
  AtomicFile& file_;
  std::vector<std::int32_t> ids_, positions_;  // of all tokens
  AlignedBytes block_;                         // [n_kv_heads, n, head_dim], or an array
  Bytes rows_;                                 // [n, row_size]
  Bytes columns_;                              // [n_kv_heads * head_dim, n_tokens]
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  bool is_counting_ = false;
  std::uint64_t counted_ = 0;  // bytes
};

}  // namespace

Result<void> export_llama_state(const cache::CacheReader& cache, const LlamaGeometry& model,
                                const std::filesystem::path& path, const LlamaExport& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const LlamaRowTypes types, check_export_options(options));
  TQC_TRY(check_export_cache(cache.description(), model, types, options.server_tokens));
  TQC_TRY_ASSIGN(const auto dense, cache::dequantize(cache::borrow(cache)));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  if (options.is_temporary) file.skip_flush();
  TQC_TRY(StateWriter(*dense, model, options, types, progress, file).write());
  return file.commit();
}

}  // namespace tqcache::interop
