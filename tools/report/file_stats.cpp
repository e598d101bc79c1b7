#include "report/file_stats.h"

#include <algorithm>

namespace tqcache::cli {
namespace {

std::uint64_t& part_of(const format::SectionInfo& section, PartBytes& parts) {
  switch (section.side) {
    case format::SideName::kKeys:
      return section.packed ? parts.key_packed : parts.key_dense;
    case format::SideName::kValues:
      return section.packed ? parts.value_packed : parts.value_dense;
    case format::SideName::kArray:
      return parts.arrays;
  }
  return parts.arrays;
}

}  // namespace

std::uint64_t value_count(const format::Manifest& info, std::int64_t n_tokens) {
  std::int64_t n_values = 0;
  for (const cache::LayerDesc& layer : info.layers) {
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    if (attention == nullptr) continue;
    const auto [n_kv_heads, head_dim] = attention->shape;
    n_values += 2 * n_kv_heads * head_dim * cache::tokens_held(layer, n_tokens);
  }
  return static_cast<std::uint64_t>(n_values);
}

std::optional<double> bits_per_value(std::uint64_t file_bytes, std::uint64_t n_values) {
  if (n_values == 0) return std::nullopt;
  return static_cast<double>(file_bytes) * 8 / static_cast<double>(n_values);
}

std::size_t compressed_count(const format::CacheFileInfo& info, format::Compression compression) {
  return static_cast<std::size_t>(
      std::ranges::count(info.sections, compression, &format::SectionInfo::compression));
}

PartBytes bytes_by_part(const format::CacheFileInfo& info) {
  PartBytes parts;
  std::uint64_t listed = info.manifest_bytes + info.gap_bytes;
  for (const format::SectionInfo& section : info.sections) {
    part_of(section, parts) += section.stored_bytes;
    listed += section.stored_bytes;
  }
  parts.manifest = info.manifest_bytes;
  parts.dead = info.gap_bytes;
  parts.header_and_padding = info.file_bytes - listed;
  return parts;
}

}  // namespace tqcache::cli
