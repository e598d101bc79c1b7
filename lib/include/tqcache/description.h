#pragma once
// tqcache/description.h: the description of a cache without its values: model, tokens, and the
// layout of each layer.
//
//   for (const tqcache::cache::LayerDesc& layer : reader->description().layers) {
//     std::visit(tqcache::Overload{
//         [](const tqcache::cache::AttentionDesc& full) { ... },
//         [](const tqcache::cache::WindowDesc& sliding) { ... },
//         [](const tqcache::cache::StateDesc& recurrent) { ... }}, layer);
//   }
//
// File manifests, store parameters, files of other programs and caches in memory all describe
// themselves with these structs. They are plain values that can be written and compared.
//
// Source: arXiv 2104.09864, section 3.2.2, for RoPE.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::cache {

// --- Token blocks: K and V of a layer are divided into runs of 256 tokens

inline constexpr std::int64_t kTokenBlock = 256;  // tokens; part of the file format

struct HeadShape {
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;
  bool operator==(const HeadShape&) const = default;
};

// Number of token blocks that hold `n_tokens` tokens, including an incomplete last one.
constexpr std::int64_t block_count(std::int64_t n_tokens) {
  return (n_tokens + kTokenBlock - 1) / kTokenBlock;
}

// Number of valid tokens in block `block` of a cache of `n_tokens` tokens.
constexpr std::int64_t tokens_in_block(std::int64_t n_tokens, std::int64_t block) {
  return std::min(kTokenBlock, n_tokens - block * kTokenBlock);
}

// Number of tokens in block `block` that are among the first `n_sinks`, at most kTokenBlock.
constexpr std::int64_t sinks_in_block(std::int64_t n_sinks, std::int64_t block) {
  return block == 0 ? n_sinks : 0;
}

// Number of tokens in block `block` that come before token `begin`.
constexpr std::int64_t tokens_before(std::int64_t begin, std::int64_t block) {
  return std::clamp<std::int64_t>(begin - block * kTokenBlock, 0, kTokenBlock);
}

// A full dense block, in memory or in a file: the input of the encoder.
struct FullBlock {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
  std::int64_t index = 0;  // token block; its first token is 256 * index
  ByteView values;         // [n_kv_heads, kTokenBlock, head_dim] of dtype
  // Number of first tokens that a sliding window has already left: they are not used any more, and
  // their values are undefined.
  std::int64_t n_left = 0;

  // The head vectors of one kv head: [kTokenBlock, head_dim].
  ByteView head(std::int64_t kv_head) const {
    const auto size = static_cast<std::size_t>(kTokenBlock * shape.head_dim) * dtype_size(dtype);
    return values.subspan(static_cast<std::size_t>(kv_head) * size, size);
  }
};

// Number of first tokens of a block that are not encoded; sink tokens stay dense.
constexpr std::int64_t uncoded_tokens(const FullBlock& block, std::int64_t n_sinks) {
  return std::max(sinks_in_block(n_sinks, block.index), block.n_left);
}

// --- RoPE, as already applied to the keys in a cache
//
// R_p rotates components i and i + n_dims / 2 of a key at position p, as a point in the plane, by
// p * base^(-2i / n_dims) / factors[i] radians; components from n_dims on are unchanged (partial
// rotary). Factors extend a model's context: one factor for all pairs (linear scaling), or one
// per pair (llama3, longrope, YaRN). A cache stores keys in this half-split order whatever the
// model's own order is, so the style only says whether there is RoPE at all.
//
// Encoding depends on these values, so they must be the same on every CPU: sine, cosine and powers
// use only + - * /, not the C library, whose last bit varies.

enum class RopeStyle : std::uint8_t { kNone = 0, kHalfSplit = 1, kInterleaved = 2 };

// The rotary embedding of the model's keys. Needed to continue a cache, and to undo RoPE.
struct Rope {
  RopeStyle style = RopeStyle::kHalfSplit;
  std::int64_t n_dims = 0;  // number of leading components that are rotated
  double base = 0;
  std::vector<float> factors = {};  // [n_dims / 2]; empty: all 1
  bool operator==(const Rope&) const = default;
};

