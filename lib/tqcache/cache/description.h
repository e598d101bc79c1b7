#pragma once
// cache/description.h: the description of a cache without its values: which model, which tokens,
// and what each layer keeps in which form.
//
// A file's manifest, a store's parameters, a foreign file and a cache in memory all describe
// themselves with these structs. They are plain values that can be written and compared.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/dtype.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/rope.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache {

// One function object made of a lambda for each alternative of a variant. With std::visit, code
// that forgets an alternative does not compile.
template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;  // clang 14 does not deduce it

}  // namespace tqcache

namespace tqcache::cache {

// Bounds on the claims of a cache; they are also limits of the file (docs/reference/format.md
// §Limits).
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxTokens = 16 * 1024 * 1024;
inline constexpr std::int64_t kMaxKvHeads = 1024;
inline constexpr std::int64_t kMaxHeadDim = 1024;

inline constexpr std::size_t kMaxTextBytes = 1024;        // of each name
inline constexpr std::size_t kMaxDifferentParts = 1024;   // of the different codecs of a cache
inline constexpr std::size_t kMaxMatrixValues = 8 << 20;  // of the matrices of different parts
// Token blocks of all windows, keys and values alike, with those that windows have left: each takes
// a row in memory.
inline constexpr std::int64_t kMaxWindowBlocks = 1 << 20;
inline constexpr std::size_t kMaxArrays = 64;  // of one layer with recurrent state
inline constexpr std::size_t kMaxArrayRank = 8;
inline constexpr std::uint64_t kMaxArrayBytes = std::uint64_t{1} << 40;

// The id of a token whose id is not known (cache/token_hashes.h).
inline constexpr std::int32_t kUnknownToken = -1;

// The model that a cache belongs to. A cache is of use only to exactly this model. A cache of
// unknown origin has an empty architecture and fingerprints of zeros.
struct Identity {
  std::string architecture;  // GGUF's word: "qwen3"
  std::string model_name;    // for people; says nothing about identity
  Rope rope;
  Sha256 weights_fingerprint{};               // model/fingerprint.h
  Sha256 tokenizer_fingerprint{};             // model/fingerprint.h
  std::optional<Sha256> adapter_fingerprint;  // absent: no adapter
  std::string source_format;                  // where the values came from: "tqcache", "mlx-lm"
};

// Where the mean head vector is removed before K or V is quantized (docs/reference/codec.md §8).
enum class Centering : std::uint8_t { kNone = 0, kPostRope = 1, kPreRope = 2 };

// How K or V of a layer is quantized.
//
// A new cache does not know its mean, outlier channels and transforms yet: they are fixed when the
// first token block is packed. Until then these lists are empty.
struct QuantSpec {
  codec::Mode mode = codec::Mode::kMse;  // of `parts`
  std::vector<codec::PartSpec> parts;
  Centering centering = Centering::kNone;
  std::vector<float> mean = {};              // [n_kv_heads, head_dim]
  std::vector<std::uint16_t> outliers = {};  // [n_kv_heads, n]: channels with more bits
  std::int64_t n_sinks = 0;                  // first tokens that stay dense
  std::vector<std::int8_t> transforms = {};  // [n_kv_heads, head_dim, head_dim], in 64ths
};

// K or V of a layer.
struct TensorDesc {
  Dtype dtype = Dtype::kF16;            // of values that are not quantized
  std::optional<QuantSpec> quant = {};  // absent: dense
};

// Full attention: a key and a value for every token. Keys are after RoPE, components in
// half-split order (component i turns with i + head_dim / 2).
struct AttentionDesc {
  HeadShape shape;
  TensorDesc k;
  TensorDesc v;
};

// The size of a sliding window. A layer that has seen n tokens holds min(n, size) of them: the
// first `keep` tokens, which never leave, and the newest ones.
struct Window {
  std::int64_t size = 0;  // tokens held at most, at least 1
  std::int64_t keep = 0;  // first tokens that never leave, 0 to size - 1

  bool operator==(const Window&) const = default;
};

// Sliding-window attention. Only a window that keeps no first tokens can be quantized.
struct WindowDesc {
  AttentionDesc attention;
  Window window;
};

struct ArrayDesc {
  std::string name;  // "conv", "state", ...
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first

