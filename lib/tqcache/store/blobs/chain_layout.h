#pragma once
// store/blobs/chain_layout.h: the division of a prompt into token blocks, parts and a snapshot.
//
// Only for the sources of store.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/format/manifest.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

// Whether a cache with these layers can be truncated after any token block: all are attention
// layers.
bool can_be_cut(const std::vector<cache::LayerDesc>& layers);

// The section indices of each final token block and of the snapshot, in the order of a file.
// Sections of windows belong to the snapshot, wherever they are in a file.
struct SectionPlaces {
  std::vector<std::vector<std::size_t>> blocks;
  std::vector<std::size_t> snapshot;
};
SectionPlaces place_sections(const format::Manifest& manifest);

// Whether section a precedes b in a file: format/section_plan.h.
bool stands_before(const format::SectionInfo& a, const format::SectionInfo& b);

// Bytes of a final token block before compression, without sink tokens.
std::uint64_t block_bytes(const std::vector<cache::LayerDesc>& layers);

// The number of blobs of a final token block. The first block may have sink tokens.
class PartCounts {
 public:
  explicit PartCounts(const std::vector<cache::LayerDesc>& layers)
      : first_(block_parts(layers, 0).size()), later_(block_parts(layers, 1).size()) {}

  std::size_t of(std::int64_t block) const { return block == 0 ? first_ : later_; }

 private:
  std::size_t first_, later_;
};

// Each blob has at least a header, so the size of all blobs of a prompt limits their number.
// Errors: kCorrupt.
Result<void> check_blob_count(const PromptRecord& record, const PartCounts& counts);

// The keys of all parts of consecutive blocks; the first block has the index `first`:
// [block][part].
std::vector<std::vector<std::string>> block_keys(const PartCounts& counts, std::int64_t first,
                                                 std::span<const Sha256> hashes);

// All keys in one list.
std::vector<std::string> flatten(const std::vector<std::vector<std::string>>& keys);

// The description of the sections of a data blob, which data_key() hashes.
Bytes data_content(std::span<const StoredSection> sections);

}  // namespace tqcache::store
