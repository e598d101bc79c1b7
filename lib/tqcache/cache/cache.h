#pragma once
// cache/cache.h: a prompt cache in memory: its model, its tokens, and the state of each layer.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"
#include "tqcache/cache/rope.h"

namespace tqcache::cache {

struct Cache {
  Identity identity;
  std::vector<std::int32_t> tokens;  // the tokens whose state the layers hold
  // Given when the ids are not: then every token is kUnknownToken, and these are the hashes of its
  // token blocks, or none at all (cache/token_hashes.h).
  std::optional<std::vector<Sha256>> hidden_tokens = {};
  std::vector<Layer> layers;

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
};

// One layer's shape and how its sides shall be kept, for make_cache().
struct LayerPlan {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
};

// An empty cache of dense attention layers.
// Errors: kInvalidArgument when a shape or the count is out of bounds.
Result<Cache> make_cache(Identity identity, std::span<const LayerPlan> layers);

// Checks that all parts agree: counts within bounds, every block present and of the right size,
// packed blocks before the tail, every block of a window present, arrays as large as their shape
// says, and a hash for every token block if the tokens are hidden and have hashes.
// Errors: kCorrupt, kTooLarge; the message names the layer and K or V.
Result<void> validate(const Cache& cache);

// The description of a cache: all but the values.
CacheDesc describe(const Cache& cache);

// Whether `cache` was made by the model that `model` describes (its weights, tokenizer, adapter,
// RoPE and architecture).
// Errors: kMismatch; the message names both fingerprints, or the fact that differs, or says that
//         the cache is of unknown origin.
Result<void> check_identity(const Cache& cache, const Identity& model);

ByteCount byte_count(const Cache& cache);

}  // namespace tqcache::cache