  bool operator==(const ArrayDesc&) const = default;
};

// Recurrent state of a layer without attention (linear attention, convolution, SSM). It belongs to
// exactly the cache's token count and cannot be truncated.
struct StateDesc {
  std::vector<ArrayDesc> arrays;
};

// A closed set: visit it with Overload.
using LayerDesc = std::variant<AttentionDesc, WindowDesc, StateDesc>;

struct CacheDesc {
  Identity identity;
  std::vector<std::int32_t> tokens;  // each kUnknownToken when they are hidden
  // Hashes of the token blocks in place of ids (cache/token_hashes.h). An empty list: neither ids
  // nor hashes are known.
  std::optional<std::vector<Sha256>> hidden_tokens = {};
  std::vector<LayerDesc> layers;

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
};

inline bool is_quantized(const TensorDesc& tensor) { return tensor.quant.has_value(); }
inline bool is_quantized(const AttentionDesc& layer) {
  return is_quantized(layer.k) || is_quantized(layer.v);
}

// Keys and values of a layer; null for recurrent state.
const AttentionDesc* attention_of(const LayerDesc& layer);
AttentionDesc* attention_of(LayerDesc& layer);

// Number of tokens whose keys and values a layer holds; 0 for recurrent state.
std::int64_t tokens_held(const LayerDesc& layer, std::int64_t n_tokens);

// Number of tokens that a window holds.
inline std::int64_t window_tokens(const Window& window, std::int64_t n_tokens) {
  return std::min(window.size, n_tokens);
}

// The first token of the window's run of newest tokens. Kept first tokens lie before it, or are
// part of the run as long as the window is not full.
inline std::int64_t window_begin(const Window& window, std::int64_t n_tokens) {
  return n_tokens <= window.size ? 0 : n_tokens - (window.size - window.keep);
}

// The token block of that token.
inline std::int64_t first_window_block(const Window& window, std::int64_t n_tokens) {
  return window_begin(window, n_tokens) / kTokenBlock;
}

// Whether the window holds a token of this block.
inline bool holds_block(const Window& window, std::int64_t n_tokens, std::int64_t block) {
  return block >= first_window_block(window, n_tokens) || block * kTokenBlock < window.keep;
}

// --- Arrays
//
// Files and exporters have a dense window as two arrays, "keys" and "values", each
// [n_kv_heads, window_tokens, head_dim] with the tokens in the order of their positions. A
// quantized window is kept in token blocks, as full attention is.

inline constexpr std::string_view kWindowKeys = "keys";
inline constexpr std::string_view kWindowValues = "values";

// The shape of both arrays of a window, outermost first.
std::vector<std::uint64_t> window_array_shape(HeadShape shape, const Window& window,
                                              std::int64_t n_tokens);

// Whether files have the layer in token blocks: full attention and quantized windows.
bool is_in_token_blocks(const LayerDesc& layer);

// The first token block of such a layer that a cache of `n_tokens` holds.
std::int64_t first_block(const LayerDesc& layer, std::int64_t n_tokens);

// The arrays of a layer: of recurrent state and of a dense window; otherwise none. Without
// `n_tokens` those of a window have no shape.
std::vector<ArrayDesc> arrays_of(const LayerDesc& layer, std::optional<std::int64_t> n_tokens);

// --- Checks of descriptions
//
// Errors: kCorrupt, kTooLarge.
Result<void> validate_tokens(std::span<const std::int32_t> tokens,
                             const std::optional<std::vector<Sha256>>& hidden_tokens);
Result<void> validate_shape(HeadShape shape);
Result<void> validate_window(HeadShape shape, const Window& window);
// Layers of a cache of `n_tokens`: limits, and fields that have to agree. kUnsupported, too.
Result<void> validate_layers(const std::vector<LayerDesc>& layers, const Rope& rope,
                             std::int64_t n_tokens);
// Everything that a description says. kUnsupported, too.
Result<void> validate(const CacheDesc& cache);

// --- Comparison
//
// Equal as the bytes of a file are, in which 0 and -0 differ.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
bool same_bits(const codec::TransformMatrix& a, const codec::TransformMatrix& b);
bool same_bits(const codec::PartSpec& a, const codec::PartSpec& b);
bool same_bits(const std::vector<codec::PartSpec>& a, const std::vector<codec::PartSpec>& b);

// Whether both are quantized in the same way: codec, centering and sink tokens. Means, outlier
// channels and transforms belong to the values and do not count.
bool same_form(const TensorDesc& a, const TensorDesc& b);
// The same for all of a layer. Shapes of recurrent state do not count.
bool same_form(const LayerDesc& a, const LayerDesc& b);

}  // namespace tqcache::cache
