#include "file_stats.h"

namespace tqcache::cli {
namespace {

std::uint64_t values_per_token(const cache::HeadShape& shape) {
  return 2 * static_cast<std::uint64_t>(shape.n_kv_heads * shape.head_dim);
}

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

std::uint64_t value_count(const cache::Cache& cache) {
  std::uint64_t per_token = 0;
  for (const cache::Layer& layer : cache.layers) {
    const auto* attention = std::get_if<cache::AttentionLayer>(&layer);
    if (attention != nullptr) per_token += values_per_token(attention->shape);
  }
  return per_token * cache.tokens.size();
}

std::uint64_t value_count(const format::CacheFileInfo& info) {
  std::uint64_t per_token = 0;
  for (const format::LayerInfo& layer : info.layers) per_token += values_per_token(layer.shape);
  return per_token * info.tokens.size();
}

std::optional<double> bits_per_value(std::uint64_t file_bytes, std::uint64_t n_values) {
  if (n_values == 0) return std::nullopt;
  return static_cast<double>(file_bytes) * 8 / static_cast<double>(n_values);
}

PartBytes bytes_by_part(const format::CacheFileInfo& info) {
  PartBytes parts;
  std::uint64_t listed = info.manifest_bytes;
  for (const format::SectionInfo& section : info.sections) {
    part_of(section, parts) += section.stored_bytes;
    listed += section.stored_bytes;
  }
  parts.manifest = info.manifest_bytes;
  parts.header_and_padding = info.file_bytes - listed;
  return parts;
}

}  // namespace tqcache::cli
