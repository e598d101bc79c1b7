#pragma once
// interop/foreign_cache.h: the description of a cache in another program's file: its layers, and
// how to read the head vectors of some tokens.
//
// Importers fill in a ForeignCache, and reader_of() makes a reader of it. Keys and values are read
// on request, so memory does not grow with the file.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::interop {

// Fills `out` with the head vectors of tokens [first, first + n): [n_kv_heads, n, head_dim] in the
// dtype of the tensor, keys after RoPE and in half-split order (tqcache/cache.h).
//
// Requires: n is 1 to 256, and the range lies within one token block.
// Threads:  may be called concurrently.
// Errors:   those of reading the file, without the place.
using ReadRows =
    std::function<Result<void>(std::int64_t first, std::int64_t n, std::span<std::byte> out)>;

// Fills `out` with one full quantized token block (docs/reference/format.md §6.2). Threads and
// errors as ReadRows.
using ReadBlock = std::function<Result<void>(std::int64_t block, std::span<std::byte> out)>;

// K or V of a layer with full attention.
struct ForeignTensor {
  // A codec, without centering or sink tokens: one that represents the codes of the file unchanged.
  cache::TensorDesc description;
  ReadRows read;               // any tokens, decoded to description.dtype
  ReadBlock read_packed = {};  // of a tensor with a codec: its full blocks
};

// Python's programs keep the keys of GLM-4, ERNIE, Cohere and Helium in pairs (0, 1), (2, 3), ...,
// the decoder in half-split order. `source_format`: of a cache that goes to another of these
// programs, as it is; empty: the decoder will use it. Errors: kUnsupported for a cache of this
// architecture.
Result<void> check_key_order(const std::string& architecture, std::string_view source_format = {});

// The parts of keys that RoPE rotates, V of latent attention: transformers has the components that
// rotate together in halves in DeepSeek V3, and neighbors in V2; the decoder, mlx-lm and llama.cpp
// have neighbors in both. An identity of the decoder says so (ModelConfig::key_rope()).
//
// Whether a cache of identity `of_file` has halves that the model wants as neighbors.
bool has_halves_in_v(const cache::Identity& of_file, const cache::Identity& of_model);
// Whether transformers wants halves for the neighbors of this cache. Errors: kUnsupported if
// nothing says which of both models it is of: GGUF has one word for them.
Result<bool> wants_halves_in_v(const cache::Identity& identity);
// Reorders every row of V of latent attention. Shapes: rows [n, row_size] of `value_size` bytes.
void halves_to_neighbors(std::size_t row_size, std::size_t value_size, std::span<std::byte> rows);
void neighbors_to_halves(std::size_t row_size, std::size_t value_size, std::span<std::byte> rows);

// Fills `out` with all bytes of an array. Threads and errors as ReadRows.
using ReadArray = std::function<Result<void>(std::span<std::byte> out)>;

struct ForeignArray {
  cache::ArrayDesc description;
  ReadArray read;
};

// A layer, and how to read it.
struct ForeignLayer {
  cache::LayerDesc description = cache::StateDesc{};
  // Of full attention.
  ReadRows read_k = {}, read_v = {};
  ReadBlock read_packed_k = {}, read_packed_v = {};  // of K or V with a codec
  // cache::arrays_of() the description: keys and values of a dense sliding window, tokens ordered
  // by position; or recurrent state.
  std::vector<ForeignArray> arrays = {};
};

// `shape`: of K. `value_dim`: cache::AttentionDesc::value_dim.
ForeignLayer attention_layer(cache::HeadShape shape, ForeignTensor k, ForeignTensor v,
                             std::int64_t value_dim = 0);
ForeignLayer window_layer(cache::HeadShape shape, const cache::Window& window, ForeignArray k,
                          ForeignArray v, std::int64_t value_dim = 0);
// Opaque: behind the layers of a checkpoint, bytes that only the program which made them
// understands.
ForeignLayer state_layer(std::vector<ForeignArray> arrays, bool is_opaque = false);

// An earlier state of the windows and the recurrent state (cache::Checkpoint).
struct ForeignCheckpoint {
  std::int64_t n_tokens = 0;
  std::int64_t first_position = 0;
  std::vector<ForeignLayer> layers;  // in the order of the cache, then an opaque one, or none
};

struct ForeignCache {
  // Only what the file states. A caller who has the model sets its identity here, except
  // source_format.
  cache::Identity identity;
  std::int64_t n_tokens = 0;
  std::optional<std::vector<std::int32_t>> tokens;  // n_tokens ids; nullopt: the file has no ids
  std::vector<ForeignLayer> layers;
  // Their tokens have placeholders in `tokens`, or any other ids: reader_of() replaces them.
  std::vector<cache::MediaSpan> media = {};
  std::vector<ForeignCheckpoint> checkpoints = {};  // ascending numbers of tokens
  // The file holds quantized keys or values, so they only approximate what the model computed.
  bool is_quantized = false;

  // For display: what the file states about itself ("mlx-lm", "0.32.0 or later"), in display order;
  // and the fields that a .tqkv cache cannot keep, one sentence each.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> dropped_fields;
};

// Reads the cache block by block. If the token ids are not known, the tokens are hidden ones
// without hashes. If K or V has a quantized representation, its full token blocks are quantized and
// the tokens after them dense. If the codecs of all layers exceed the limits of a .tqkv file,
// everything is dense.
//
// Errors: those of cache::validate() and validate_checkpoints() for the description; those of
// codec::mode_of() for quantized
//         representations; kCorrupt when the number of tokens and the number of ids differ.
Result<std::shared_ptr<const cache::CacheReader>> reader_of(ForeignCache cache);

}  // namespace tqcache::interop
