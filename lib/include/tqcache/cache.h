#pragma once
// tqcache/cache.h: a prompt cache in memory: its model, its tokens, and the state of each layer.
//
//   TQC_TRY_ASSIGN(auto cache, tqcache::cache::make_cache(identity, plans));
//   auto& layer = std::get<tqcache::cache::AttentionLayer>(cache.layers[0]);
//   tqcache::cache::append(layer.k, layer.shape, n_tokens, rows);
//
// K or V is dense or quantized ("turbo"). Both are divided into token blocks of 256 tokens, the
// unit of memory and file. Only full blocks are quantized; the tokens after them are the dense
// tail. A block that has just become full stays dense until the next token arrives, so that the
// last token's key and value stay available in full precision while a conversation continues.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {

// --- K or V of a layer

// Every block has room for kTokenBlock tokens, even when fewer are valid, so appending never moves
// a value.
struct DenseTensor {
  Dtype dtype = Dtype::kF16;
  std::vector<AlignedBytes> blocks;  // each [n_kv_heads, kTokenBlock, head_dim] of dtype
};

// One quantized token block.
struct TurboBlock {
  SharedBytes bytes;  // codec::PackedLayout, as in a file; aligned to 64 bytes
  // Decoded values, for codecs with must_keep_decoded(): [n_kv_heads, kTokenBlock, head_dim] of
  // the codec's dtype. Otherwise empty.
  AlignedBytes decoded = {};
};

// Makes a quantized token block with its decoded values, if the codec needs them for attention.
//
// Requires: codec.is_fixed(); `bytes` is block number `block`.
// Threads:  any number at once.
TurboBlock make_turbo_block(const KvCodec& codec, std::int64_t block, SharedBytes bytes);

struct TurboTensor {
  KvCodec codec;
  std::vector<TurboBlock> packed;  // tokens after them, in the codec's dtype: at most one block
  DenseTensor tail;                // the tokens after them, in the codec's dtype: at most one
};

using Tensor = std::variant<DenseTensor, TurboTensor>;

// Number of quantized blocks; 0 if K or V is dense.
std::int64_t packed_block_count(const Tensor& tensor);

// The type of the values that are not quantized.
Dtype dense_dtype(const Tensor& tensor);

// The dense memory of token block `block`: of a dense tensor, or of the dense tail.
// Requires: block >= packed_block_count(tensor), and the block exists.
const AlignedBytes& dense_block(const Tensor& tensor, std::int64_t block);

// Quantizes the dense tail if it is a full block; otherwise does nothing. Call it before append(),
// so that the tail has room. A codec that is not fixed yet is fitted to this block.
//
// Requires: `tensor` holds `n_tokens` tokens. In a sliding window `begin` is the first token that
// is
//           held; earlier tokens are not encoded and do not affect the fit.
// Errors:   as KvCodec::encode(), with the number of the token block; `tensor` is then unchanged.
Result<void> pack_full_tail(Tensor& tensor, std::int64_t n_tokens, unsigned n_threads,
                            std::int64_t begin = 0);

// Appends one or more tokens, all in one token block.
//
// Shapes:   rows [n, n_kv_heads, head_dim] f32, in token order; rounded to the dtype of `tensor`.
// Requires: `tensor` holds `n_tokens` tokens, and its dense tail is not a full block
//           (pack_full_tail); n_tokens % 256 + n <= 256.
void append(Tensor& tensor, HeadShape shape, std::int64_t n_tokens, std::span<const float> rows);

// Removes the tokens from `n_tokens` on, if there are any.
// Requires: `tensor` holds at least `n_tokens` tokens, and its blocks from `n_tokens` / 256 on are
//           dense.
void remove_tail(Tensor& tensor, std::int64_t n_tokens);

// Reads the valid head vectors of one kv head in one block as f32; quantized ones are decoded
// (KvCodec::decode).
//
// Shapes: out [tokens_in_block(n_tokens, block), head_dim].
void read_block(const Tensor& tensor, HeadShape shape, std::int64_t n_tokens, std::int64_t block,
                std::int64_t kv_head, std::span<float> out);

// Allocated memory, and the part of it that holds valid tokens.
struct ByteCount {
  std::uint64_t allocated = 0;
  std::uint64_t used = 0;

  ByteCount& operator+=(const ByteCount& other) {
    allocated += other.allocated;
    used += other.used;
    return *this;
  }
};
ByteCount byte_count(const Tensor& tensor, HeadShape shape, std::int64_t n_tokens);

// --- Layers
//
// A closed set of kinds: code that visits a Layer with Overload does not compile when it forgets
// one.

// Full attention: a key and a value for every token. Keys are stored after RoPE, with components in
// half-split order (component i is rotated with i + head_dim / 2).
struct AttentionLayer {
  HeadShape shape;  // of K
  Tensor k;
  Tensor v;
  std::int64_t value_dim = 0;  // AttentionDesc::value_dim

  HeadShape value_shape() const {
    return {shape.n_kv_heads, value_dim == 0 ? shape.head_dim : value_dim};
  }
};

// Sliding-window attention: keys and values of the window's tokens only. Token blocks are numbered
// from the cache's first token, as in full attention; a block without a token of the window is
// empty. In a block that the window covers in part, the values of other tokens are undefined.
struct WindowLayer {
  AttentionLayer attention;
  Window window;
};

struct NamedArray {
  std::string name;  // "conv", "state", ...
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first
  AlignedBytes data;                 // [shape] of dtype
};

// Recurrent state of a layer without attention (linear attention, convolution, SSM). It is stored
// bit for bit, is valid only for exactly the cache's token count, and cannot be truncated.
struct StateLayer {
  std::vector<NamedArray> arrays;
};

