#pragma once
// interop/hf/hf_schema.h: the names of the schema "tqcache-hf-1" (docs/reference/interop.md,
// "Hugging Face").

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::interop {

inline constexpr std::string_view kHfFormat = "tqcache-hf-1";
inline constexpr std::string_view kHfFormatPrefix = "tqcache-hf-";

// Keys of the metadata.
inline constexpr std::string_view kHfFormatKey = "format";
inline constexpr std::string_view kHfTokensKey = "n_tokens";
inline constexpr std::string_view kHfLayerTypesKey = "layer_types";
inline constexpr std::string_view kHfWindowKey = "sliding_window";
inline constexpr std::string_view kHfModelTypeKey = "model_type";
inline constexpr std::string_view kHfVersionKey = "transformers_version";
inline constexpr std::string_view kHfConfigKey = "config";
inline constexpr std::string_view kHfMediaKey = "media";

// Layer types; all except "dummy" as in the configs of transformers.
inline constexpr std::string_view kHfFull = "full_attention";
inline constexpr std::string_view kHfSliding = "sliding_attention";
inline constexpr std::string_view kHfLinear = "linear_attention";
inline constexpr std::string_view kHfDummy = "dummy";
// Layers with both: a .tqkv file has two layers for each, the recurrent state first.
inline constexpr std::string_view kHfHybrid = "hybrid";
inline constexpr std::string_view kHfHybridSliding = "hybrid_sliding";

inline bool hf_has_window(std::string_view type) {
  return type == kHfSliding || type == kHfHybridSliding;
}
inline bool hf_is_hybrid(std::string_view type) {
  return type == kHfHybrid || type == kHfHybridSliding;
}

inline constexpr std::string_view kHfTokens = "tokens";
inline constexpr std::string_view kHfConvStates = "conv_states.";
inline constexpr std::string_view kHfRecurrentStates = "recurrent_states.";

// The types of the layers of a file with hybrid ones, as a .tqkv file keeps them (source_layout):
// "hybrid*24", "hybrid*3,full_attention".
std::string format_hf_types(std::span<const std::string> types);
// The inverse; nullopt for other texts, and for more than `most` layers. Safe for untrusted input.
std::optional<std::vector<std::string>> parse_hf_types(std::string_view text, std::size_t most);

// "model.layers.3."
inline std::string hf_layer_prefix(std::size_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

// A recurrent state, parsed from its name: "conv_states.3" or "recurrent_states.3".
struct HfState {
  bool is_recurrent = false;
  std::size_t number = 0;
  auto operator<=>(const HfState&) const = default;
};
// nullopt: not the name of a recurrent state.
std::optional<HfState> hf_state_of(std::string_view name);

}  // namespace tqcache::interop
