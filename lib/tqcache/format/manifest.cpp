#include "tqcache/format/manifest.h"

#include <algorithm>
#include <cassert>
#include <span>

#include "tqcache/base/integers.h"
#include "tqcache/cache/blocks.h"

namespace tqcache::format {

Compression compression_of(const Manifest& manifest) {
  Compression most = Compression::kNone;
  const auto of_cache = std::span(manifest.sections).first(count_cache_sections(manifest));
  for (const SectionInfo& section : of_cache) {
    // Symbols and residuals replace zstd frames where a tensor supports them.
    const bool is_zstd = section.compression >= Compression::kSymbols;
    most = std::max(most, is_zstd ? Compression::kZstd : section.compression);
  }
  return most;
}

const cache::LayerDesc& layer_of(const Manifest& manifest, const cache::BlockInfo& section) {
  const std::size_t layer = to_size(section.layer);
  if (layer < manifest.layers.size()) return manifest.layers[layer];
  const std::size_t n_layers = manifest.checkpoints.front().layers.size();
  const std::size_t behind = layer - manifest.layers.size();
  return manifest.checkpoints[behind / n_layers].layers[behind % n_layers];
}

std::int64_t tokens_of(const Manifest& manifest, const cache::BlockInfo& section) {
  const std::size_t layer = to_size(section.layer);
  if (layer < manifest.layers.size()) return manifest.n_tokens();
  const std::size_t n_layers = manifest.checkpoints.front().layers.size();
  return manifest.checkpoints[(layer - manifest.layers.size()) / n_layers].n_tokens;
}

std::size_t count_cache_sections(const Manifest& manifest) {
  if (manifest.checkpoints.empty()) return manifest.sections.size();
  return cache::count_blocks(manifest.layers, manifest.n_tokens());
}

std::vector<SectionInfo> sections_of(const std::vector<cache::BlockInfo>& blocks) {
  std::vector<SectionInfo> sections;
  for (cache::BlockInfo block : blocks) {
    block.stored_bytes = 0;  // it was the source's
    static_cast<cache::BlockInfo&>(sections.emplace_back()) = block;
  }
  return sections;
}

std::vector<cache::BlockInfo> blocks_of(std::span<const SectionInfo> sections) {
  return {sections.begin(), sections.end()};
}

}  // namespace tqcache::format
