#include "tqcache/interop/llama/llama_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/file_cursor.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

// llama-server's list: marker, version, count, ids, count of media, the first token of each, then
// the size and the bytes of each, and zero padding to a whole word.
constexpr std::int32_t kWrapperMarker = -1;
constexpr std::int32_t kWrapperVersion = 1;
constexpr std::int32_t kMediaId = -1;
constexpr std::size_t kWrapperWords = 4;  // all except the ids, without media
constexpr std::size_t kMaxMediaWords = 1 << 22;

using Words = std::vector<std::int32_t>;

Result<Words> read_words(const ByteSource& file, const LlamaEnvelope& envelope) {
  const std::uint64_t n = envelope.n_u32;
  if (n > static_cast<std::uint64_t>(cache::kMaxTokens) + kWrapperWords + kMaxMediaWords) {
    return too_large(fmt::format("token list: {} words", n));
  }
  const std::uint64_t size = file.size();
  if (size < kEnvelopeBytes || n * sizeof(std::int32_t) > size - kEnvelopeBytes) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("token list: {} words, and the file ends before", n)};
  }
  Words words(static_cast<std::size_t>(n));
  TQC_TRY(file.read_at(kEnvelopeBytes, std::as_writable_bytes(std::span(words))));
  return words;
}

bool is_wrapped(const Words& words) { return !words.empty() && words[0] == kWrapperMarker; }

// The media behind the ids: their number, their first tokens, their chunks.
Result<std::vector<LlamaMedia>> read_media(std::span<const std::int32_t> words) {
  const auto n_media = static_cast<std::uint32_t>(words[0]);
  if (n_media > cache::kMaxMediaSpans) {
    return too_large(fmt::format("token list of llama-server: {} media", n_media));
  }
  if (n_media >= words.size()) return corrupt("token list of llama-server: too short");
  std::vector<LlamaMedia> media(n_media);
  for (std::size_t i = 0; i < n_media; ++i) media[i].first = words[1 + i];
  ByteView bytes = std::as_bytes(words.subspan(1 + n_media));
  for (LlamaMedia& each : media) {
    if (bytes.size() < sizeof(std::uint32_t)) return corrupt("media: no size");
    const auto size = number_at<std::uint32_t>(bytes, 0);
    bytes = bytes.subspan(sizeof(std::uint32_t));
    if (size == 0 || size > bytes.size() || size > cache::kMaxMediaSourceBytes) {
      return corrupt(fmt::format("media of {} bytes", size));
    }
    each.chunk.assign(bytes.begin(), bytes.begin() + size);
    bytes = bytes.subspan(size);
  }
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (bytes.size() < sizeof(std::int32_t) && std::ranges::all_of(bytes, is_zero)) return media;
  return corrupt("token list of llama-server: numbers after its end");
}

// Checks that the ids of media are -1, and all others are not.
Result<void> check_media(const Words& ids, const std::vector<LlamaMedia>& media) {
  std::int64_t end = 0;  // of the -1 of the medium before
  for (std::size_t i = 0; i < media.size(); ++i) {
    const std::int64_t first = media[i].first;
    if (first < end || first >= std::ssize(ids) || ids[to_size(first)] != kMediaId) {
      return corrupt(fmt::format("media {}: it begins at token {}", i, first));
    }
    end = i + 1 < media.size() ? std::min<std::int64_t>(media[i + 1].first, std::ssize(ids))
                               : std::ssize(ids);
    const auto text = std::find_if(ids.begin() + first, ids.begin() + std::max(first, end),
                                   [](std::int32_t id) { return id != kMediaId; });
    end = text - ids.begin();
  }
  return {};
}

Result<LlamaTokens> unwrap(const Words& words) {
  if (words.size() < kWrapperWords) return corrupt("token list of llama-server: too short");
  if (words[1] != kWrapperVersion) {
    return unsupported(fmt::format("token list of llama-server: version {}", words[1]));
  }
  const auto count = static_cast<std::uint32_t>(words[2]);
  if (count > words.size() - kWrapperWords) {
    return corrupt(
        fmt::format("token list of llama-server: {} tokens in {} words", count, words.size()));
  }
  LlamaTokens tokens;
  tokens.ids.assign(words.begin() + 3, words.begin() + 3 + count);
  TQC_TRY_ASSIGN(tokens.media, read_media(std::span(words).subspan(3 + count)));
  TQC_TRY(check_media(tokens.ids, tokens.media));
  return tokens;
}

