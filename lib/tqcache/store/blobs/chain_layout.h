#pragma once
// store/blobs/chain_form.h: what the layers of a chain say of its blocks.
//
// Only for the sources of store.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/format/manifest.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

// Whether a cache of these layers can be cut after any token block: it has attention alone.
bool can_be_cut(const std::vector<cache::LayerDesc>& layers);

// Which sections of a prompt go into which final token block, and which into its state: their
// numbers, in the order of a file. What windows keep is the state's, wherever it stands in a file.
struct SectionPlaces {
  std::vector<std::vector<std::size_t>> blocks;
  std::vector<std::size_t> state;
};
SectionPlaces place_sections(const format::Manifest& manifest);

// The order in which sections stand in a file: format/section_plan.h.
bool stands_before(const format::SectionInfo& a, const format::SectionInfo& b);

// Bytes of a final token block before compression, without sink tokens.
std::uint64_t block_bytes(const std::vector<cache::LayerDesc>& layers);

// In how many blobs final token blocks stand. The first one may have sink tokens.
class PartCounts {
 public:
  explicit PartCounts(const std::vector<cache::LayerDesc>& layers)
      : first_(block_parts(layers, 0).size()), later_(block_parts(layers, 1).size()) {}

  std::size_t of(std::int64_t block) const { return block == 0 ? first_ : later_; }

 private:
  std::size_t first_, later_;
};

// The keys of all parts of these blocks, of which the first one has number `first`: [block][part].
std::vector<std::vector<std::string>> block_keys(const PartCounts& counts, std::int64_t first,
                                                 std::span<const Sha256> hashes);

// All keys in one list.
std::vector<std::string> flatten(const std::vector<std::vector<std::string>>& keys);

// What data_key() takes for the content of a data blob: what its sections are, and their digests.
Bytes data_content(std::span<const StoredSection> sections);

}  // namespace tqcache::store
