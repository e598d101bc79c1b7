#pragma once
// cache/cache.h: a prompt cache in memory: whose it is, which tokens, and the state of each layer.

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

// Bounds on what a cache may claim to be; they are also limits of the file
// (docs/reference/format.md §Limits).
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxTokens = 16 * 1024 * 1024;
inline constexpr std::int64_t kMaxKvHeads = 1024;
inline constexpr std::int64_t kMaxHeadDim = 1024;

// Stands for a token whose id is not known (cache/token_hashes.h).
inline constexpr std::int32_t kUnknownToken = -1;

// Which model the cache belongs to. A cache is of use only to exactly this model. One of unknown
// origin has an empty architecture and fingerprints of zeros, and is of use to none.
struct Identity {
  std::string architecture;  // GGUF's word: "qwen3"
  std::string model_name;    // for people; says nothing about identity
  Rope rope;
  Sha256 weights_fingerprint{};               // model/fingerprint.h
  Sha256 tokenizer_fingerprint{};             // model/fingerprint.h
  std::optional<Sha256> adapter_fingerprint;  // absent: no adapter
  std::string source_format;                  // where the values came from: "tqcache", "mlx-lm"
};

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
// packed blocks before the tail, arrays as large as their shape says, those of a rotating layer of
// the window's shape, and a hash for every token block if any stand for its tokens.
// Errors: kCorrupt, kTooLarge; the message names the layer and the side.
Result<void> validate(const Cache& cache);

// The same of some of its parts, which a file is held against before there is a cache.
Result<void> validate_tokens(std::span<const std::int32_t> tokens,
                             const std::optional<std::vector<Sha256>>& hidden_tokens);
Result<void> validate_shape(HeadShape shape);
Result<void> validate_window(const Window& window);

// Whether `cache` was made by the model that `model` describes (its weights, tokenizer, adapter,
// RoPE and architecture).
// Errors: kMismatch; the message names both fingerprints, or the fact that differs, or says that
//         the cache is of unknown origin.
Result<void> check_identity(const Cache& cache, const Identity& model);

ByteCount byte_count(const Cache& cache);

}  // namespace tqcache::cache
