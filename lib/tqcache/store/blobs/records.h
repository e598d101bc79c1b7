#pragma once
// store/blobs/records.h: named prompts, and what a store knows of the chain of a prompt's blocks.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/cache/cache.h"

namespace tqcache::store {

// The kinds of blobs, in the order of Content (store/blobs/blob.h).
enum class BlobKind : std::uint32_t { kParameters, kBlock, kState, kData, kRecord, kUsage };
inline constexpr std::uint32_t kBlobKinds = 6;

inline constexpr std::array kAllKinds = {BlobKind::kParameters, BlobKind::kBlock,
                                         BlobKind::kState,      BlobKind::kData,
                                         BlobKind::kRecord,     BlobKind::kUsage};

// "parameters", "block", "state", "data", "record", "usage"
std::string_view name_of(BlobKind kind);

// Prompts without a complete token block have parameters, too.
struct Parameters {
  cache::Identity identity;
  std::vector<std::int32_t> tokens;      // the first token block: 256, or all tokens
  std::vector<cache::LayerDesc> layers;  // with means, outliers, maps; shapes of arrays are dropped
};

struct Snapshot {
  std::int64_t n_tokens = 0;             // of the whole prompt
  std::vector<std::int32_t> tail;        // its last 1 to 256 tokens
  std::vector<cache::LayerDesc> layers;  // bare_layers() of the whole prompt
  std::vector<std::string> data_keys;    // in the order of their sections
  std::uint64_t data_bytes = 0;          // size of these blobs
  Sha256 content_name{};                 // content digest of the whole prompt
};

struct PromptRecord {
  std::string name;
  std::string model_name;
  std::string architecture;
  std::vector<std::int32_t> tokens;  // all, or none: then the blocks and the tail have them
  std::string parameters_key;
  std::vector<Sha256> chain;  // of its final blocks
  Snapshot snapshot;          // as in its own blob
  std::string state_key;      // its own blob; empty: no final block, or no free slot
  std::int64_t created = 0;   // seconds since 1970, by the clock of the writer
  std::uint64_t bytes = 0;    // size of all its blobs, also shared ones
};

struct UsageNote {
  std::int64_t created = 0;
  std::int64_t wanted_tokens = 0;  // of the prompt
  std::int64_t found_tokens = 0;   // of these, found in the store
  std::uint64_t read_bytes = 0, stored_bytes = 0;
};

// The key of the record of a prompt: "n/HEX16/HEX", with a tenant's prefix "n/HEX16/".
std::string record_prefix(std::string_view salt);
std::string record_key(std::string_view salt, std::string_view name);

}  // namespace tqcache::store