// Whether R_p is defined for head vectors of `head_dim` components and is not the identity: the
// style is not kNone, n_dims is even and in [2, head_dim], the base is finite and at least 1, and
// factors are empty or one per pair, each within 2^-20 and 2^20.
bool can_rotate(const Rope& rope, std::int64_t head_dim);

// x = R_position x, and its inverse x = R_position^T x; the identity if can_rotate() is false.
// Angles are computed in f64; their cosine and sine are rounded to f32.
//
// Shapes: x [head_dim].
void rotate(const Rope& rope, std::int64_t position, std::span<float> x);
void rotate_back(const Rope& rope, std::int64_t position, std::span<float> x);

}  // namespace tqcache::cache

namespace tqcache {

// --- Layers

// One function object made of a lambda for each alternative of a variant. With std::visit, code
// that omits an alternative does not compile.
template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;  // clang 14 does not deduce it

}  // namespace tqcache

namespace tqcache::cache {

// Bounds on what a cache may claim; they are also limits of the file (docs/reference/format.md
// §Limits).
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxTokens = 16 * 1024 * 1024;
inline constexpr std::int64_t kMaxKvHeads = 1024;
inline constexpr std::int64_t kMaxHeadDim = 1024;

inline constexpr std::size_t kMaxTextBytes = 1024;        // per name
inline constexpr std::uint32_t kMaxLlamaStreams = 1024;   // of a context of llama.cpp
inline constexpr std::size_t kMaxDifferentParts = 1024;   // parts of all distinct codecs of a cache
inline constexpr std::size_t kMaxMatrixValues = 8 << 20;  // in the matrices of distinct parts
// Token blocks of all windows, keys and values together, including those that windows have left:
// each takes a row in memory.
inline constexpr std::int64_t kMaxWindowBlocks = 1 << 20;
inline constexpr std::size_t kMaxArrays = 64;  // per layer with recurrent state
inline constexpr std::size_t kMaxArrayRank = 8;
inline constexpr std::uint64_t kMaxArrayBytes = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxCheckpoints = 1024;
inline constexpr std::int64_t kMaxCheckpointTokens = 4 * kMaxTokens;  // of all checkpoints together

// The id of a token whose id is unknown (tqcache/cache.h).
inline constexpr std::int32_t kUnknownToken = -1;

inline constexpr std::size_t kMaxMediaSpans = 4096;  // of a cache
inline constexpr std::size_t kMaxMediaIdBytes = 256;
inline constexpr std::size_t kMaxMediaSourceBytes = 1 << 16;

// A digest of everything in a model that changes values, docs/reference/format.md §Fingerprints.
struct ModelFingerprint {
  static constexpr std::uint8_t kVersion = 2;  // that models get when they are loaded

