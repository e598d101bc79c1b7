#include "tqcache/interop/foreign_cache.h"

#include <fmt/format.h>

#include <string>

#include "tqcache/format/describe.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::interop {
namespace {

using cache::LayerDesc;
using cache::TensorDesc;
using format::Manifest;
using format::SectionInfo;
using format::SectionKey;
using format::SideName;

Result<TensorDesc> describe(const ForeignSide& side, cache::HeadShape shape) {
  TensorDesc tensor{side.dtype, {}};
  if (!side.packed) return tensor;
  cache::QuantSpec quant;
  TQC_TRY_ASSIGN(quant.mode,
                 codec::mode_of(static_cast<int>(shape.head_dim), side.packed->parts));
  quant.parts = side.packed->parts;
  quant.outliers = side.packed->outliers;
  tensor.quant = std::move(quant);
  return tensor;
}

Result<LayerDesc> describe(const ForeignAttention& layer) {
  auto k = describe(layer.k, layer.shape);
  if (!k) return in_context("k", std::move(k).error());
  auto v = describe(layer.v, layer.shape);
  if (!v) return in_context("v", std::move(v).error());
  return LayerDesc(
      cache::AttentionDesc{layer.shape, std::move(k).value(), std::move(v).value()});
}

Result<LayerDesc> describe(const ForeignWindow& layer, std::int64_t n_tokens) {
  TQC_TRY(cache::validate_window(layer.shape, layer.window));
  const auto expected = cache::window_array_shape(layer.shape, layer.window, n_tokens);
  for (const ForeignArray* array : {&layer.k, &layer.v}) {
    if (array->shape != expected) return corrupt(array->name + ": not of the window's shape");
  }
  return LayerDesc(
      cache::WindowDesc{{layer.shape, {layer.k.dtype, {}}, {layer.v.dtype, {}}}, layer.window});
}

LayerDesc describe(const ForeignState& layer) {
  cache::StateDesc state;
  for (const ForeignArray& array : layer.arrays) {
    state.arrays.push_back({array.name, array.dtype, array.shape});
  }
  return state;
}

Result<LayerDesc> describe(const ForeignLayer& layer, std::int64_t n_tokens) {
  return std::visit(
      Overload{[](const ForeignAttention& attention) { return describe(attention); },
               [&](const ForeignWindow& window) { return describe(window, n_tokens); },
               [](const ForeignState& state) -> Result<LayerDesc> { return describe(state); }},
      layer);
}

Result<void> set_tokens(const ForeignCache& cache, Manifest& manifest) {
  if (cache.n_tokens < 0 || cache.n_tokens > cache::kMaxTokens) {
    return too_large(fmt::format("{} tokens", cache.n_tokens));
  }
  if (!cache.tokens) {
    manifest.tokens.assign(static_cast<std::size_t>(cache.n_tokens), cache::kUnknownToken);
    manifest.hidden_tokens.emplace();
    return {};
  }
  if (std::ssize(*cache.tokens) != cache.n_tokens) {
    return corrupt(fmt::format("{} token ids for {} tokens", cache.tokens->size(), cache.n_tokens));
  }
  manifest.tokens = *cache.tokens;
  return {};
}

SectionInfo describe_section(const std::vector<LayerDesc>& layers, const SectionKey& key,
                             std::int64_t n_tokens) {
  SectionInfo section;
  section.layer = key.layer;
  section.side = key.side;
  section.block = key.block;
  const LayerDesc& layer = layers[static_cast<std::size_t>(key.layer)];
  section.packed = key.side != SideName::kArray && side_of(layer, key.side).quant &&
                   cache::tokens_in_block(n_tokens, key.block) == cache::kTokenBlock;
  section.raw_bytes = format::raw_bytes(layer, key, section.packed, n_tokens);
  return section;
}

// Drops packed forms. Whether there were any.
bool make_dense(std::vector<ForeignLayer>& layers) {
  bool is_changed = false;
  for (ForeignLayer& layer : layers) {
    auto* const attention = std::get_if<ForeignAttention>(&layer);
    if (attention == nullptr) continue;
    is_changed = is_changed || attention->k.packed || attention->v.packed;
    attention->k.packed.reset();
    attention->v.packed.reset();
  }
  return is_changed;
}

Result<Manifest> describe_foreign(const ForeignCache& cache) {
  Manifest manifest;
  manifest.identity = cache.identity;
  TQC_TRY(set_tokens(cache, manifest));
  for (const ForeignLayer& layer : cache.layers) {
    auto info = describe(layer, manifest.n_tokens());
    if (!info) {
      return in_context(fmt::format("layer {}", manifest.layers.size()), std::move(info).error());
    }
    manifest.layers.push_back(std::move(info).value());
  }
  TQC_TRY(format::check_contents(manifest));
  for (const SectionKey& key : format::plan_sections(manifest.layers, manifest.n_tokens())) {
    manifest.sections.push_back(describe_section(manifest.layers, key, manifest.n_tokens()));
  }
  return manifest;
}

// With packed sides, if a file may have their codecs.
Result<Manifest> describe_within_limits(ForeignCache& cache) {
  Result<Manifest> packed = describe_foreign(cache);
  if (packed || packed.error().code != ErrorCode::kTooLarge) return packed;
  if (!make_dense(cache.layers)) return packed;
  return describe_foreign(cache);
}

// "layer 3 k": in other programs' files there are no sections to name.
std::string place_of(const SectionInfo& section) {
  std::string place = fmt::format("layer {}", section.layer);
  if (section.side == SideName::kArray) return fmt::format("{} array {}", place, section.block);
  return place + (section.side == SideName::kKeys ? " k" : " v");
}

class ForeignSections : public format::SectionSource {
 public:
  ForeignSections(ForeignCache cache, Manifest manifest)
      : cache_(std::move(cache)), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const override { return manifest_; }

