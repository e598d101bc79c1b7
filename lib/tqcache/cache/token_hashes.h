#pragma once
// cache/token_hashes.h: caches that do not say which tokens they hold.
//
// A prompt can be private, and its token ids are the prompt. A cache may keep a hash of every token
// block instead: whoever has the prompt can show that it is this one, and goes on as if the ids had
// been there. It is no secrecy: short prompts can be guessed and tried, and keys and values can be
// turned back into tokens (SECURITY.md).
//
// Spec: docs/reference/format.md, "Hidden tokens".

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cache {

// One hash for every token block, the incomplete last one included, each over the hash before it
// and the ids of its own block: so it stands for all tokens up to the end of the block.
std::vector<Sha256> hash_tokens(std::span<const std::int32_t> tokens);

inline bool tokens_known(const Cache& cache) { return !cache.hidden_tokens.has_value(); }

// Puts hashes in the place of the ids. Does nothing when they are hidden already.
void hide_tokens(Cache& cache);

// Puts ids in the place of the hashes: the first of `tokens`, as many as the cache has.
//
// Errors: kMismatch when `tokens` are fewer or not the ones that were hashed, naming the token
//         block; kUnsupported when the cache has no hashes to compare with. The cache is then as it
//         was. Does nothing but compare when the ids are known.
Result<void> reveal_tokens(Cache& cache, std::span<const std::int32_t> tokens);

}  // namespace tqcache::cache