// No vocabulary has so many tokens: forks have put other numbers into the list.
constexpr std::int32_t kMaxId = 1 << 24;

Result<void> check_ids(const LlamaTokens& tokens) {
  std::size_t medium = 0;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    while (medium < tokens.media.size() &&
           tokens.media[medium].first <= static_cast<std::int64_t>(i))
      ++medium;
    const std::int32_t id = tokens.ids[i];
    const bool is_of_media = medium > 0 && id == kMediaId &&
                             (tokens.media[medium - 1].first == static_cast<std::int64_t>(i) ||
                              tokens.ids[i - 1] == kMediaId);
    if (is_of_media || (id >= 0 && id < kMaxId)) continue;
    return corrupt(fmt::format("token {}: {} is no id", i, id));
  }
  return {};
}

using tensors::printable_name;

constexpr std::uint32_t kMaxArchitectureBytes = 256;
constexpr std::uint32_t kMaxRngBytes = 64 * 1024;
constexpr std::uint32_t kMaxStreams = 256;
constexpr std::uint32_t kMaxLayers = cache::kMaxLayers;
// Numbers that forks have given to their turbo types; the number alone does not tell the type.
constexpr std::uint32_t kForkTypesFrom = 41, kForkTypesTo = 47;

// Numbers of types that are not read, and whose they are.
struct ForkTypes {
  std::uint32_t from, to;
  std::string_view words;
};
constexpr std::array kForkTypes = {
    ForkTypes{48, 61, "AmesianX's fork of llama.cpp has its types from 42 to 61"},
    ForkTypes{97, 99, "ik_llama.cpp has types of its own from 97 on"},
    ForkTypes{133, 160, "ik_llama.cpp has types of its own from 133 on"},
    ForkTypes{200, 200, "ik_llama.cpp has types of its own from 133 on"},
    ForkTypes{201, 203, "turbo-tan/llama.cpp-tq3 has turbo3, turbo4 and turbo2 as 201 to 203"},
    ForkTypes{204, 400, "ik_llama.cpp has types of its own from 133 on"},
};

std::string text(std::uint64_t n) { return std::to_string(n); }

std::string place_of(std::size_t layer, std::string_view tensor) {
  return fmt::format("layer {} {}", layer, tensor);
}

constexpr std::string_view kAllTurbos = "turbo2,turbo3,turbo4,turbo4-66";

// The layout in `names` (separated by commas) whose rows have this size.
const LlamaTurbo* turbo_of(std::string_view names, const LlamaLayer& layer, std::int64_t head_dim,
                           std::uint64_t row) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    const LlamaTurbo* turbo = find_llama_turbo(names.substr(0, end));
    if (turbo != nullptr && turbo_row_bytes(*turbo, layer.n_kv_heads, head_dim) == row) {
      return turbo;
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return nullptr;
}

class StateParser {
 public:
  StateParser(const LlamaParse& parse, const LlamaProfile& profile)
      : parse_(parse), profile_(profile), cursor_(parse.file, parse.begin) {}

  LlamaReached reached() const { return {n_parts_, cursor_.position()}; }

  Result<LlamaBody> run() {
    LlamaBody body;
    body.profile = profile_;
    if (parse_.kind == LlamaFile::kSession) TQC_TRY(read_session_head());
    for (const auto& layers : attention_layers()) {
      TQC_TRY_ASSIGN(LlamaAttentionSection section, read_attention(layers, body.n_streams));
      body.attention.push_back(std::move(section));
    }
    if (auto layers = layers_of({LlamaLayerKind::kRecurrent}); !layers.empty()) {
      TQC_TRY_ASSIGN(body.recurrent, read_recurrent(std::move(layers)));
    }
    TQC_TRY(read_end(body));
    return body;
  }

 private:
  using Layers = std::vector<std::size_t>;

  const LlamaLayer& layer_of(std::size_t i) const { return parse_.model.layers[i]; }

