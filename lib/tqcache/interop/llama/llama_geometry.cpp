#include "tqcache/interop/llama/llama_geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using enum LlamaRope;

// Only architectures with one key and one value per token in every attention layer. All others,
// including future ones, are refused rather than guessed.
constexpr std::array kArchitectures = {
    LlamaArchitecture{"llama", kPairs},
    // Latent attention. The rotated part stays in pairs, as mlx-lm has it.
    LlamaArchitecture{"deepseek2"},
    LlamaArchitecture{"dots1"},
    LlamaArchitecture{"exaone"},
    LlamaArchitecture{"exaone4", kHalfSplit, {.period = 4}},
    LlamaArchitecture{"falcon"},
    LlamaArchitecture{"gemma"},
    LlamaArchitecture{"gemma2", kHalfSplit, {.period = 2, .default_window = 4096}},
    LlamaArchitecture{"gemma3", kHalfSplit, {.period = 6}},
    LlamaArchitecture{"gpt-oss", kHalfSplit, {.period = 2}},
    LlamaArchitecture{"glm4moe"},
    LlamaArchitecture{"gptneox"},
    LlamaArchitecture{"hunyuan-dense"},
    LlamaArchitecture{"hunyuan-moe"},
    LlamaArchitecture{"nemotron"},
    LlamaArchitecture{"olmo2", kHalfSplit, {.period = 4}},
    LlamaArchitecture{"olmoe"},
    LlamaArchitecture{"phi2"},
    // phi3 files name a window; llama.cpp does not use it.
    LlamaArchitecture{"phi3"},
    LlamaArchitecture{"phimoe"},
    LlamaArchitecture{"qwen2"},
    LlamaArchitecture{"qwen2moe"},
    LlamaArchitecture{"qwen2vl", kHalfSplitWith2d},
    LlamaArchitecture{"qwen3"},
    LlamaArchitecture{"qwen35", kHalfSplitWith2d, {}, true},
    LlamaArchitecture{"qwen35moe", kHalfSplitWith2d, {}, true},
    LlamaArchitecture{"qwen3moe"},
    LlamaArchitecture{"qwen3next", kHalfSplit, {}, true},
    LlamaArchitecture{"qwen3vl", kHalfSplitWith2d},
    LlamaArchitecture{"qwen3vlmoe", kHalfSplitWith2d},
    LlamaArchitecture{"seed_oss"},
    LlamaArchitecture{"stablelm"},
    LlamaArchitecture{"starcoder2"},
    LlamaArchitecture{"arcee", kPairsNotKnown},
    LlamaArchitecture{"arctic", kPairsNotKnown},
    LlamaArchitecture{"baichuan", kPairsNotKnown},
    LlamaArchitecture{"bailingmoe", kPairsNotKnown},
    LlamaArchitecture{"chameleon", kPairsNotKnown},
    LlamaArchitecture{"chatglm", kPairs},
    LlamaArchitecture{"cohere2", kPairs, {.period = 4}},
    LlamaArchitecture{"command-r", kPairs},
    LlamaArchitecture{"deci", kPairsNotKnown},
    LlamaArchitecture{"deepseek", kPairsNotKnown},
    LlamaArchitecture{"ernie4_5", kPairs},
    LlamaArchitecture{"ernie4_5-moe", kPairsNotKnown},
    LlamaArchitecture{"glm4", kPairs},
    LlamaArchitecture{"granite", kPairs},
    LlamaArchitecture{"granitehybrid", kPairsNotKnown},
    LlamaArchitecture{"granitemoe", kPairs},
    LlamaArchitecture{"internlm2", kPairsNotKnown},
    LlamaArchitecture{"llada", kPairsNotKnown},
    LlamaArchitecture{"llama4", kPairsNotKnown},
    LlamaArchitecture{"llama-embed", kPairsNotKnown},
    LlamaArchitecture{"maincoder", kPairsNotKnown},
    LlamaArchitecture{"minicpm", kPairsNotKnown},
    LlamaArchitecture{"mistral3", kPairs},
    LlamaArchitecture{"neo-bert", kPairsNotKnown},
    LlamaArchitecture{"olmo", kPairsNotKnown},
    LlamaArchitecture{"plm", kPairsNotKnown},
    LlamaArchitecture{"smollm3", kPairs},
    LlamaArchitecture{"starcoder", kPairsNotKnown},
    LlamaArchitecture{"xverse", kPairsNotKnown},
};

using tensors::Gguf;

constexpr std::int64_t kMaxHeads = 4096;          // query heads, the limit of model/config.cpp
constexpr std::int64_t kMaxEmbedding = 1 << 20;   // eight times the limit of the decoder
constexpr std::int64_t kMaxStateWidth = 1 << 20;  // limit of every number under "ssm."
constexpr std::int64_t kMaxConvolution = 64;      // ssm.conv_kernel; 4 in all known models
constexpr std::int64_t kDefaultFullInterval = 4;  // llama.cpp's default when the key is absent

