#pragma once
// interop/foreign_cache.h: a cache in another program's file, as that file describes it: which
// layers there are, and how to read the head vectors of some tokens.
//
// Importers fill one of these, and reader_of() makes a reader of it. Keys
// and values are not read before they are asked for, so memory does not grow with the file.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/reader.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::interop {

// Fills `out` with the head vectors of tokens [first, first + n): [n_kv_heads, n, head_dim] of the
// side's dtype, keys after RoPE and in half-split order (cache/layer.h).
//
// Requires: n is 1 to 256, and the range lies within one token block.
// Threads:  may be called from several at once.
// Errors:   those of what is read; without the place.
using ReadRows =
    std::function<Result<void>(std::int64_t first, std::int64_t n, std::span<std::byte> out)>;

// Fills `out` with a packed token block (docs/reference/format.md §6.2), a full one. Threads and
// errors as ReadRows.
using ReadBlock = std::function<Result<void>(std::int64_t block, std::span<std::byte> out)>;

// The form in which our codec has a side's codes as they are. Without centering or sink tokens.
struct ForeignPacked {
  std::vector<codec::PartSpec> parts;
  std::vector<std::uint16_t> outliers;  // of mode mixed: [n_kv_heads, n], as cache::QuantSpec's
  ReadBlock read;
};

struct ForeignTensor {
  Dtype dtype = Dtype::kF16;
  ReadRows read;  // of any tokens, decoded
  std::optional<ForeignPacked> packed = {};
};

struct ForeignAttention {
  cache::HeadShape shape;
  ForeignTensor k, v;
};

// Fills `out` with all of an array's bytes. Threads and errors as ReadRows.
using ReadArray = std::function<Result<void>(std::span<std::byte> out)>;

struct ForeignArray {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first
  ReadArray read;
};

// A dense sliding window: arrays of cache::window_array_shape(), tokens in the order of their
// positions.
struct ForeignWindow {
  cache::HeadShape shape;
  cache::Window window;
  ForeignArray k, v;
};

// Recurrent state.
struct ForeignState {
  std::vector<ForeignArray> arrays;
};

using ForeignLayer = std::variant<ForeignAttention, ForeignWindow, ForeignState>;

struct ForeignCache {
  // Only what the file says. A caller who has the model puts its identity here, but for
  // source_format.
  cache::Identity identity;
  std::int64_t n_tokens = 0;
  std::optional<std::vector<std::int32_t>> tokens;  // n_tokens ids; empty: the file has none
  std::vector<ForeignLayer> layers;
  // The file has keys or values in a quantized form: they are only near what the model computed.
  bool is_quantized = false;

  // For people. What the file says of itself ("mlx-lm", "0.32.0 or later"), in the order to be
  // shown; and what it has that a cache of ours does not keep, one sentence each.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> dropped_fields;
};

// Reads the cache block by block. Tokens that are not known become hidden ones without hashes. Of K
// or V with a packed form the full token blocks are packed, and the tokens after them dense; if the
// codecs of all layers are more than a file of ours may have, everything is dense.
//
// Errors: those of cache::validate() of the description, of packed forms those of codec::mode_of();
//         kCorrupt when the number of tokens and of ids differ.
Result<std::shared_ptr<const cache::CacheReader>> reader_of(ForeignCache cache);

}  // namespace tqcache::interop