  std::uint8_t version = kVersion;  // at least 2
  Sha256 digest{};
  bool operator==(const ModelFingerprint&) const = default;
};

// What the import of values from another program could not make sure of.
enum class Standing : std::uint8_t {
  kNone = 0,       // nothing to say: compared with what the model computes, or our own values, or
                   // of unknown origin
  kUnchecked = 1,  // the model was stated (convert --model), and no value could be compared
  kShifted = 2,    // computed behind tokens that are gone (a context shift of llama.cpp): right to
                   // resume from, but not what the model computes from these tokens alone
};

// The model that a cache belongs to. A cache is usable only with exactly this model. A cache of
// unknown origin has an empty architecture and all-zero fingerprints.
struct Identity {
  std::string architecture;  // the GGUF name: "qwen3"
  std::string model_name;    // a display name; not part of the identity
  Rope rope;
  Sha256 weights_fingerprint{};  // docs/reference/format.md §Fingerprints
  Sha256 tokenizer_fingerprint{};
  std::optional<Sha256> adapter_fingerprint;  // absent: no adapter
  std::string source_format;                  // where the values came from: "tqcache", "mlx-lm"
  std::optional<ModelFingerprint> model_fingerprint = {};  // absent in files of older writers
  // Streams of the llama.cpp context that the values came from, 1 to
  // kMaxLlamaStreams; not part of the identity.
  // A context reads only files with as many (interop::LlamaExport).
  std::uint32_t llama_streams = 1;
  // The form of the layers in the file of another program, where the layers do not say it: the
  // classes of mlx-lm ("CacheList(ArraysCache,KVCache)*24"). Empty: nothing to say. Not part of the
  // identity; an export to that program uses it.
  std::string source_layout = {};
  Standing standing = Standing::kNone;  // of values from another program; not part of the identity
};

// Whether both have a model fingerprint of the same version. Fingerprints of other versions are not
// compared: the weights fingerprint and the tokenizer fingerprint decide then.
bool share_model_fingerprint(const Identity& a, const Identity& b);

// Where the mean head vector is removed before K or V is quantized (docs/reference/codec.md §8).
enum class Centering : std::uint8_t { kNone = 0, kPostRope = 1, kPreRope = 2 };

// How K or V of a layer is quantized.
//
// A new cache does not know its mean, outlier channels and transforms yet: they are fixed when the
// first token block is quantized. Until then these lists are empty.
struct QuantSpec {
  codec::Mode mode = codec::Mode::kMse;  // of `parts`
  std::vector<codec::PartSpec> parts;
  Centering centering = Centering::kNone;
  std::vector<float> mean = {};              // [n_kv_heads, head_dim]
  std::vector<std::uint16_t> outliers = {};  // [n_kv_heads, n]: channels with more bits
  std::int64_t n_sinks = 0;                  // first tokens that stay dense
  std::vector<std::int8_t> transforms = {};  // [n_kv_heads, head_dim, head_dim], in 64ths
  // Keys alone: what is left of a component without the mean is multiplied by 2^(factor / 8) before
  // it is coded, and divided when it is decoded (docs/reference/codec.md §8, "Factors"). They come
  // from a calibration of the model. [n_kv_heads, head_dim], or empty: none.
  std::vector<std::int8_t> factors = {};
};

// K or V of a layer.
struct TensorDesc {
  Dtype dtype = Dtype::kF16;            // of values that are not quantized
  std::optional<QuantSpec> quant = {};  // absent: dense
};

// Full attention: a key and a value for every token. Keys are stored after RoPE, with components in
// half-split order (component i is rotated with i + head_dim / 2).
//
// Keys and values have as many components each, except in some models: those that keep latents
// (MLA: K is the latent of a token, V its rotated part), and those whose values are shorter.
struct AttentionDesc {
  HeadShape shape;  // of K
  TensorDesc k;
  TensorDesc v;
  std::int64_t value_dim = 0;  // components of a value; 0: as many as a key has, never said twice

  HeadShape value_shape() const {
    return {shape.n_kv_heads, value_dim == 0 ? shape.head_dim : value_dim};
  }
};

// AttentionDesc::value_dim of such K and V; values of size 0 get -1, which no layer may have.
constexpr std::int64_t value_dim_of(std::int64_t k_head_dim, std::int64_t v_head_dim) {
  if (k_head_dim == v_head_dim) return 0;
  return v_head_dim == 0 ? -1 : v_head_dim;
}

// Whether K and V of both have the same shapes: of two descriptions, or of two layers in memory.
template <class A, class B>
bool same_shapes(const A& a, const B& b) {
  return a.shape == b.shape && a.value_dim == b.value_dim;
}

// The size of a sliding window. A layer that has seen n tokens holds min(n, size) of them: the
// first `keep` tokens, which never leave, and the newest ones.
struct Window {
  std::int64_t size = 0;  // maximum number of tokens held, at least 1
  std::int64_t keep = 0;  // first tokens that never leave, 0 to size - 1