  Layers layers_of(std::initializer_list<LlamaLayerKind> kinds) const {
    Layers layers;
    for (std::size_t i = 0; i < parse_.model.layers.size(); ++i) {
      if (std::ranges::count(kinds, layer_of(i).kind) > 0) layers.push_back(i);
    }
    return layers;
  }

  // The layers of each section of cells. A model with windows has two, either of which may be
  // empty.
  std::vector<Layers> attention_layers() const {
    using enum LlamaLayerKind;
    const Layers full = layers_of({kAttention}), windows = layers_of({kSlidingWindow});
    if (full.empty() && windows.empty()) return {};
    if (windows.empty()) return {full};
    if (!profile_.windows_are_apart) return {layers_of({kAttention, kSlidingWindow})};
    return {full, windows};
  }

  // --- fields of sessions only

  Result<void> read_session_head() {
    TQC_TRY_ASSIGN(const auto n, cursor_.read<std::uint32_t>());
    if (n > kMaxArchitectureBytes)
      return corrupt("name of the architecture: " + text(n) + " bytes");
    TQC_TRY_ASSIGN(const std::string name, cursor_.read_text(n));
    if (name != parse_.model.architecture) {
      return mismatch("a session of architecture " + printable_name(name) + ", the model is " +
                      printable_name(parse_.model.architecture));
    }
    if (profile_.outputs == LlamaOutputs::kRngAndOutputs) TQC_TRY(skip_rng());
    return profile_.outputs == LlamaOutputs::kNone ? Result<void>() : skip_outputs();
  }

  Result<void> skip_rng() {
    TQC_TRY_ASSIGN(const auto n, cursor_.read<std::uint32_t>());
    if (n > kMaxRngBytes) return corrupt("sampler state: " + text(n) + " bytes");
    return cursor_.skip(n);
  }

  Result<void> skip_outputs() {
    TQC_TRY_ASSIGN(const auto n, cursor_.read<std::uint32_t>());
    TQC_TRY(skip_items(n, sizeof(std::int32_t)));
    for (int i = 0; i < 2; ++i) {  // logits, embeddings
      TQC_TRY_ASSIGN(const auto n_values, cursor_.read<std::uint64_t>());
      TQC_TRY(skip_items(n_values, sizeof(float)));
    }
    return {};
  }

  Result<void> skip_items(std::uint64_t n, std::uint64_t size) {
    const auto bytes = checked_mul(n, size);
    if (!bytes) return too_large(text(n) + " items of " + text(size) + " bytes");
    return cursor_.skip(*bytes);
  }

  // --- attention

  // Sets the number of streams, if the layout has it.
  Result<LlamaAttentionSection> read_attention(const Layers& layers, std::uint32_t& n_streams) {
    n_streams = 1;
    if (profile_.has_streams) {
      TQC_TRY_ASSIGN(n_streams, cursor_.read<std::uint32_t>());
      if (n_streams == 0 || n_streams > kMaxStreams) return corrupt(text(n_streams) + " streams");
    }
    LlamaAttentionSection section;
    section.layers = layers;
    for (std::uint32_t i = 0; i < n_streams; ++i) {
      TQC_TRY_ASSIGN(LlamaAttentionSection stream, read_stream(layers));
      if (stream.cells.positions.empty()) continue;
      const bool is_second = !section.cells.positions.empty();
      if (!is_second) section = std::move(stream);
      if (is_second) section.cells.has_several_sequences = true;
    }
    return section;
  }

  Result<LlamaAttentionSection> read_stream(const Layers& layers) {
    LlamaAttentionSection stream;
    stream.layers = layers;
    TQC_TRY_ASSIGN(stream.cells, read_llama_cells(cursor_, {parse_.kind, profile_.cell_ext}));
    if (stream.cells.positions.empty()) return stream;
    ++n_parts_;
    TQC_TRY_ASSIGN(const auto transposed, cursor_.read<std::uint32_t>());
    if (transposed > 1) return corrupt("transposed flag of values: " + text(transposed));
    TQC_TRY_ASSIGN(const auto n_layers, cursor_.read<std::uint32_t>());
    if (n_layers != layers.size()) {
      return mismatch(text(n_layers) + " layers of cells, the model has " + text(layers.size()));
    }
    TQC_TRY(read_layers(layers, transposed == 1, stream));
    return stream;
  }