  Result<void> read(std::size_t index, AlignedBytes& raw) const override {
    const SectionInfo& section = manifest_.sections[index];
    raw.resize(section.raw_bytes);
    auto done = read_into(section, raw);
    if (!done) return in_context(place_of(section), std::move(done).error());
    return {};
  }

 private:
  Result<void> read_into(const SectionInfo& section, std::span<std::byte> raw) const {
    const ForeignLayer& layer = cache_.layers[static_cast<std::size_t>(section.layer)];
    return std::visit(
        Overload{[&](const ForeignAttention& attention) {
                   const ForeignSide& side =
                       section.side == SideName::kKeys ? attention.k : attention.v;
                   if (section.packed) return side.packed->read(section.block, raw);
                   return side.read(section.block * cache::kTokenBlock,
                                    cache::tokens_in_block(manifest_.n_tokens(), section.block),
                                    raw);
                 },
                 [&](const ForeignWindow& window) {
                   return (section.block == 0 ? window.k : window.v).read(raw);
                 },
                 [&](const ForeignState& state) {
                   return state.arrays[static_cast<std::size_t>(section.block)].read(raw);
                 }},
        layer);
  }

  ForeignCache cache_;
  Manifest manifest_;
};

// A cache in memory.
class MemorySections : public format::SectionSource {
 public:
  explicit MemorySections(std::shared_ptr<const cache::Cache> cache)
      : cache_(std::move(cache)), manifest_(format::describe(*cache_, {})) {}

  const Manifest& manifest() const override { return manifest_; }

  Result<void> read(std::size_t index, AlignedBytes& raw) const override {
    AlignedBytes scratch;
    const ByteView bytes = format::section_bytes(*cache_, manifest_.sections[index], scratch);
    raw.assign(bytes.begin(), bytes.end());
    return {};
  }

 private:
  std::shared_ptr<const cache::Cache> cache_;
  Manifest manifest_;
};

}  // namespace

Result<std::unique_ptr<format::SectionSource>> sections_of(ForeignCache cache) {
  TQC_TRY_ASSIGN(Manifest manifest, describe_within_limits(cache));
  std::unique_ptr<format::SectionSource> sections =
      std::make_unique<ForeignSections>(std::move(cache), std::move(manifest));
  return sections;
}

std::unique_ptr<format::SectionSource> sections_of(std::shared_ptr<const cache::Cache> cache) {
  return std::make_unique<MemorySections>(std::move(cache));
}

}  // namespace tqcache::interop
