#include "tqcache/format/manifest.h"

#include <cassert>

#include "tqcache/format/type_names.h"

namespace tqcache::format {

bool is_attention(const LayerInfo& layer) { return layer.cache_type_id == kAttentionType; }

const SideInfo& side_of(const LayerInfo& layer, SideName side) {
  assert(side != SideName::kArray);
  return side == SideName::kKeys ? layer.k : layer.v;
}

std::string section_place(std::size_t index, const SectionInfo& section) {
  const std::string layer =
      "section " + std::to_string(index) + " (layer " + std::to_string(section.layer);
  const std::string number = std::to_string(section.block) + ")";
  if (section.side == SideName::kArray) return layer + " array " + number;
  return layer + (section.side == SideName::kKeys ? " k, block " : " v, block ") + number;
}

}  // namespace tqcache::format
