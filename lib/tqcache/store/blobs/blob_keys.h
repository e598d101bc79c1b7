#pragma once
// store/blobs/blob_keys.h: the keys of a store.
//
// A prompt is divided into token blocks of 256. The key of a block is a hash over everything that
// determines its content: the model, the tenant, the quantization settings and parameters, and
// every token up to its end, chained from block to block. So the keys of the blocks can be computed
// from the prompt alone, and equal prefixes are stored once.
//
// Spec: docs/reference/store.md, "Keys".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/hash.h"
#include "tqcache/store.h"

namespace tqcache::store {

inline constexpr auto kBlockTokens = static_cast<std::size_t>(cache::kTokenBlock);

// The number of keys for the parameters of prompts with one first block (one for each quantization
// of it), and for the blocks that follow one token block.
inline constexpr int kCandidateSlots = 16;
// The number of keys for the snapshots after one token block. They are looked at kCandidateSlots at
// a time, as long as at least half of these exist.
inline constexpr int kStateSlots = 256;

// The namespace of a tenant and a model: everything except tokens that determines who finds a
// prompt.
struct Namespace {
  cache::Identity identity;  // without display name and source format
  std::string salt = {};     // the secret of a tenant, up to 4,096 bytes
};

// SHA-256 over a list of byte strings, each preceded by its length as u64 little-endian.
Sha256 hash_fields(std::span<const ByteView> fields);

Sha256 hash_namespace(const Namespace& name_space);

// The hash of the first token block, for the slots of its parameters.
// Requires: 256 tokens, or all tokens of a shorter prompt.
Sha256 hash_first(const Sha256& name_space, std::span<const std::int32_t> block);

// The place of parameters that found no free slot. Only records name its keys. `first`:
// hash_first(), in hexadecimal; `parameters`: hash_parameters().
Sha256 hash_own(std::string_view first, const Sha256& parameters, std::string_view model_name);

// The root of a block-hash chain. `parameters`: hash_parameters() (blob.h).
Sha256 hash_root(const Sha256& name_space, const Sha256& parameters);

// The block-hash chain: one hash for every complete token block of `tokens`, in order.
std::vector<Sha256> hash_chain(const Sha256& root, std::span<const std::int32_t> tokens);

// The number of final token blocks of a prompt: all except the last one, the tail of 1 to 256
// tokens. 0 if n_tokens is 0.
constexpr std::int64_t final_blocks(std::int64_t n_tokens) {
  return n_tokens == 0 ? 0 : (n_tokens - 1) / cache::kTokenBlock;
}

std::string parameters_key(const Sha256& first, int slot);                // "p/HEX/3"
std::string block_key(const Sha256& hash, std::int64_t index, int part);  // "b/000012/HEX/0"
std::string state_key(const Sha256& hash, int slot);                      // "s/HEX/0"
std::string data_key(const Sha256& name_space, ByteView content);         // "d/HEX"
std::string usage_key(const Sha256& random);                              // "u/HEX"
std::string next_key(const Sha256& hash, int slot);                       // "c/HEX/0"

// The keys of all candidate slots.
std::vector<std::string> parameters_slot_keys(const Sha256& first);
std::vector<std::string> next_slot_keys(const Sha256& hash);
// kCandidateSlots of them, from `first` on.
std::vector<std::string> state_slot_keys(const Sha256& hash, int first = 0);

// --- parsing keys, safe for untrusted input

// The fields of a key, as views of it.
struct KeyParts {
  BlobKind kind = BlobKind::kBlock;
  std::string_view hash;   // hexadecimal; of a record: the hash of its name
  std::int64_t index = 0;  // of a block
  int number = 0;          // the part of a block; the slot of other kinds
  std::string_view name;   // of a block without its part: "b/000012/HEX"; otherwise the key
};

// nullopt if it is not a key of a store.
std::optional<KeyParts> parse_key(std::string_view key);

// The common prefix of the keys of a block's parts: "b/000012/HEX".
std::string block_name(const Sha256& hash, std::int64_t index);
std::string part_key(std::string_view block_name, int part);

}  // namespace tqcache::store