using Layer = std::variant<AttentionLayer, WindowLayer, StateLayer>;

// The keys and values of a layer; null for recurrent state.
const AttentionLayer* attention_of(const Layer& layer);
AttentionLayer* attention_of(Layer& layer);

// Whether K or V is quantized.
inline bool is_quantized(const AttentionLayer& layer) {
  return std::holds_alternative<TurboTensor>(layer.k) ||
         std::holds_alternative<TurboTensor>(layer.v);
}

// The first token of the newest consecutive tokens that a layer holds; 0 for full attention.
std::int64_t first_token(const Layer& layer, std::int64_t n_tokens);

// The description of a layer.
LayerDesc describe(const Layer& layer);

// --- The cache

struct Cache {
  Identity identity;
  std::vector<std::int32_t> tokens;  // the tokens whose state the layers hold
  // Present if the token ids are hidden (hide_tokens()). Then every token is kUnknownToken, and
  // this has one hash per token block, or is empty if the hashes are unknown too.
  std::optional<std::vector<Sha256>> hidden_tokens = {};
  std::vector<Layer> layers;
  std::vector<MediaSpan> media = {};  // CacheDesc::media

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
};

// The shape of a layer and the dtype of its values, for make_cache().
struct LayerPlan {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
};

// An empty cache of dense attention layers.
// Errors: kInvalidArgument when a shape or the count is out of bounds.
Result<Cache> make_cache(Identity identity, std::span<const LayerPlan> layers);

// Checks that all parts agree: counts are within bounds, every block is present (in a window, every
// block of the window) and has the right size, quantized blocks come before the tail, arrays are
// as large as their shapes say, and hidden tokens with hashes have one for every token block.
// Errors: kCorrupt, kTooLarge; the message names the layer and K or V.
Result<void> validate(const Cache& cache);

// The description of a cache: everything except the values.
CacheDesc describe(const Cache& cache);

// Checks that `cache` was made by the model that `model` describes (its weights, tokenizer,
// adapter, RoPE and architecture).
// Errors: kMismatch; the message names both fingerprints, or the property that differs, or says
// that the cache is of unknown origin.
Result<void> check_identity(const Cache& cache, const Identity& model);
Result<void> check_identity(const Identity& own, const Identity& model);

ByteCount byte_count(const Cache& cache);

// --- Truncation

// Checks that truncate() can cut a cache of this description.
// Errors: as truncate().
Result<void> check_truncate(const CacheDesc& cache, std::int64_t n_tokens);

// The cache as it was at `n_tokens` tokens, as closely as its quantized blocks allow: a quantized
// block that is cut becomes the dense tail, with its decoded values.
//
// Errors: kInvalidArgument when n_tokens is negative or more than the cache holds. When it is less,
//         kUnsupported: a layer with recurrent state or a sliding window cannot go back, and when
//         tokens are hidden a token block cannot be cut, because its hash covers all of its
//         tokens.
Result<Cache> truncate(Cache cache, std::int64_t n_tokens);

// --- Hidden tokens
//
// Prompts can be private, and token ids reveal the prompt. A cache can store a hash of every token
// block instead of the ids: anyone who has the prompt can prove that it is this one, and continue
// as if the ids were present. This is not encryption: short prompts can be guessed, and keys and
// values can be inverted to tokens (SECURITY.md). Spec: docs/reference/format.md, "Hidden tokens".

// One hash for every token block, including the incomplete last one. Each hash covers the hash
// before it and the ids of its own block, so it depends on all tokens up to the end of the block.
std::vector<Sha256> hash_tokens(std::span<const std::int32_t> tokens);

inline bool tokens_known(const Cache& cache) { return !cache.hidden_tokens.has_value(); }

// Replaces the ids by hashes. Does nothing if they are already hidden.
void hide_tokens(Cache& cache);

// Replaces the hashes by ids, taken from the first n_tokens() of `tokens`. If the ids are already
// known, it only compares them.
//
// Errors: kMismatch when `tokens` are fewer or not the ones that were hashed, naming the token
//         block; kUnsupported when the cache has no hashes to compare with. The cache is then
//         unchanged.
Result<void> reveal_tokens(Cache& cache, std::span<const std::int32_t> tokens);

// --- The difference between two caches of one prompt

struct Difference {
  double relative_mse = 0;  // sum |a - b|^2 / sum |a|^2
  double cosine = 1;        // <a, b> / (|a| |b|), over all values of K or V as one vector
  double max_abs = 0;       // largest |a_i - b_i|
  double mean_cosine = 1;   // mean over the head vectors
  double min_cosine = 1;    // of the head vector with the largest error
  std::uint64_t n_values = 0;
};

struct LayerDifference {
  std::int64_t layer = 0;
  Difference k;
  Difference v;
  std::vector<Difference> k_heads;  // [n_kv_heads]
  std::vector<Difference> v_heads;  // [n_kv_heads]
};

struct CacheDifference {
  std::int64_t n_tokens = 0;  // compared tokens: the count of the shorter cache
  // Attention layers, and windows that are quantized in either cache if both hold the same tokens.
  std::vector<LayerDifference> layers;
  Difference k;  // over all layers
  Difference v;
  bool arrays_equal = true;  // recurrent state and all other windows, bit for bit
  // The number of compared tokens that are known to be equal. Token blocks for which one cache has
  // neither ids nor a hash do not count.
  std::int64_t n_tokens_checked = 0;
};

// Compares the tokens that both caches hold. `a` is the reference that errors are relative to.
// Tokens that are hidden in either cache are compared by the hashes of their token blocks, where
// hashes exist.
// Errors: kMismatch when layers, shapes or the common tokens differ.
Result<CacheDifference> diff(const Cache& a, const Cache& b, unsigned n_threads);

}  // namespace tqcache::cache