  Result<void> read_layers(const Layers& layers, bool transposed, LlamaAttentionSection& stream) {
    std::uint32_t k_run = 0, v_run = 0;
    if (profile_.has_rotations) {
      TQC_TRY_ASSIGN(k_run, cursor_.read<std::uint32_t>());
      TQC_TRY_ASSIGN(v_run, cursor_.read<std::uint32_t>());
    }
    const std::uint64_t n_cells = stream.cells.positions.size();
    TQC_TRY_ASSIGN(stream.k, read_tensors(layers, "k", false, n_cells));
    TQC_TRY_ASSIGN(stream.v, read_tensors(layers, "v", transposed, n_cells));
    if (!profile_.has_rotations) return {};
    TQC_TRY(set_rotation(layers, "k", k_run, stream.k));
    return set_rotation(layers, "v", v_run, stream.v);
  }

  // The rotation that the file states for K or V of all layers.
  Result<void> set_rotation(const Layers& layers, std::string_view tensor, std::uint32_t run,
                            std::vector<LlamaRows>& tensors) const {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const LlamaLayer& layer = layer_of(layers[i]);
      if (layer.is_latent && tensor == "v") {
        if (run == 0) continue;
        return in_context(place_of(layers[i], tensor), unsupported("rotated, and not in the file"));
      }
      const std::int64_t expected = tensor == "k" ? key_rotation_size(key_row_dim(layer))
                                                  : value_rotation_size(layer.v_head_dim);
      auto done = check_rotation(tensors[i].format, run, expected);
      if (!done) return in_context(place_of(layers[i], tensor), std::move(done).error());
      // llama.cpp states a run for latents, too, and does not rotate them.
      tensors[i].rotation = layer.is_latent ? 0 : run;
    }
    return {};
  }

  static Result<void> check_rotation(const LlamaRowFormat& format, std::uint32_t run,
                                     std::int64_t expected) {
    if (run == 0) return {};
    if (run != expected) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("rotated in runs of {} components, expected runs of {}", text(run),
                               expected)};
    }
    if (format.plain != nullptr && !format.plain->dense) return {};
    return unsupported("rotated rows of " + std::string(format.name()));
  }

  Result<std::vector<LlamaRows>> read_tensors(const Layers& layers, std::string_view tensor,
                                              bool transposed, std::uint64_t n_cells) {
    std::vector<LlamaRows> tensors;
    for (const std::size_t i : layers) {
      const bool is_key = tensor == "k";
      if (layer_of(i).is_latent && !is_key) {  // a part of the rows of K
        tensors.emplace_back().is_transposed = transposed;
        continue;
      }
      const std::int64_t head_dim = is_key ? key_row_dim(layer_of(i)) : layer_of(i).v_head_dim;
      auto rows = transposed ? read_transposed(layer_of(i), head_dim, n_cells)
                             : read_rows(layer_of(i), head_dim, n_cells);
      if (!rows) return in_context(place_of(i, tensor), std::move(rows).error());
      ++n_parts_;
      tensors.push_back(*rows);
    }
    return tensors;
  }

  Result<LlamaRows> read_rows(const LlamaLayer& layer, std::int64_t head_dim,
                              std::uint64_t n_cells) {
    TQC_TRY_ASSIGN(const auto id, cursor_.read<std::uint32_t>());
    TQC_TRY_ASSIGN(const auto row, cursor_.read<std::uint64_t>());
    LlamaRows rows;
    TQC_TRY_ASSIGN(rows.format, format_of(id, layer, head_dim, row));
    const auto expected = row_bytes_of(rows.format, layer.n_kv_heads, head_dim);
    if (!expected || row != *expected) {
      return mismatch(fmt::format("rows of {} bytes of {}, the model has {} heads of {}", text(row),
                                  rows.format.name(), layer.n_kv_heads, head_dim));
    }
    rows.offset = cursor_.position();
    TQC_TRY(skip_items(n_cells, row));
    return rows;
  }

  Result<LlamaRowFormat> format_of(std::uint32_t id, const LlamaLayer& layer, std::int64_t head_dim,
                                   std::uint64_t row) const {
    if (const LlamaRowType* plain = find_row_type(id)) return LlamaRowFormat{plain, nullptr};
    const std::string what = "rows of type " + text(id);
    if (id < kForkTypesFrom || id > kForkTypesTo) {
      const auto known = std::ranges::find_if(
          kForkTypes, [&](const ForkTypes& types) { return id >= types.from && id <= types.to; });
      if (known == kForkTypes.end()) return unsupported(what);
      return unsupported(fmt::format("{}: {}; save the cache as f16 or q8_0", what, known->words));
    }
    const std::string& names = parse_.options.turbo_layout;
    const LlamaTurbo* const fitting = turbo_of(kAllTurbos, layer, head_dim, row);
    const std::string hint =
        fitting == nullptr ? std::string()
                           : fmt::format("; rows of {} bytes fit {} (--llama-turbo-layout {})", row,
                                         fitting->name, fitting->name);
    if (names.empty()) {
      return unsupported(what + ", which differs between forks of llama.cpp" + hint);
    }
    if (const LlamaTurbo* turbo = turbo_of(names, layer, head_dim, row)) {
      return LlamaRowFormat{nullptr, turbo};
    }
    return mismatch(what + " and " + text(row) + " bytes are not of the layout " +
                    printable_name(names) + hint);
  }

  Result<LlamaRows> read_transposed(const LlamaLayer& layer, std::int64_t head_dim,
                                    std::uint64_t n_cells) {
    TQC_TRY_ASSIGN(const auto id, cursor_.read<std::uint32_t>());
    TQC_TRY_ASSIGN(const auto value_bytes, cursor_.read<std::uint32_t>());
    TQC_TRY_ASSIGN(const auto n_values, cursor_.read<std::uint32_t>());
    const LlamaRowType* type = find_row_type(id);
    if (type == nullptr || !type->dense) {
      return unsupported("transposed rows of type " + text(id));
    }
    if (value_bytes != type->block_bytes) {
      return corrupt(text(value_bytes) + " bytes for a value of " + std::string(type->name));
    }
    if (n_values != static_cast<std::uint64_t>(layer.n_kv_heads * head_dim)) {
      return mismatch(fmt::format("{} components, the model has {} heads of {}", text(n_values),
                                  layer.n_kv_heads, head_dim));
    }
    const LlamaRows rows{{type, nullptr}, true, cursor_.position()};
    TQC_TRY(skip_items(n_cells, std::uint64_t{n_values} * value_bytes));
    return rows;
  }

  // --- recurrent state

  Result<LlamaRecurrentSection> read_recurrent(Layers layers) {
    LlamaRecurrentSection section;
    section.layers = std::move(layers);
    TQC_TRY_ASSIGN(section.cells, read_llama_cells(cursor_, {parse_.kind, 0}));
    n_parts_ += section.cells.positions.empty() ? 0 : 1;
    TQC_TRY_ASSIGN(const auto transposed, cursor_.read<std::uint32_t>());
    if (transposed != 0) {
      return unsupported("recurrent state of kind " + text(transposed));
    }
    // Counts all layers of the model, including those without recurrent state and those for drafts.
    TQC_TRY_ASSIGN(const auto n_layers, cursor_.read<std::uint32_t>());
    if (n_layers < parse_.model.layers.size() || n_layers > kMaxLayers) {
      return mismatch(text(n_layers) + " layers, the model has " +
                      text(parse_.model.layers.size()));
    }
    TQC_TRY_ASSIGN(section.r, read_states(section, "r", &LlamaLayer::r_values));
    TQC_TRY_ASSIGN(section.s, read_states(section, "s", &LlamaLayer::s_values));
    return section;
  }

  Result<std::vector<std::uint64_t>> read_states(const LlamaRecurrentSection& section,
                                                 std::string_view name,
                                                 std::uint64_t LlamaLayer::*n_values) {
    std::vector<std::uint64_t> offsets;
    for (const std::size_t i : section.layers) {
      auto offset = read_state(layer_of(i).*n_values, section.cells.positions.size());
      if (!offset) return in_context(place_of(i, name), std::move(offset).error());
      ++n_parts_;
      offsets.push_back(*offset);
    }
    return offsets;
  }

  Result<std::uint64_t> read_state(std::uint64_t n_values, std::uint64_t n_cells) {
    TQC_TRY_ASSIGN(const auto id, cursor_.read<std::uint32_t>());
    TQC_TRY_ASSIGN(const auto row, cursor_.read<std::uint64_t>());
    const LlamaRowType* type = find_row_type(id);
    if (type == nullptr || type->dense != Dtype::kF32) {
      return unsupported("recurrent state of type " + text(id));
    }
    if (checked_mul(n_values, sizeof(float)) != row) {
      return mismatch("a state of " + text(row) + " bytes, the model has " + text(n_values) +
                      " values");
    }
    const std::uint64_t offset = cursor_.position();
    TQC_TRY(skip_items(n_cells, row));
    return offset;
  }

  // --- after the state

  Result<void> read_end(LlamaBody& body) {
    const std::uint64_t rest = cursor_.remaining();
    if (rest == 0) return {};
    bool has_checkpoints = false;
    if (parse_.kind == LlamaFile::kSequence && rest >= sizeof(kCheckpointsMagic)) {
      FileCursor ahead = cursor_;
      TQC_TRY_ASSIGN(const auto magic, ahead.read<std::uint32_t>());
      has_checkpoints = magic == kCheckpointsMagic;
    }
    if (!has_checkpoints) return corrupt(text(rest) + " bytes behind the state");
    auto done = read_checkpoints(body);
    if (!done) return in_context("checkpoints", std::move(done).error());
    return {};
  }

  Result<void> read_checkpoints(LlamaBody& body) {
    ++n_parts_;
    TQC_TRY(cursor_.skip(sizeof(kCheckpointsMagic)));
    TQC_TRY_ASSIGN(const auto version, cursor_.read<std::uint32_t>());
    TQC_TRY_ASSIGN(const auto n, cursor_.read<std::uint32_t>());
    if (version != kCheckpointsVersion) return unsupported("version " + text(version));
    if (n > cache::kMaxCheckpoints) return too_large(text(n) + " of them");
    const Layers windows = layers_of({LlamaLayerKind::kSlidingWindow});
    const Layers recurrent = layers_of({LlamaLayerKind::kRecurrent});
    if (windows.empty() && recurrent.empty()) {
      body.has_idle_checkpoints = true;
      TQC_TRY(skip_checkpoints(n));
    }
    for (std::uint32_t i = 0; i < n && !body.has_idle_checkpoints; ++i) {
      auto checkpoint = read_checkpoint(windows, recurrent);
      if (!checkpoint) return in_context("number " + text(i), std::move(checkpoint).error());
      ++n_parts_;
      body.checkpoints.push_back(std::move(checkpoint).value());
    }
    // llama-server may go back by some tokens, and then make one before its last one.
    std::ranges::stable_sort(body.checkpoints, std::ranges::less(), &LlamaCheckpoint::n_tokens);
    const std::uint64_t rest = cursor_.remaining();
    return rest == 0 ? Result<void>() : corrupt(text(rest) + " bytes behind the last one");
  }

  Result<void> skip_checkpoints(std::uint32_t n) {
    for (std::uint32_t i = 0; i < 4 * n; ++i) {
      // Tokens, then the first and last position, then three blobs, each preceded by its size.
      TQC_TRY_ASSIGN(const std::uint64_t bytes,
                     i % 4 == 0 ? Result<std::uint64_t>(16) : cursor_.read<std::uint64_t>());
      TQC_TRY(cursor_.skip(bytes));
    }
    return {};
  }

  // The state has the same sections as that of a sequence, without full attention.
  Result<LlamaCheckpoint> read_checkpoint(const Layers& windows, const Layers& recurrent) {
    LlamaCheckpoint checkpoint;
    TQC_TRY_ASSIGN(checkpoint.n_tokens, cursor_.read<std::int64_t>());
    TQC_TRY_ASSIGN(checkpoint.first_position, cursor_.read<std::int32_t>());
    TQC_TRY_ASSIGN(checkpoint.last_position, cursor_.read<std::int32_t>());
    TQC_TRY_ASSIGN(const auto bytes, cursor_.read<std::uint64_t>());
    TQC_TRY(cursor_.need(bytes));
    const std::uint64_t end = cursor_.position() + bytes;
    TQC_TRY_ASSIGN(const auto magic, cursor_.read<std::uint32_t>());
    if (magic != kPartialStateMagic) return corrupt("not the state of a sequence");
    checkpoint.sequence = {cursor_.position(), sizeof(std::int32_t)};
    TQC_TRY(cursor_.skip(checkpoint.sequence.size));
    if (!windows.empty()) {
      std::uint32_t ignored = 1;
      TQC_TRY_ASSIGN(checkpoint.windows, read_attention(windows, ignored));
    }
    if (!recurrent.empty()) {
      TQC_TRY_ASSIGN(checkpoint.recurrent, read_recurrent(recurrent));
    }
    if (cursor_.position() != end) {
      return corrupt(fmt::format("a state of {} bytes, its sections have {}", bytes,
                                 bytes + cursor_.position() - end));
    }
    for (LlamaBytes* bytes_of : {&checkpoint.draft, &checkpoint.speculative}) {
      TQC_TRY_ASSIGN(bytes_of->size, cursor_.read<std::uint64_t>());
      bytes_of->offset = cursor_.position();
      TQC_TRY(cursor_.skip(bytes_of->size));
    }
    return checkpoint;
  }

  const LlamaParse& parse_;
  const LlamaProfile& profile_;
  FileCursor cursor_;
  std::uint64_t n_parts_ = 0;
};

}  // namespace

