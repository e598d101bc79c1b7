#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/interop/llama/llama_cells.h"
#include "tqcache/interop/llama/llama_parse.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/llama/llama_tensor.h"

namespace tqcache::interop {
namespace {

// Limit on the bytes of transposed values kept in memory between two token blocks, for all layers.
constexpr std::uint64_t kTransposedBytes = std::uint64_t{128} << 20;

using Order = std::shared_ptr<const std::vector<std::uint32_t>>;

Result<void> check_layer(const LlamaGeometry& model, const LlamaLayer& layer) {
  if (layer.kind == LlamaLayerKind::kRecurrent) return {};
  TQC_TRY(cache::validate_shapes({layer.n_kv_heads, layer.k_head_dim},
                                 cache::value_dim_of(layer.k_head_dim, layer.v_head_dim)));
  const bool has_pairs =
      model.n_rot >= 0 && model.n_rot <= layer.k_head_dim && model.n_rot % 2 == 0;
  if (has_pairs || !model.interleaved_keys) return {};
  return unsupported(
      fmt::format("RoPE of {} components in heads of {}", model.n_rot, layer.k_head_dim));
}

Result<void> check_model(const LlamaGeometry& model) {
  if (model.layers.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return too_large(fmt::format("{} layers", model.layers.size()));
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto done = check_layer(model, model.layers[i]);
    if (!done) return in_context(fmt::format("layer {}", i), std::move(done).error());
  }
  return {};
}

Result<void> check_options(const LlamaImport& options) {
  std::string_view names = options.turbo_layout;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    if (find_llama_turbo(names.substr(0, end)) == nullptr) {
      return invalid("no such layout: " + options.turbo_layout);
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return {};
}

std::int64_t n_cells(const LlamaCells& cells) { return std::ssize(cells.positions); }

// Makes the cache of a file that has been parsed.
// The kind and the name of a medium, of a chunk of any version: u64 version, u32 kind (1 image, 2
// sound), and somewhere behind them the SHA-256 of the file that was shown, in hexadecimal. Without
// one, that of the chunk names it.
cache::MediaSpan media_of_chunk(const Bytes& chunk) {
  constexpr std::size_t kKindAt = 8, kHeadBytes = 12, kDigits = 64;
  constexpr std::uint32_t kSound = 2;
  cache::MediaSpan span;
  span.source = chunk;
  if (chunk.size() >= kHeadBytes && number_at<std::uint32_t>(chunk, kKindAt) == kSound) {
    span.kind = cache::MediaKind::kAudio;
  }
  std::string digits;
  for (std::size_t i = kHeadBytes; i < chunk.size() && digits.size() < kDigits; ++i) {
    const char c = static_cast<char>(chunk[i]);
    const bool is_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (is_digit) {
      digits += c;
    } else {
      digits.clear();
    }
  }
  span.id = digits.size() == kDigits ? "sha256:" + digits : "chunk:" + to_hex(sha256(chunk));
  return span;
}

class Import {
 public:
  Import(std::shared_ptr<const ByteSource> file, const LlamaGeometry& model,
         const LlamaImport& options, const LlamaBody& body)
      : file_(std::move(file)), model_(model), options_(options), body_(body) {}

  Result<LlamaImported> run(const LlamaTokens& tokens) {
    TQC_TRY_ASSIGN(imported_.cache.n_tokens, count_tokens());
    TQC_TRY(set_tokens(tokens));
    TQC_TRY(set_media(tokens));
    imported_.cache.identity.source_format = "llama.cpp";
    imported_.cache.identity.llama_streams = body_.n_streams;
    imported_.rotation_is_stated = body_.profile.has_rotations;
    imported_.cache.layers.resize(model_.layers.size());
    count_transposed();
    for (const LlamaAttentionSection& section : body_.attention) TQC_TRY(add_attention(section));
    if (body_.recurrent) {
      TQC_TRY(add_recurrent(*body_.recurrent, imported_.cache.n_tokens, imported_.cache.layers));
    }
    has_other_models_ = std::ranges::any_of(body_.checkpoints, [&](const LlamaCheckpoint& each) {
      return !lacks_tokens(each) && (each.draft.size > 0 || each.speculative.size > 0);
    });
    for (std::size_t i = 0; i < body_.checkpoints.size(); ++i) {
      if (lacks_tokens(body_.checkpoints[i])) {
        has_incomplete_checkpoints_ = true;
        continue;
      }
      auto checkpoint = checkpoint_of(body_.checkpoints[i], i);
      if (!checkpoint) {
        return in_context(cache::checkpoint_place(i), std::move(checkpoint).error());
      }
      imported_.cache.checkpoints.push_back(std::move(checkpoint).value());
    }
    note_metadata();
    return std::move(imported_);
  }

 private:
  // The first section has one cell per token; without attention, its one cell has the last
  // position.
  Result<std::int64_t> count_tokens() const {
    std::int64_t n = 0;
    if (!body_.attention.empty()) {
      n = n_cells(body_.attention.front().cells);
    } else if (body_.recurrent && n_cells(body_.recurrent->cells) > 0) {
      n = std::int64_t{body_.recurrent->cells.positions.front()} + 1;
    }
    if (n == 0) return unsupported("a state without cells");
    if (n <= cache::kMaxTokens) return n;
    return too_large(fmt::format("{} tokens", n));
  }

  // The last token of the list may not have been computed yet.
  Result<void> set_tokens(const LlamaTokens& tokens) {
    std::vector<std::int32_t> ids = tokens.ids;
    const std::int64_t n = imported_.cache.n_tokens;
    if (std::ssize(ids) != n && std::ssize(ids) != n + 1) {
      return corrupt(fmt::format("{} tokens in the list and {} in the cells", ids.size(), n));
    }
    if (std::ssize(ids) == n + 1) {
      imported_.next_token = ids.back();
      ids.pop_back();
    }
    imported_.cache.tokens = std::move(ids);
    return {};
  }

  // Spans of the media in the list, with the coordinates that the cells of M-RoPE have.
  Result<void> set_media(const LlamaTokens& tokens) {
    if (body_.attention.empty()) {
      return tokens.media.empty() ? Result<void>() : unsupported("media, but no attention");
    }
    const LlamaCells& cells = body_.attention.front().cells;
    if (tokens.media.empty()) {
      return cells.rows.empty()
                 ? Result<void>()
                 : unsupported("positions of an image, which the list does not name");
    }
    const std::int64_t n_tokens = imported_.cache.n_tokens;
    TQC_TRY_ASSIGN(std::vector<std::uint32_t> order, order_llama_cells(cells, 0, n_tokens));
    if (order.empty()) {
      order.resize(to_size(n_tokens));
      std::iota(order.begin(), order.end(), 0u);
    }
    const std::vector<std::int32_t>& ids = *imported_.cache.tokens;
    std::vector<cache::MediaSpan>& media = imported_.cache.media;
    for (std::size_t i = 0; i < tokens.media.size(); ++i) {
      const std::int64_t begin = tokens.media[i].first;
      std::int64_t end = i + 1 < tokens.media.size() ? tokens.media[i + 1].first : n_tokens;
      end = std::find_if(ids.begin() + begin, ids.begin() + std::min(end, n_tokens),
                         [](std::int32_t id) { return id >= 0; }) -
            ids.begin();
      cache::MediaSpan span = media_of_chunk(tokens.media[i].chunk);
      span.begin = begin;
      span.n_tokens = end - begin;
      span.next_position = cache::position_of(media, begin) + span.n_tokens;
      if (!cells.rows.empty()) {
        for (const auto* axis : {&cells.positions, &cells.rows, &cells.columns}) {
          for (std::int64_t at = begin; at < end; ++at) {
            span.coordinates.push_back((*axis)[order[to_size(at)]]);
          }
        }
        span.next_position = std::int64_t{std::ranges::max(span.coordinates)} + 1;
        if (end < n_tokens) span.next_position = cells.positions[order[to_size(end)]];
      }
      media.push_back(std::move(span));
    }
    const std::vector<std::int32_t> expected = cache::all_positions(media, n_tokens);
    for (std::int64_t at = 0; at < n_tokens; ++at) {
      if (cells.positions[order[to_size(at)]] == expected[to_size(at)]) continue;
      return unsupported(fmt::format("positions with gaps behind media: token {} at position {}",
                                     at, cells.positions[order[to_size(at)]]));
    }
    return {};
  }

  void count_transposed() {
    const auto count = [&](const LlamaAttentionSection& section) {
      n_transposed_ += static_cast<std::uint64_t>(
          std::ranges::count_if(section.v, [](const LlamaRows& v) { return v.is_transposed; }));
    };
    for (const LlamaAttentionSection& section : body_.attention) count(section);
    for (const LlamaCheckpoint& checkpoint : body_.checkpoints) {
      if (checkpoint.windows) count(*checkpoint.windows);
    }
  }

  // --- attention

  Result<void> add_attention(const LlamaAttentionSection& section) {
    Order whole;
    for (std::size_t i = 0; i < section.layers.size(); ++i) {
      const std::size_t layer = section.layers[i];
      const bool has_window = model_.layers[layer].kind == LlamaLayerKind::kSlidingWindow;
      if (has_window) {
        TQC_TRY_ASSIGN(imported_.cache.layers[layer],
                       window_of(section, i, imported_.cache.n_tokens));
        continue;
      }
      if (!whole) {
        TQC_TRY_ASSIGN(whole, order_of(section, 0, imported_.cache.n_tokens));
      }
      imported_.cache.layers[layer] =
          attention_layer(shape_of(layer, true), tensor_of(section, i, true, whole),
                          tensor_of(section, i, false, whole), value_dim_of(layer));
    }
    return {};
  }

  // The order of the tokens from `first` on, of a state of `n_tokens` tokens.
  static Result<Order> order_of(const LlamaAttentionSection& section, std::int64_t first,
                                std::int64_t n_tokens) {
    TQC_TRY_ASSIGN(auto order, order_llama_cells(section.cells, first, n_tokens - first));
    return Order(std::make_shared<const std::vector<std::uint32_t>>(std::move(order)));
  }

  cache::HeadShape shape_of(std::size_t layer, bool is_key) const {
    const LlamaLayer& of_model = model_.layers[layer];
    return {of_model.n_kv_heads, is_key ? of_model.k_head_dim : of_model.v_head_dim};
  }
  std::int64_t value_dim_of(std::size_t layer) const {
    return cache::value_dim_of(model_.layers[layer].k_head_dim, model_.layers[layer].v_head_dim);
  }

  ForeignTensor tensor_of(const LlamaAttentionSection& section, std::size_t i, bool is_key,
                          const Order& order) {
    const LlamaLayer& layer = model_.layers[section.layers[i]];
    if (!layer.is_latent) return rows_of(section, i, is_key, order);
    // A row of keys is K, then V.
    ForeignTensor both = rows_of(section, i, true, order);
    const std::size_t size = dtype_size(both.description.dtype);
    const std::size_t row = static_cast<std::size_t>(key_row_dim(layer)) * size;
    const std::size_t begin = is_key ? 0 : static_cast<std::size_t>(layer.k_head_dim) * size;
    const std::size_t end = is_key ? static_cast<std::size_t>(layer.k_head_dim) * size : row;
    ReadRows read = [whole = std::move(both.read), buffers = buffers_, row, begin, end](
                        std::int64_t first, std::int64_t n,
                        std::span<std::byte> out) -> Result<void> {
      const auto rows = buffers->borrow([] { return std::make_unique<AlignedBytes>(); });
      rows->resize(static_cast<std::size_t>(n) * row);
      TQC_TRY(whole(first, n, *rows));
      for (std::size_t token = 0; token < static_cast<std::size_t>(n); ++token) {
        const auto part = std::span(*rows).subspan(token * row + begin, end - begin);
        std::ranges::copy(part, out.subspan(token * (end - begin)).begin());
      }
      return {};
    };
    return {both.description, std::move(read)};
  }

  ForeignTensor rows_of(const LlamaAttentionSection& section, std::size_t i, bool is_key,
                        const Order& order) {
    LlamaTensor tensor;
    tensor.file = file_;
    tensor.buffers = buffers_;
    tensor.rows = is_key ? section.k[i] : section.v[i];
    tensor.n_cells = section.cells.positions.size();
    tensor.cells = order;
    tensor.shape = shape_of(section.layers[i], is_key);
    if (is_key) tensor.shape.head_dim = key_row_dim(model_.layers[section.layers[i]]);
    if (is_key && model_.interleaved_keys) tensor.n_rot = model_.n_rot;
    tensor.rotation = rotation_of(tensor, is_key, model_.layers[section.layers[i]].is_latent);
    if (tensor.rows.is_transposed) tensor.transposed_bytes = kTransposedBytes / n_transposed_;
    note_type(tensor.rows, is_key ? key_types_ : value_types_);
    const Dtype dtype = dense_dtype(tensor.rows.format);
    return {{dtype, {}}, read_llama_tensor(std::move(tensor))};
  }

  // Rows of the fork's types have their own rotation, and latents have none.
  std::int64_t rotation_of(const LlamaTensor& tensor, bool is_key, bool is_latent) {
    const LlamaRowType* plain = tensor.rows.format.plain;
    if (plain != nullptr && plain->dense) return 0;
    imported_.cache.is_quantized = true;
    if (plain == nullptr || is_latent) return 0;
    imported_.may_be_rotated = true;
    if (tensor.rows.rotation) return *tensor.rows.rotation;
    if (options_.rotation == LlamaRotation::kOff) return 0;
    const std::int64_t head_dim = tensor.shape.head_dim;
    return is_key ? key_rotation_size(head_dim) : value_rotation_size(head_dim);
  }

  static void note_type(const LlamaRows& rows, std::vector<std::string>& types) {
    std::string name(rows.format.name());
    if (rows.is_transposed) name += " transposed";
    if (std::ranges::count(types, name) == 0) types.push_back(std::move(name));
  }

  // --- windows

  // The newest tokens, as many as the window holds. No later token attends to older ones.
  Result<ForeignLayer> window_of(const LlamaAttentionSection& section, std::size_t i,
                                 std::int64_t n_tokens) {
    const std::size_t layer = section.layers[i];
    const cache::HeadShape shape = shape_of(layer, true);
    const cache::Window window{model_.window, 0};
    TQC_TRY(cache::validate_window(shape, window));
    const std::int64_t n = cache::window_tokens(window, n_tokens);
    auto order = order_of(section, n_tokens - n, n_tokens);
    if (!order) {
      return in_context(fmt::format("layer {}, a window of {} tokens", layer, model_.window),
                        std::move(order).error());
    }
    if (n_cells(section.cells) > n) has_older_cells_ = true;
    const auto array_of = [&](std::string_view name, bool is_key) {
      const ForeignTensor tensor = tensor_of(section, i, is_key, *order);
      const cache::HeadShape heads = shape_of(layer, is_key);
      return ForeignArray{{std::string(name), tensor.description.dtype,
                           cache::window_array_shape(heads, window, n_tokens)},
                          whole_of(tensor, heads, n)};
    };
    return window_layer(shape, window, array_of(cache::kWindowKeys, true),
                        array_of(cache::kWindowValues, false), value_dim_of(layer));
  }

  // Reads [n_kv_heads, n, head_dim] token block by token block.
  static ReadArray whole_of(const ForeignTensor& tensor, cache::HeadShape shape, std::int64_t n) {
    const auto row =
        static_cast<std::size_t>(shape.head_dim) * dtype_size(tensor.description.dtype);
    return [read = tensor.read, shape, n, row](std::span<std::byte> out) -> Result<void> {
      const auto n_heads = static_cast<std::size_t>(shape.n_kv_heads);
      AlignedBytes block;
      for (std::int64_t first = 0; first < n; first += cache::kTokenBlock) {
        const std::int64_t count = std::min(cache::kTokenBlock, n - first);
        const std::size_t head_bytes = static_cast<std::size_t>(count) * row;
        block.resize(n_heads * head_bytes);
        TQC_TRY(read(first, count, block));
        for (std::size_t head = 0; head < n_heads; ++head) {
          const std::size_t to =
              (head * static_cast<std::size_t>(n) + static_cast<std::size_t>(first)) * row;
          std::ranges::copy(std::span(block).subspan(head * head_bytes, head_bytes),
                            out.subspan(to).begin());
        }
      }
      return {};
    };
  }

  // --- recurrent state

  // Sets the layers of the section, of a state of `n_tokens` tokens.
  Result<void> add_recurrent(const LlamaRecurrentSection& section, std::int64_t n_tokens,
                             std::vector<ForeignLayer>& layers) const {
    const LlamaCells& cells = section.cells;
    if (n_cells(cells) != 1 || cells.has_several_sequences) {
      return unsupported(fmt::format("recurrent state of {} cells", n_cells(cells)));
    }
    if (std::int64_t{cells.positions.front()} + 1 !=
        cache::position_of(imported_.cache.media, n_tokens)) {
      return unsupported(fmt::format("recurrent state at position {} of {} tokens",
                                     cells.positions.front(), n_tokens));
    }
    for (std::size_t i = 0; i < section.layers.size(); ++i) {
      const LlamaLayer& layer = model_.layers[section.layers[i]];
      std::vector<ForeignArray> arrays;
      if (layer.r_values > 0) arrays.push_back(array_of("r", layer.r_values, section.r[i]));
      if (layer.s_values > 0) arrays.push_back(array_of("s", layer.s_values, section.s[i]));
      layers[section.layers[i]] = state_layer(std::move(arrays));
    }
    return {};
  }

  // --- checkpoints

  // Whether the first tokens of a window are missing. A server that has restored exactly one window
  // and goes back by a token makes such a checkpoint.
  bool lacks_tokens(const LlamaCheckpoint& in) const {
    return in.windows && in.first_position < in.n_tokens &&
           in.first_position > std::max<std::int64_t>(0, in.n_tokens - model_.window);
  }

  Result<ForeignCheckpoint> checkpoint_of(const LlamaCheckpoint& in, std::size_t number) {
    ForeignCheckpoint checkpoint{in.n_tokens, in.first_position, {}};
    if (in.n_tokens < 1 || in.n_tokens > imported_.cache.n_tokens) {
      return corrupt(fmt::format("at {} tokens of {}", in.n_tokens, imported_.cache.n_tokens));
    }
    if (std::int64_t{in.last_position} + 1 != in.n_tokens) {
      return corrupt(
          fmt::format("at {} tokens, and its last position is {}", in.n_tokens, in.last_position));
    }
    if (in.first_position < 0 || in.first_position >= in.n_tokens) {
      return corrupt(fmt::format("first position {} of {} tokens", in.first_position, in.n_tokens));
    }
    if (number > 0 && in.n_tokens <= body_.checkpoints[number - 1].n_tokens) {
      return corrupt(fmt::format("at {} tokens, after one at {}", in.n_tokens,
                                 body_.checkpoints[number - 1].n_tokens));
    }
    n_checkpoint_tokens_ += in.n_tokens;
    if (n_checkpoint_tokens_ > cache::kMaxCheckpointTokens) {
      return too_large(fmt::format("{} tokens together", n_checkpoint_tokens_));
    }
    std::vector<ForeignLayer> layers(model_.layers.size());
    if (in.windows) {
      for (std::size_t i = 0; i < in.windows->layers.size(); ++i) {
        TQC_TRY_ASSIGN(layers[in.windows->layers[i]], window_of(*in.windows, i, in.n_tokens));
      }
    }
    if (in.recurrent) TQC_TRY(add_recurrent(*in.recurrent, in.n_tokens, layers));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (model_.layers[i].kind == LlamaLayerKind::kAttention) continue;
      checkpoint.layers.push_back(std::move(layers[i]));
    }
    if (has_other_models_) {
      checkpoint.layers.push_back(
          state_layer({opaque_of(kOpaqueSequence, in.sequence), opaque_of(kOpaqueDraft, in.draft),
                       opaque_of(kOpaqueSpeculative, in.speculative)},
                      true));
    }
    return checkpoint;
  }

  // Bytes of the file as an array of an opaque layer: their number, the bytes, zeros up to a word.
  ForeignArray opaque_of(std::string_view name, LlamaBytes bytes) const {
    const std::uint64_t n_words = (sizeof(bytes.size) + bytes.size + 3) / 4;
    ReadArray read = [file = file_, bytes](std::span<std::byte> out) {
      std::memcpy(out.data(), &bytes.size, sizeof(bytes.size));
      const auto rest = out.subspan(sizeof(bytes.size));
      std::ranges::fill(rest.last(std::min<std::size_t>(rest.size(), 4)), std::byte{0});
      return file->read_at(bytes.offset, rest.first(static_cast<std::size_t>(bytes.size)));
    };
    return {{std::string(name), Dtype::kF32, {n_words}}, std::move(read)};
  }

  ForeignArray array_of(std::string name, std::uint64_t n_values, std::uint64_t offset) const {
    ReadArray read = [file = file_, offset](std::span<std::byte> out) {
      return file->read_at(offset, out);
    };
    return {{std::move(name), Dtype::kF32, {n_values}}, std::move(read)};
  }

  // --- for display

  static std::string joined(const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
  }

  // "2, at 84 to 596 tokens"
  std::string checkpoint_words() const {
    const auto& checkpoints = imported_.cache.checkpoints;
    if (checkpoints.size() == 1) return fmt::format("1, at {} tokens", checkpoints[0].n_tokens);
    return fmt::format("{}, at {} to {} tokens", checkpoints.size(), checkpoints.front().n_tokens,
                       checkpoints.back().n_tokens);
  }

  void note_metadata() {
    auto& metadata = imported_.cache.metadata;
    metadata.emplace_back("layout", body_.profile.words);
    if (!key_types_.empty()) metadata.emplace_back("keys", joined(key_types_));
    if (!value_types_.empty()) metadata.emplace_back("values", joined(value_types_));
    metadata.emplace_back("cells", std::to_string(imported_.cache.n_tokens));
    if (body_.n_streams > 1) metadata.emplace_back("streams", std::to_string(body_.n_streams));
    if (!imported_.cache.checkpoints.empty()) {
      metadata.emplace_back("checkpoints", checkpoint_words());
    }
    auto& dropped_fields = imported_.cache.dropped_fields;
    if (body_.profile.outputs == LlamaOutputs::kRngAndOutputs) {
      dropped_fields.emplace_back("The state of the sampler is left out.");
    }
    if (body_.profile.outputs != LlamaOutputs::kNone) {
      dropped_fields.emplace_back("Logits and embeddings of the last batch are left out.");
    }
    if (body_.has_idle_checkpoints) {
      dropped_fields.emplace_back("Context checkpoints are left out: the model needs none.");
    }
    if (has_incomplete_checkpoints_) {
      dropped_fields.emplace_back(
          "Context checkpoints whose windows lack their first tokens are left out.");
    }
    if (has_older_cells_) {
      dropped_fields.emplace_back(
          "Tokens of sliding-window layers that are behind the window are left out.");
    }
  }

  std::shared_ptr<const ByteSource> file_;
  const LlamaGeometry& model_;
  const LlamaImport& options_;
  const LlamaBody& body_;
  LlamaImported imported_;
  std::shared_ptr<LlamaBuffers> buffers_ = std::make_shared<LlamaBuffers>();
  std::uint64_t n_transposed_ = 0;
  std::vector<std::string> key_types_, value_types_;
  bool has_older_cells_ = false;
  bool has_other_models_ = false;  // a checkpoint that is kept has state of a draft model
  bool has_incomplete_checkpoints_ = false;
  std::int64_t n_checkpoint_tokens_ = 0;
};

std::string file_words(const LlamaEnvelope& envelope, const LlamaTokens& tokens) {
  std::string words = envelope.kind == LlamaFile::kSession ? "session" : "sequence";
  words += fmt::format(", version {}", envelope.version);
  if (tokens.is_wrapped) words += ", of llama-server";
  return words;
}

}  // namespace

Result<LlamaImported> import_llama_state(std::shared_ptr<const ByteSource> file,
                                         const LlamaGeometry& model, const LlamaImport& options) {
  TQC_TRY(check_options(options));
  TQC_TRY(check_model(model));
  TQC_TRY_ASSIGN(const auto envelope, read_llama_envelope(*file));
  if (!envelope) return corrupt("not a state file of llama.cpp");
  TQC_TRY(check_llama_version(envelope->kind, envelope->version));
  TQC_TRY_ASSIGN(const LlamaTokens tokens, read_llama_tokens(*file, *envelope));
  const LlamaParse parse{*file, tokens.end, envelope->kind, model, options};
  TQC_TRY_ASSIGN(const LlamaBody body, find_llama_body(parse, envelope->version));
  TQC_TRY_ASSIGN(LlamaImported imported, Import(file, model, options, body).run(tokens));
  auto& metadata = imported.cache.metadata;
  metadata.insert(metadata.begin(), {"llama.cpp", file_words(*envelope, tokens)});
  return imported;
}

}  // namespace tqcache::interop
