#include "tqcache/format/manifest.h"

#include <algorithm>
#include <cassert>

namespace tqcache::format {

const cache::TensorDesc& side_of(const cache::LayerDesc& layer, SideName side) {
  assert(side != SideName::kArray);
  const cache::AttentionDesc& attention = *cache::attention_of(layer);
  return side == SideName::kKeys ? attention.k : attention.v;
}

Compression compression_of(const Manifest& manifest) {
  Compression most = Compression::kNone;
  for (const SectionInfo& section : manifest.sections) {
    // Symbols are what becomes of zstd where a side has them.
    const bool is_symbols = section.compression == Compression::kSymbols;
    most = std::max(most, is_symbols ? Compression::kZstd : section.compression);
  }
  return most;
}

std::string section_place(std::size_t index, const SectionInfo& section) {
  const std::string layer =
      "section " + std::to_string(index) + " (layer " + std::to_string(section.layer);
  const std::string number = std::to_string(section.block) + ")";
  if (section.side == SideName::kArray) return layer + " array " + number;
  return layer + (section.side == SideName::kKeys ? " k, block " : " v, block ") + number;
}

}  // namespace tqcache::format