std::string missing_layer_name(std::size_t layer) { return fmt::format("layer {}", layer); }

struct Range {
  std::int64_t min;
  std::int64_t max;
};

// Reads the keys of one architecture and checks each number against its bounds.
class Keys {
 public:
  Keys(const Gguf& file, const std::string& architecture)
      : file_(file), prefix_(architecture + ".") {}

  bool has(const char* name) const { return file_.has(prefix_ + name); }

  Result<std::int64_t> get(const char* name, Range range) const {
    TQC_TRY_ASSIGN(const std::int64_t value, file_.get_int(prefix_ + name));
    TQC_TRY(check(name, value, range));
    return value;
  }
  Result<std::int64_t> get_or(const char* name, Range range, std::int64_t fallback) const {
    return has(name) ? get(name, range) : fallback;
  }

  // One number for all layers, or a list with one per layer.
  Result<std::vector<std::int64_t>> get_each(const char* name, Range range,
                                             std::size_t n_layers) const {
    if (!has_kind<std::vector<std::int64_t>>(name)) {
      TQC_TRY_ASSIGN(const std::int64_t value, get(name, range));
      return std::vector<std::int64_t>(n_layers, value);
    }
    TQC_TRY_ASSIGN(const auto* values, file_.get_ints(prefix_ + name));
    TQC_TRY(check_length(name, values->size(), n_layers));
    for (const std::int64_t value : *values) TQC_TRY(check(name, value, range));
    return *values;
  }

  // One flag per layer; nullopt if the key is absent or has another type.
  Result<std::optional<std::vector<bool>>> get_flags(const char* name, std::size_t n_layers) const {
    if (!has_kind<std::vector<bool>>(name)) return std::optional<std::vector<bool>>();
    const auto& flags = std::get<std::vector<bool>>(file_.metadata.at(prefix_ + name));
    TQC_TRY(check_length(name, flags.size(), n_layers));
    return std::optional(flags);
  }

  template <class Kind>
  bool has_kind(const char* name) const {
    const auto found = file_.metadata.find(prefix_ + name);
    return found != file_.metadata.end() && std::holds_alternative<Kind>(found->second);
  }

  Error refuse(const char* name, std::string_view what) const {
    return unsupported(place(name) + std::string(what));
  }

 private:
  std::string place(const char* name) const { return "key \"" + prefix_ + name + "\": "; }

  Result<void> check(const char* name, std::int64_t value, Range range) const {
    if (value < range.min) return corrupt(fmt::format("{}{}", place(name), value));
    if (value <= range.max) return {};
    return too_large(fmt::format("{}{} is above {}", place(name), value, range.max));
  }
  Result<void> check_length(const char* name, std::size_t length, std::size_t n_layers) const {
    if (length == n_layers) return {};
    return corrupt(fmt::format("{}{} values for {} layers", place(name), length, n_layers));
  }

  const Gguf& file_;
  std::string prefix_;
};

Result<const LlamaArchitecture*> find_architecture(const std::string& name) {
  const LlamaArchitecture* found = find_llama_architecture(name);
  if (found == nullptr) {
    return unsupported("architecture " + tensors::printable_name(name) +
                       ": its cache layout is not supported");
  }
  if (found->rope == LlamaRope::kPairsNotKnown) {
    return unsupported("architecture " + tensors::printable_name(name) +
                       ": the component order of its keys is not known");
  }
  return found;
}

// Files of before May 2025 lack these keys: llama.cpp then keeps keys and values of every head.
bool has_latents(const Keys& keys) {
  return keys.has("attention.key_length_mla") && keys.has("attention.value_length_mla");
}

// Attention without exactly one key and one value per token, which a .tqkv cache cannot hold.
Result<void> refuse_other_attention(const Keys& keys, std::string_view architecture) {
  if (keys.has("attention.kv_lora_rank") && architecture != "deepseek2") {
    return keys.refuse("attention.kv_lora_rank", "multi-head latent attention");
  }
  if (architecture == "deepseek2" && !has_latents(keys)) {
    return keys.refuse("attention.key_length_mla",
                       "missing: llama.cpp keeps no latents for such a file; convert the model "
                       "to GGUF again with a converter of 2025 or later");
  }
  if (keys.has("attention.shared_kv_layers")) {
    return keys.refuse("attention.shared_kv_layers", "layers that share keys and values");
  }
  for (const char* name : {"attention.key_length_swa", "attention.value_length_swa"}) {
    if (keys.has(name)) return keys.refuse(name, "head vectors of two sizes");
  }
  return {};
}