  bool operator==(const Window&) const = default;
};

// Sliding-window attention. Only a window with keep = 0 can be quantized.
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

// Recurrent state of a layer without attention (linear attention, convolution, SSM). It is valid
// only for exactly the cache's token count and cannot be truncated.
//
// Opaque: bytes that only the program which made them understands, such as what llama-server keeps
// of a draft model. They stand behind the layers of a checkpoint and nowhere else
// (docs/reference/format.md §4.7).
struct StateDesc {
  std::vector<ArrayDesc> arrays;
  bool is_opaque = false;
};

// A closed set: visit it with Overload.
using LayerDesc = std::variant<AttentionDesc, WindowDesc, StateDesc>;

// --- Media: images, sounds and videos between the text
//
// The positions of a medium hold what an encoder made of it, not the embedding of a token. What was
// shown is not kept, only an id of it. In `tokens` these positions have ids below kUnknownToken,
// which are made of a digest: so two prompts are equal there exactly if both show the same, and
// all that compares tokens (prefixes, stores, hashes of hidden tokens) needs to know no more.
// Spec: docs/reference/format.md §4.8.

enum class MediaKind : std::uint8_t { kImage = 0, kAudio = 1, kVideo = 2 };

// "image", "audio", "video"
std::string_view name_of(MediaKind kind);

struct MediaSpan {
  MediaKind kind = MediaKind::kImage;
  std::int64_t begin = 0;     // its first token
  std::int64_t n_tokens = 0;  // at least 1; of the last span, some may be missing in the cache
  // What names the medium where the cache was made, such as a digest of the file: 1 to
  // kMaxMediaIdBytes printable ASCII characters without spaces. Empty if the tokens are hidden.
  std::string id;
  // Positions for M-RoPE: time, row and column of every token, [3, n_tokens]. Empty: each token has
  // the position behind the one before, as text has.
  std::vector<std::int32_t> coordinates = {};
  std::int64_t next_position = 0;  // of the text behind it
  // The token id that programs write in its place: "<|image_pad|>". kUnknownToken: none.
  std::int32_t placeholder = kUnknownToken;
  // What the program that made the cache keeps of the medium, for giving it back to that program:
  // the chunk of llama-server's slots. At most kMaxMediaSourceBytes. Not part of the content.
  Bytes source = {};

