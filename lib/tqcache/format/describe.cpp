#include "tqcache/format/describe.h"

#include <utility>
#include <variant>

#include "tqcache/format/section_plan.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

SideInfo describe_side(const cache::Side& side) {
  SideInfo info;
  info.cache_type_id = kDenseType;
  info.dense_dtype = cache::dense_dtype(side);
  if (const auto* turbo = std::get_if<cache::TurboSide>(&side)) {
    info.cache_type_id = name_of(kTurboTypes, turbo->codec.mode());
    info.parts = turbo->codec.parts();
    info.centering = turbo->mean.kind;
    info.mean.assign(turbo->mean.values.begin(), turbo->mean.values.end());
    info.outliers = turbo->outliers.channels();
    info.n_sinks = turbo->n_sinks;
    info.transforms = turbo->transforms.entries;
  }
  return info;
}

LayerInfo describe_kind(const cache::AttentionLayer& layer) {
  LayerInfo info;
  info.cache_type_id = kAttentionType;
  info.shape = layer.shape;
  info.k = describe_side(layer.k);
  info.v = describe_side(layer.v);
  return info;
}

LayerInfo describe_turbo_window(const cache::ArraysLayer& layer) {
  LayerInfo info = describe_kind(*layer.rows);
  info.cache_type_id = kTurboRotatingType;
  info.window = layer.window->size;
  return info;
}

LayerInfo describe_kind(const cache::ArraysLayer& layer) {
  if (cache::is_turbo_window(layer)) return describe_turbo_window(layer);
  LayerInfo info;
  info.cache_type_id = kArraysType;
  if (layer.window) {
    info.cache_type_id = kRotatingType;
    info.shape = layer.window->shape;
    info.window = layer.window->size;
    info.keep = layer.window->keep;
  }
  for (const cache::NamedArray& array : layer.arrays) {
    info.arrays.push_back({array.name, array.dtype, array.shape});
  }
  return info;
}

bool is_packed(const cache::Layer& layer, const SectionKey& key) {
  if (key.side == SideName::kArray) return false;
  const cache::AttentionLayer& rows = *cache::rows_of(layer);
  return key.block < cache::packed_block_count(key.side == SideName::kKeys ? rows.k : rows.v);
}

}  // namespace

LayerInfo describe_layer(const cache::Layer& layer) {
  return std::visit([](const auto& kind) { return describe_kind(kind); }, layer);
}

Manifest describe(const cache::Cache& cache, std::string writer) {
  Manifest manifest;
  manifest.writer = std::move(writer);
  manifest.identity = cache.identity;
  manifest.tokens = cache.tokens;
  manifest.hidden_tokens = cache.hidden_tokens;
  for (const cache::Layer& layer : cache.layers) {
    manifest.layers.push_back(describe_layer(layer));
  }
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
