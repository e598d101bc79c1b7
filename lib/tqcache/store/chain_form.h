#pragma once
// store/chain_form.h: what the layers of a chain say of its blocks: which sections each one has, how
// large they are, and how they are spread over blobs.
//
// Only for the sources of store.
//
// Spec: docs/store.md, "Putting".

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/format/manifest.h"
#include "tqcache/store/blob.h"

namespace tqcache::store {

// The layers as parameters have them: without the shapes of arrays, which belong to a token count.
std::vector<format::LayerInfo> chain_layers(std::vector<format::LayerInfo> layers);

// Whether they are the same but for the shapes of arrays.
bool same_chain(const std::vector<format::LayerInfo>& a, const std::vector<format::LayerInfo>& b);

// Whether a cache of these layers can be cut after any token block: it has attention alone.
bool can_be_cut(const std::vector<format::LayerInfo>& layers);

// The final blocks of a chain.
class BlockPlan {
 public:
  // Requires: layers within the limits (format/manifest_rules.h).
  explicit BlockPlan(const std::vector<format::LayerInfo>& layers);

  // In their order: layer, side, form and size before compression; block is 0.
  const std::vector<format::SectionInfo>& sections(std::int64_t block) const {
    return of(block).sections;
  }
  // Where each part ends among them.
  const std::vector<std::size_t>& part_ends(std::int64_t block) const { return of(block).ends; }
  int n_parts(std::int64_t block) const { return static_cast<int>(part_ends(block).size()); }
  // Which of them part `part` has.
  std::span<const format::SectionInfo> part(std::int64_t block, int part) const;

  std::uint64_t raw_bytes(std::int64_t block) const;

 private:
  struct Shape {
    std::vector<format::SectionInfo> sections;
    std::vector<std::size_t> ends;
  };
  static Shape shape_of(const std::vector<format::LayerInfo>& layers, std::int64_t block);
  const Shape& of(std::int64_t block) const { return block == 0 ? first_ : later_; }

  Shape first_;  // with sink tokens
  Shape later_;
};

// Whether a section is the planned one: of that layer and side, form and size, in that block, and
// stored in a way that goes with them.
bool is_planned(const format::SectionInfo& section, const format::SectionInfo& planned,
                std::int64_t block);

// What stands behind the final blocks of a prompt: sections of its tail, and arrays. Forms are
// those of dense sections: a tail that is full may be packed.
std::vector<format::SectionInfo> plan_state(const std::vector<format::LayerInfo>& layers,
                                            std::int64_t n_tokens);

// What data_key() takes for the content of a data blob: what its sections are, and their digests.
Bytes data_content(std::span<const StoredSection> sections);

// Where the parts of such sections end.
std::vector<std::size_t> part_ends(std::span<const format::SectionInfo> sections);

}  // namespace tqcache::store
