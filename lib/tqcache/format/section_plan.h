#pragma once
// format/section_plan.h: which sections a cache has, in which order, and how large each one is.
//
// Both follow from the layers and the number of tokens, so the writer takes them from here and
// the reader holds the section table against them.
//
// Spec: docs/reference/format.md §4.5 and §6.

#include <compare>
#include <cstdint>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

struct SectionKey {
  std::int64_t layer = 0;
  SideName side = SideName::kKeys;
  std::int64_t block = 0;                               // token block, or the index of the array
  auto operator<=>(const SectionKey&) const = default;  // not the order in a file
};

inline SectionKey key_of(const SectionInfo& section) {
  return {section.layer, section.side, section.block};
}

std::uint64_t count_sections(const std::vector<cache::LayerDesc>& layers, std::int64_t n_tokens);

// Token block by token block, in it layer by layer, keys before values; then all arrays. Quantized
// windows have the blocks that hold a token of the window. So a longer cache adds sections behind
// those it has, and loses some that windows have left.
std::vector<SectionKey> plan_sections(const std::vector<cache::LayerDesc>& layers, std::int64_t n_tokens);

inline codec::BlockOrder order_of(SideName side) {
  return side == SideName::kKeys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues;
}

// Bytes of a number of a section that is not packed: 2 or 4.
std::size_t number_bytes(const cache::LayerDesc& layer, const SectionKey& key);

// Bytes of a section before compression.
// Requires: the layer is within the limits (manifest_rules.h); a packed section is of a turbo side.
std::uint64_t raw_bytes(const cache::LayerDesc& layer, const SectionKey& key, bool packed,
                        std::int64_t n_tokens);

// Bytes of memory that the section's content takes when loaded: a token block in memory always
// has room for 256 tokens, and so can be 256 times what the file holds of it.
std::uint64_t memory_bytes(const cache::LayerDesc& layer, const SectionKey& key, bool packed,
                           std::int64_t n_tokens);

}  // namespace tqcache::format
