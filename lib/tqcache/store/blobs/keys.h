#pragma once
// store/blobs/keys.h: under which keys a prompt's state stands in a store.
//
// A prompt is cut into token blocks of 256. The key of a block is a hash over all that decides what
// is in it: the model, who may find it, the form and the parameters of its codec, and every token
// up to its end, chained from block to block. So who has a prompt can work out where its blocks
// are, and equal beginnings stand in the store once.
//
// Spec: docs/reference/store.md, "Keys".

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/cache/cache.h"

namespace tqcache::store {

inline constexpr auto kBlockTokens = static_cast<std::size_t>(cache::kTokenBlock);

// At most so many forms and sets of parameters for one first token block, and so many states behind
// one token block.
inline constexpr int kCandidateSlots = 16;

// Whose prompts these are, tokens apart.
struct Scope {
  cache::Identity identity;  // name for people and source format do not count
  std::string salt = {};     // of a tenant: who has another one finds nothing; up to 4,096 bytes
};

// SHA-256 over a list of byte strings, each behind its length as u64 little-endian.
Sha256 hash_fields(std::span<const ByteView> fields);

// Of model and tenant together.
Sha256 hash_scope(const Scope& scope);

// Of the first token block: names the slots of the parameters it may be coded with.
// Requires: 256 tokens, or all those of a prompt that has fewer.
Sha256 hash_first(const Sha256& scope, std::span<const std::int32_t> block);

// The beginning of a chain: `parameters` is the SHA-256 of what a parameters blob says
// (hash_parameters, blob.h).
Sha256 hash_root(const Sha256& scope, const Sha256& parameters);

// One hash for every whole token block of `tokens`, in order; what is left behind them has none.
std::vector<Sha256> hash_chain(const Sha256& root, std::span<const std::int32_t> tokens);

// Token blocks of a prompt that are final: all but the last one, which has 1 to 256 tokens and is
// the prompt's tail (0 when n_tokens is 0).
constexpr std::int64_t final_blocks(std::int64_t n_tokens) {
  return n_tokens == 0 ? 0 : (n_tokens - 1) / cache::kTokenBlock;
}

std::string parameters_key(const Sha256& first, int slot);                // "p/HEX/3"
std::string block_key(const Sha256& hash, std::int64_t index, int part);  // "b/000012/HEX/0"
std::string state_key(const Sha256& hash, int slot);                      // "s/HEX/0"
std::string data_key(const Sha256& scope, ByteView content);              // "d/HEX"
std::string record_prefix(std::string_view salt);                         // "n/HEX16/"
std::string record_key(std::string_view salt, std::string_view name);     // "n/HEX16/HEX"
std::string usage_key(const Sha256& random);                              // "u/HEX"

// The keys of all candidate slots.
std::vector<std::string> parameters_slots(const Sha256& first);
std::vector<std::string> state_slots(const Sha256& hash);

// what a key of a store says by itself. Safe for untrusted input.
//
// Spec: docs/reference/store.md, "Keys".

// In the order of Content.
enum class BlobKind : std::uint32_t { kParameters, kBlock, kState, kData, kRecord, kUsage };
inline constexpr std::uint32_t kBlobKinds = 6;

inline constexpr std::array kAllKinds = {BlobKind::kParameters, BlobKind::kBlock,
                                         BlobKind::kState,      BlobKind::kData,
                                         BlobKind::kRecord,     BlobKind::kUsage};

// "parameters", "block", "state", "data", "record", "usage"
std::string_view name_of(BlobKind kind);

// Views of the key.
struct KeyParts {
  BlobKind kind = BlobKind::kBlock;
  std::string_view hash;   // hexadecimal; of a record that of its name
  std::int64_t index = 0;  // of a block
  int number = 0;          // of a block its part; of parameters and states their slot
  std::string_view name;   // of a block all but its part: "b/000012/HEX"; otherwise the key
};

// Nothing: a key that keys.h does not make.
std::optional<KeyParts> parse_key(std::string_view key);

// What the keys of a block's parts begin with: "b/000012/HEX".
std::string block_name(const Sha256& hash, std::int64_t index);
std::string part_key(std::string_view block_name, int part);

}  // namespace tqcache::store