  bool operator==(const MediaSpan&) const = default;
  std::int64_t end() const { return begin + n_tokens; }
};

// The ids of the span's tokens among the first `n_tokens` of the cache, below kUnknownToken. They
// depend on everything but the placeholder and the source; positions count from that of the first
// token.
std::vector<std::int32_t> media_tokens(const MediaSpan& span, std::int64_t first_position,
                                       std::int64_t n_tokens);

// The position of token `index`, which is text or behind the last token. Spans with coordinates
// take other positions than they have tokens; without such spans it is `index`.
std::int64_t position_of(std::span<const MediaSpan> media, std::int64_t index);

// The positions of the first `n_tokens` tokens; with coordinates, their times.
std::vector<std::int32_t> all_positions(std::span<const MediaSpan> media, std::int64_t n_tokens);

// The ids with those of media replaced by placeholders, as other programs have them.
std::vector<std::int32_t> with_placeholders(std::span<const std::int32_t> tokens,
                                            std::span<const MediaSpan> media);

// Spans that begin at tokens [begin, end).
std::vector<MediaSpan> media_in(std::span<const MediaSpan> media, std::int64_t begin,
                                std::int64_t end);

struct CacheDesc {
  Identity identity;
  std::vector<std::int32_t> tokens;  // all kUnknownToken if they are hidden
  // Hashes of the token blocks in place of ids (tqcache/cache.h). An empty list: neither ids nor
  // hashes are known.
  std::optional<std::vector<Sha256>> hidden_tokens = {};
  std::vector<LayerDesc> layers;
  std::vector<MediaSpan> media = {};  // ascending

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
};

// A context checkpoint, an earlier state of the layers that cannot go back to fewer tokens.
struct CheckpointDesc {
  std::int64_t n_tokens = 0;
  std::int64_t first_position = 0;  // docs/reference/format.md §4.7
  // Sliding windows and recurrent state, in the cache's order; then an opaque layer, or none.
  std::vector<LayerDesc> layers = {};
};

inline bool is_quantized(const TensorDesc& tensor) { return tensor.quant.has_value(); }
inline bool is_quantized(const AttentionDesc& layer) {
  return is_quantized(layer.k) || is_quantized(layer.v);
}

// The keys and values of a layer; null for recurrent state.
const AttentionDesc* attention_of(const LayerDesc& layer);
AttentionDesc* attention_of(LayerDesc& layer);

// Number of tokens whose keys and values a layer holds; 0 for recurrent state.
std::int64_t tokens_held(const LayerDesc& layer, std::int64_t n_tokens);

// Number of tokens that a window holds.
inline std::int64_t window_tokens(const Window& window, std::int64_t n_tokens) {
  return std::min(window.size, n_tokens);
}

// The first token of the window's newest consecutive tokens. The first `keep` tokens lie before it;
// they are part of the run while the window is not full.
inline std::int64_t window_begin(const Window& window, std::int64_t n_tokens) {
  return n_tokens <= window.size ? 0 : n_tokens - (window.size - window.keep);
}

// The token block of window_begin().
inline std::int64_t first_window_block(const Window& window, std::int64_t n_tokens) {
  return window_begin(window, n_tokens) / kTokenBlock;
}

// Whether the window holds a token of this block.
inline bool holds_block(const Window& window, std::int64_t n_tokens, std::int64_t block) {
  return block >= first_window_block(window, n_tokens) || block * kTokenBlock < window.keep;
}

// --- Arrays
//
// Files and exporters store a dense window as two arrays, "keys" and "values", each
// [n_kv_heads, window_tokens, head_dim], each with its own head_dim, with tokens in position order.
// A quantized window is stored in token blocks, as full attention is.

inline constexpr std::string_view kWindowKeys = "keys";
inline constexpr std::string_view kWindowValues = "values";

// The shape of an array of a window, outermost first; `shape` is that of its K or V.
std::vector<std::uint64_t> window_array_shape(HeadShape shape, const Window& window,
                                              std::int64_t n_tokens);

// Whether files store the layer in token blocks: full attention and quantized windows.
bool is_in_token_blocks(const LayerDesc& layer);

// The first token block of such a layer that a cache of `n_tokens` holds.
std::int64_t first_block(const LayerDesc& layer, std::int64_t n_tokens);

// The arrays of a layer: of recurrent state or of a dense window; otherwise empty. Without
// `n_tokens` the arrays of a window have no shape.
std::vector<ArrayDesc> arrays_of(const LayerDesc& layer, std::optional<std::int64_t> n_tokens);

// --- Checks of descriptions
//
// Errors: kCorrupt, kTooLarge.
Result<void> validate_tokens(std::span<const std::int32_t> tokens,
                             const std::optional<std::vector<Sha256>>& hidden_tokens,
                             std::span<const MediaSpan> media);
Result<void> validate_shape(HeadShape shape);
Result<void> validate_shapes(HeadShape shape, std::int64_t value_dim);  // of K and V
Result<void> validate_window(HeadShape shape, const Window& window);
// Layers of a cache of `n_tokens`: limits, and fields that must agree. Also kUnsupported.
Result<void> validate_layers(const std::vector<LayerDesc>& layers, const Rope& rope,
                             std::int64_t n_tokens);
// The whole description. Also kUnsupported.
Result<void> validate(const CacheDesc& cache);

// The checkpoints of a cache: limits, ascending numbers of tokens, and the layers that the cache
// has. Requires: validate() accepts the cache. Errors:   kCorrupt, kTooLarge, kUnsupported; the
// message names the checkpoint.
Result<void> validate_checkpoints(const CacheDesc& cache,
                                  std::span<const CheckpointDesc> checkpoints);

// The layers that a checkpoint of this cache has: indices of sliding windows and recurrent state.
std::vector<std::size_t> checkpoint_layers(const std::vector<LayerDesc>& layers);

// The opaque layer of a checkpoint: its last one. Null: it has none.
const StateDesc* opaque_layer(const std::vector<LayerDesc>& layers);

// A checkpoint as a cache of its own: hidden tokens without hashes.
CacheDesc describe(const CacheDesc& cache, const CheckpointDesc& checkpoint);

// --- Comparison
//
// Bitwise equality, as in a file: 0 and -0 differ.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
bool same_bits(const codec::TransformMatrix& a, const codec::TransformMatrix& b);
bool same_bits(const codec::PartSpec& a, const codec::PartSpec& b);
bool same_bits(const std::vector<codec::PartSpec>& a, const std::vector<codec::PartSpec>& b);
bool same_bits(const QuantSpec& a, const QuantSpec& b);

// Whether both are quantized in the same way: codec, centering, factors and sink tokens. Means,
// outlier channels and transforms depend on the values and are ignored.
bool same_encoding(const TensorDesc& a, const TensorDesc& b);
// The same for a whole layer. Shapes of recurrent state are ignored.
bool same_encoding(const LayerDesc& a, const LayerDesc& b);

}  // namespace tqcache::cache
