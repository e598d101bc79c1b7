#include "tqcache/format/describe.h"

#include <utility>

#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

bool is_packed(const cache::Layer& layer, const SectionKey& key) {
  if (key.side == SideName::kArray) return false;
  const cache::AttentionLayer& attention = *cache::attention_of(layer);
  return key.block <
         cache::packed_block_count(key.side == SideName::kKeys ? attention.k : attention.v);
}

}  // namespace

Manifest describe(const cache::Cache& cache, std::string writer) {
  Manifest manifest{cache::describe(cache), std::move(writer), {}, {}, {}};
  for (const SectionKey& key : plan_sections(manifest.layers, cache.n_tokens())) {
    const auto layer = static_cast<std::size_t>(key.layer);
    SectionInfo section;
    section.layer = key.layer;
    section.side = key.side;
    section.block = key.block;
    section.packed = is_packed(cache.layers[layer], key);
    section.raw_bytes = raw_bytes(manifest.layers[layer], key, section.packed, cache.n_tokens());
    manifest.sections.push_back(section);
  }
  return manifest;
}

}  // namespace tqcache::format
