#include "tqcache/format/manifest.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "tqcache/cache/window_rows.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {

bool is_attention(const LayerInfo& layer) { return layer.cache_type_id == kAttentionType; }
bool is_rotating(const LayerInfo& layer) { return layer.cache_type_id == kRotatingType; }
bool is_turbo_rotating(const LayerInfo& layer) { return layer.cache_type_id == kTurboRotatingType; }
bool has_sides(const LayerInfo& layer) { return is_attention(layer) || is_turbo_rotating(layer); }

std::int64_t first_block(const LayerInfo& layer, std::int64_t n_tokens) {
  if (!is_turbo_rotating(layer)) return 0;
  return cache::first_window_block({layer.shape, layer.window, layer.keep}, n_tokens);
}

const SideInfo& side_of(const LayerInfo& layer, SideName side) {
  assert(side != SideName::kArray);
  return side == SideName::kKeys ? layer.k : layer.v;
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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool same_bits(const codec::TransformMatrix& a, const codec::TransformMatrix& b) { return a == b; }

bool same_bits(const codec::PartSpec& a, const codec::PartSpec& b) {
  return a.first == b.first && a.quantizer == b.quantizer && a.of_residual == b.of_residual &&
         a.has_bias == b.has_bias && same_bits(a.centroids, b.centroids);
}

bool same_bits(const std::vector<codec::PartSpec>& a, const std::vector<codec::PartSpec>& b) {
  return std::ranges::equal(
      a, b, [](const codec::PartSpec& x, const codec::PartSpec& y) { return same_bits(x, y); });
}

std::string section_place(std::size_t index, const SectionInfo& section) {
  const std::string layer =
      "section " + std::to_string(index) + " (layer " + std::to_string(section.layer);
  const std::string number = std::to_string(section.block) + ")";
  if (section.side == SideName::kArray) return layer + " array " + number;
  return layer + (section.side == SideName::kKeys ? " k, block " : " v, block ") + number;
}

}  // namespace tqcache::format