Result<std::optional<LlamaEnvelope>> read_llama_envelope(const ByteSource& file) {
  std::array<std::byte, kEnvelopeBytes> head{};
  const std::uint64_t size = file.size();
  if (size < sizeof(std::uint32_t)) return std::optional<LlamaEnvelope>();
  const auto there =
      std::span(head).first(static_cast<std::size_t>(std::min(size, kEnvelopeBytes)));
  TQC_TRY(file.read_at(0, there));
  const auto magic = number_at<std::uint32_t>(head, 0);
  if (magic != kSessionMagic && magic != kSequenceMagic) return std::optional<LlamaEnvelope>();
  if (there.size() < kEnvelopeBytes) {
    return Error{ErrorCode::kTruncated, fmt::format("{} bytes, too few for a header", size)};
  }
  LlamaEnvelope envelope;
  envelope.kind = magic == kSessionMagic ? LlamaFile::kSession : LlamaFile::kSequence;
  envelope.version = number_at<std::uint32_t>(head, 4);
  envelope.n_u32 = number_at<std::uint32_t>(head, 8);
  return std::optional(envelope);
}

Result<LlamaTokens> read_llama_tokens(const ByteSource& file, const LlamaEnvelope& envelope) {
  TQC_TRY_ASSIGN(Words words, read_words(file, envelope));
  LlamaTokens tokens;
  tokens.end = kEnvelopeBytes + words.size() * sizeof(std::int32_t);
  if (is_wrapped(words)) {
    TQC_TRY_ASSIGN(LlamaTokens unwrapped, unwrap(words));
    tokens.ids = std::move(unwrapped.ids);
    tokens.media = std::move(unwrapped.media);
    tokens.is_wrapped = true;
  } else {
    tokens.ids = std::move(words);
  }
  TQC_TRY(check_ids(tokens));
  return tokens;
}

std::optional<std::uint64_t> row_bytes_of(const LlamaRowFormat& format, std::int64_t n_heads,
                                          std::int64_t head_dim) {
  if (format.turbo != nullptr) return turbo_row_bytes(*format.turbo, n_heads, head_dim);
  const auto n_values = static_cast<std::uint64_t>(n_heads * head_dim);
  if (n_values % format.plain->block_values != 0) return std::nullopt;
  return row_bytes(*format.plain, n_values);
}

Result<LlamaBody> parse_llama_body(const LlamaParse& parse, const LlamaProfile& profile,
                                   LlamaReached& reached) {
  StateParser parser(parse, profile);
  auto body = parser.run();
  reached = parser.reached();
  return body;
}

}  // namespace tqcache::interop