// Layers for multi-token prediction come last and are not part of the cache.
Result<void> drop_extra_layers(const Keys& keys, LlamaGeometry& geometry) {
  TQC_TRY_ASSIGN(const std::int64_t extra,
                 keys.get_or("nextn_predict_layers", {0, cache::kMaxLayers}, 0));
  const std::int64_t n_layers = std::ssize(geometry.layers) - extra;
  if (n_layers < 1) {
    return corrupt(fmt::format("{} of {} layers are for multi-token prediction", extra,
                               geometry.layers.size()));
  }
  geometry.layers.resize(static_cast<std::size_t>(n_layers));
  return {};
}

struct HeadDims {
  std::int64_t k;
  std::int64_t v;
};

Result<HeadDims> read_head_dims(const Keys& keys, std::int64_t n_heads) {
  constexpr Range kRange = {1, cache::kMaxHeadDim};
  std::int64_t fallback = 0;
  if (!keys.has("attention.key_length") || !keys.has("attention.value_length")) {
    TQC_TRY_ASSIGN(const std::int64_t width, keys.get("embedding_length", {1, kMaxEmbedding}));
    if (n_heads > 0) fallback = width / n_heads;
    if (fallback < kRange.min || fallback > kRange.max) {
      return corrupt(fmt::format("head_dim: {} components for {} heads", width, n_heads));
    }
  }
  HeadDims dims{};
  TQC_TRY_ASSIGN(dims.k, keys.get_or("attention.key_length", kRange, fallback));
  TQC_TRY_ASSIGN(dims.v, keys.get_or("attention.value_length", kRange, fallback));
  return dims;
}

Result<void> read_attention(const Keys& keys, LlamaGeometry& geometry) {
  const std::size_t n_layers = geometry.layers.size();
  TQC_TRY_ASSIGN(const auto n_heads,
                 keys.get_each("attention.head_count", {0, kMaxHeads}, n_layers));
  auto n_kv_heads = n_heads;
  if (keys.has("attention.head_count_kv")) {
    TQC_TRY_ASSIGN(n_kv_heads,
                   keys.get_each("attention.head_count_kv", {0, cache::kMaxKvHeads}, n_layers));
  }
  TQC_TRY_ASSIGN(const HeadDims dims, read_head_dims(keys, n_heads.front()));
  for (std::size_t i = 0; i < n_layers; ++i) {
    geometry.layers[i].n_kv_heads = n_kv_heads[i];
    geometry.layers[i].k_head_dim = dims.k;
    geometry.layers[i].v_head_dim = dims.v;
  }
  return {};
}

Result<void> read_rope(const Keys& keys, LlamaRope rope, LlamaGeometry& geometry) {
  const std::int64_t head_dim = geometry.layers.front().k_head_dim;
  TQC_TRY_ASSIGN(geometry.n_rot,
                 keys.get_or("rope.dimension_count", {1, cache::kMaxHeadDim}, head_dim));
  if (geometry.n_rot > head_dim || geometry.n_rot % 2 != 0) {
    return corrupt(fmt::format("RoPE rotates {} of {} components", geometry.n_rot, head_dim));
  }
  geometry.interleaved_keys = rope == LlamaRope::kPairs;
  geometry.has_positions_2d = rope == LlamaRope::kHalfSplitWith2d;
  return {};
}

// llama.cpp keeps one row for each token: the latent, then the rotated part; and no values.
Result<void> read_latents(const Keys& keys, LlamaGeometry& geometry) {
  TQC_TRY_ASSIGN(const std::int64_t rank,
                 keys.get("attention.kv_lora_rank", {1, cache::kMaxHeadDim}));
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    LlamaLayer& layer = geometry.layers[i];
    if (layer.n_kv_heads != 1 || layer.k_head_dim != rank + geometry.n_rot) {
      return corrupt(fmt::format(
          "{}: {} kv heads of {} components, expected one latent of {} with "
          "{} that rotate",
          missing_layer_name(i), layer.n_kv_heads, layer.k_head_dim, rank, geometry.n_rot));
    }
    layer.k_head_dim = rank;
    layer.v_head_dim = geometry.n_rot;
    layer.is_latent = true;
  }
  return {};
}

constexpr const char* kWindowPattern = "attention.sliding_window_pattern";

// The layers with a window: those in the file's list, or all but the last of each period.
Result<std::vector<bool>> read_window_layers(const Keys& keys, std::int64_t period,
                                             std::size_t n_layers) {
  TQC_TRY_ASSIGN(auto flags, keys.get_flags(kWindowPattern, n_layers));
  if (flags) return *std::move(flags);
  TQC_TRY_ASSIGN(const auto n, keys.get_or(kWindowPattern, {0, cache::kMaxLayers}, period));
  std::vector<bool> has_window(n_layers, true);
  for (std::size_t i = 0; n > 0 && i < n_layers; ++i) {
    has_window[i] = static_cast<std::int64_t>(i) % n < n - 1;
  }
  return has_window;
}

