#include "tqcache/store/blobs/section_digests.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::store {
namespace {

// A compressed section may claim this much, or this many times its own size.
constexpr std::uint64_t kMaxClaimedBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kMaxClaimedTimes = 4;
// Blobs with less content than this are compared on all threads.
constexpr std::uint64_t kParallelBytes = std::uint64_t{64} << 20;

void drop_values(cache::TensorDesc& tensor) {
  if (!tensor.quant) return;
  tensor.quant->mean.clear();
  tensor.quant->outliers.clear();
  tensor.quant->transforms.clear();
  tensor.quant->factors.clear();
}

bool may_be_symbols(const cache::LayerDesc& layer) {
  const cache::AttentionDesc* const attention = cache::attention_of(layer);
  return attention != nullptr &&
         (format::has_symbols(attention->k) || format::has_symbols(attention->v));
}

// The shape that the symbols of a section have in these layers, if they can be its.
std::optional<format::SymbolShape> shape_in(const std::vector<cache::LayerDesc>& layers,
                                            const format::SectionInfo& section) {
  const auto index = to_size(section.layer);
  if (index >= layers.size() || section.tensor == cache::TensorKind::kArray) return std::nullopt;
  const cache::LayerDesc& layer = layers[index];
  if (cache::attention_of(layer) == nullptr ||
      !format::has_symbols(cache::tensor_of(layer, section.tensor))) {
    return std::nullopt;
  }
  format::SymbolShape shape = format::symbol_shape(layer, section);
  if (shape.layout.bytes() != section.raw_bytes) return std::nullopt;
  return shape;
}

// How wide the numbers of planes are follows from their sizes: they add up for one width alone.
Result<void> unpack_planes(const format::Decompressor& decompressor, const StoredSection& section,
                           AlignedBytes& raw) {
  Result<void> checked = corrupt("planes of no width");
  for (const std::size_t width : {std::size_t{2}, std::size_t{4}}) {
    if (section.info.raw_bytes % width != 0) continue;
    checked = format::check_planes(section.stored.view(), section.info.raw_bytes, width);
    if (!checked) continue;
    raw.resize(section.info.raw_bytes);
    return format::decompress_planes(decompressor, section.stored.view(), width, raw);
  }
  return checked;
}

}  // namespace

void SectionDigests::add_layers(const std::vector<cache::LayerDesc>& layers) {
  if (std::ranges::none_of(layers, may_be_symbols)) return;
  format::Manifest manifest;
  manifest.layers = layers;
  for (cache::LayerDesc& layer : manifest.layers) {
    std::visit(Overload{[](cache::AttentionDesc& attention) {
                          drop_values(attention.k);
                          drop_values(attention.v);
                        },
                        [](cache::WindowDesc& window) {
                          drop_values(window.attention.k);
                          drop_values(window.attention.v);
                        },
                        [](cache::StateDesc& state) { state.arrays.clear(); }},
               layer);
  }
  const Sha256 name = format::content_name(manifest, /*window_tokens=*/{});
  layers_.try_emplace(name, std::move(manifest.layers));
}

Result<void> SectionDigests::compare_symbols(const StoredSection& section) const {
  Result<void> done;
  for (const auto& [name, layers] : layers_) {
    const std::optional<format::SymbolShape> shape = shape_in(layers, section.info);
    if (!shape) continue;
    AlignedBytes raw;
    done = format::check_symbols(section.stored.view(), *shape);
    if (done) {
      raw.resize(section.info.raw_bytes);
      done = format::decompress_symbols(*decompressor_, section.stored.view(), *shape, raw);
    }
    if (done) done = format::check_digest(section.info, raw);
    if (done) return {};
  }
  return done;
}

Result<void> SectionDigests::compare_section(const StoredSection& section) const {
  const format::SectionInfo& info = section.info;
  const ByteView stored = section.stored.view();
  if (info.compression == format::Compression::kNone) return format::check_digest(info, stored);
  const std::uint64_t limit =
      std::max<std::uint64_t>(kMaxClaimedBytes, kMaxClaimedTimes * stored.size());
  if (info.raw_bytes > limit) {
    return too_large(fmt::format("{} bytes from {}", info.raw_bytes, stored.size()));
  }
  if (info.compression == format::Compression::kSymbols) return compare_symbols(section);
  AlignedBytes raw;
  if (info.compression == format::Compression::kPlanes) {
    TQC_TRY(unpack_planes(*decompressor_, section, raw));
  } else {
    TQC_TRY(format::Decompressor::check_frame(stored, info.raw_bytes));
    raw.resize(info.raw_bytes);
    TQC_TRY(decompressor_->decompress(stored, raw));
  }
  return format::check_digest(info, raw);
}

Result<void> SectionDigests::compare(const std::vector<StoredSection>& sections,
                                     unsigned n_threads) const {
  std::uint64_t bytes = 0;
  for (const StoredSection& section : sections) {
    bytes += std::min(section.info.raw_bytes, kParallelBytes);
  }
  return parallel_try(
      sections.size(), bytes < kParallelBytes ? n_threads : 1, [&](std::size_t i) -> Result<void> {
        Result<void> done = compare_section(sections[i]);
        if (done) return {};
        return in_context(cache::block_place(i, sections[i].info), std::move(done).error());
      });
}

Result<void> SectionDigests::compare(const Content& content, unsigned n_threads) const {
  if (const auto* block = std::get_if<Block>(&content)) return compare(block->sections, n_threads);
  if (const auto* data = std::get_if<Data>(&content)) return compare(data->sections, n_threads);
  return {};
}

}  // namespace tqcache::store