Result<void> read_windows(const Keys& keys, const LlamaWindows& windows, LlamaGeometry& geometry) {
  if (windows.period == 0) return {};
  TQC_TRY_ASSIGN(
      const std::int64_t window,
      keys.get_or("attention.sliding_window", {0, cache::kMaxTokens}, windows.default_window));
  if (window == 0) return {};
  TQC_TRY_ASSIGN(const auto has_window,
                 read_window_layers(keys, windows.period, geometry.layers.size()));
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    if (!has_window[i]) continue;
    geometry.layers[i].kind = LlamaLayerKind::kSlidingWindow;
    geometry.window = window;
  }
  return {};
}

struct StateSizes {
  std::uint64_t r_values;
  std::uint64_t s_values;
};

// R: the latest inputs of the convolution. S: the matrices of the delta rule.
Result<StateSizes> read_state_sizes(const Keys& keys) {
  constexpr Range kRange = {1, kMaxStateWidth};
  TQC_TRY_ASSIGN(const auto kernel, keys.get("ssm.conv_kernel", {1, kMaxConvolution}));
  TQC_TRY_ASSIGN(const auto inner, keys.get("ssm.inner_size", kRange));
  TQC_TRY_ASSIGN(const auto state, keys.get("ssm.state_size", kRange));
  TQC_TRY_ASSIGN(const auto groups, keys.get("ssm.group_count", kRange));
  return StateSizes{static_cast<std::uint64_t>((kernel - 1) * (inner + 2 * groups * state)),
                    static_cast<std::uint64_t>(state * inner)};
}

// All but the last layer of each interval are recurrent.
Result<void> read_recurrent_layers(const Keys& keys, LlamaGeometry& geometry) {
  TQC_TRY_ASSIGN(const auto interval, keys.get_or("full_attention_interval", {1, cache::kMaxLayers},
                                                  kDefaultFullInterval));
  TQC_TRY_ASSIGN(const StateSizes sizes, read_state_sizes(keys));
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    if ((static_cast<std::int64_t>(i) + 1) % interval == 0) continue;
    geometry.layers[i] = LlamaLayer{
        .kind = LlamaLayerKind::kRecurrent, .r_values = sizes.r_values, .s_values = sizes.s_values};
  }
  return {};
}

Result<void> check_kv_heads(const LlamaGeometry& geometry) {
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    const LlamaLayer& layer = geometry.layers[i];
    if (layer.kind == LlamaLayerKind::kRecurrent) continue;
    if (layer.n_kv_heads == 0) return unsupported(missing_layer_name(i) + ": no kv heads");
    if (layer.n_kv_heads > cache::kMaxKvHeads) {
      return too_large(fmt::format("{}: {} kv heads", missing_layer_name(i), layer.n_kv_heads));
    }
  }
  return {};
}

}  // namespace

const LlamaArchitecture* find_llama_architecture(std::string_view name) {
  const auto found = std::ranges::find(kArchitectures, name, &LlamaArchitecture::name);
  return found == kArchitectures.end() ? nullptr : &*found;
}

Result<LlamaGeometry> read_llama_geometry(const Gguf& model) {
  LlamaGeometry geometry;
  TQC_TRY_ASSIGN(geometry.architecture, model.get_string("general.architecture"));
  const Keys keys(model, geometry.architecture);
  TQC_TRY(refuse_other_attention(keys, geometry.architecture));
  TQC_TRY_ASSIGN(const LlamaArchitecture* architecture, find_architecture(geometry.architecture));
  TQC_TRY_ASSIGN(const auto n_layers, keys.get("block_count", {1, cache::kMaxLayers}));
  geometry.layers.resize(static_cast<std::size_t>(n_layers));
  TQC_TRY(read_attention(keys, geometry));
  TQC_TRY(read_rope(keys, architecture->rope, geometry));
  if (keys.has("attention.kv_lora_rank")) TQC_TRY(read_latents(keys, geometry));
  TQC_TRY(read_windows(keys, architecture->windows, geometry));
  if (architecture->has_recurrent_layers) TQC_TRY(read_recurrent_layers(keys, geometry));
  TQC_TRY(drop_extra_layers(keys, geometry));
  TQC_TRY(check_kv_heads(geometry));
  return geometry;
}

Result<LlamaGeometry> read_llama_geometry(const std::filesystem::path& gguf) {
  TQC_TRY_ASSIGN(const MappedFile file, MappedFile::open(gguf));
  TQC_TRY_ASSIGN(const Gguf model, tensors::read_gguf(file.bytes()));
  return read_llama_geometry(model);
}

}  // namespace tqcache::interop
