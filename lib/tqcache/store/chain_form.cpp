#include "tqcache/store/chain_form.h"

#include <algorithm>
#include <utility>

#include "tqcache/format/section_plan.h"
#include "tqcache/store/keys.h"

namespace tqcache::store {
namespace {

using format::LayerInfo;
using format::SectionInfo;

const LayerInfo& layer_of(const std::vector<LayerInfo>& layers, std::int64_t layer) {
  return layers[static_cast<std::size_t>(layer)];
}

bool same_side(const format::SideInfo& a, const format::SideInfo& b) {
  return a.cache_type_id == b.cache_type_id && a.dense_dtype == b.dense_dtype &&
         format::same_bits(a.parts, b.parts) && a.centring == b.centring &&
         format::same_bits(a.mean, b.mean) && a.outliers == b.outliers && a.n_sinks == b.n_sinks &&
         a.maps == b.maps;
}

bool same_array(const format::ArrayInfo& a, const format::ArrayInfo& b) {
  return a.name == b.name && a.dtype == b.dtype;
}

bool same_layer(const LayerInfo& a, const LayerInfo& b) {
  return a.cache_type_id == b.cache_type_id && a.shape == b.shape && same_side(a.k, b.k) &&
         same_side(a.v, b.v) && a.window == b.window && a.keep == b.keep &&
         std::ranges::equal(a.arrays, b.arrays, same_array);
}

// A section that is stored in no more bytes than it has, in a way that is there for its form.
bool is_stored_well(const SectionInfo& section) {
  using enum format::Compression;
  if (section.compression == kNone) return section.stored_bytes == section.raw_bytes;
  if (section.packed && section.compression == kPlanes) return false;
  if (!section.packed && section.compression == kSymbols) return false;
  return section.stored_bytes > 0 && section.stored_bytes < section.raw_bytes;
}

}  // namespace

std::vector<LayerInfo> chain_layers(std::vector<LayerInfo> layers) {
  for (LayerInfo& layer : layers) {
    for (format::ArrayInfo& array : layer.arrays) array.shape.clear();
  }
  return layers;
}

bool same_chain(const std::vector<LayerInfo>& a, const std::vector<LayerInfo>& b) {
  return std::ranges::equal(a, b, same_layer);
}

bool can_be_cut(const std::vector<LayerInfo>& layers) {
  return std::ranges::all_of(layers, format::is_attention);
}

BlockPlan::BlockPlan(const std::vector<LayerInfo>& layers)
    : first_(shape_of(layers, 0)), later_(shape_of(layers, 1)) {}

BlockPlan::Shape BlockPlan::shape_of(const std::vector<LayerInfo>& layers, std::int64_t block) {
  Shape shape;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!format::is_attention(layers[i])) continue;
    for (const format::SideName side : {format::SideName::kKeys, format::SideName::kValues}) {
      SectionInfo section;
      section.layer = static_cast<std::int64_t>(i);
      section.side = side;
      section.packed = format::is_turbo(format::side_of(layers[i], side));
      section.raw_bytes = format::raw_bytes(layers[i], {section.layer, side, block}, section.packed,
                                            (block + 1) * cache::kTokenBlock);
      shape.sections.push_back(section);
    }
  }
  shape.ends = store::part_ends(shape.sections);
  return shape;
}

std::span<const SectionInfo> BlockPlan::part(std::int64_t block, int part) const {
  const Shape& shape = of(block);
  const auto i = static_cast<std::size_t>(part);
  const std::size_t begin = i == 0 ? 0 : shape.ends[i - 1];
  return std::span(shape.sections).subspan(begin, shape.ends[i] - begin);
}

std::uint64_t BlockPlan::raw_bytes(std::int64_t block) const {
  std::uint64_t sum = 0;
  for (const SectionInfo& section : sections(block)) sum += section.raw_bytes;
  return sum;
}

bool is_planned(const SectionInfo& section, const SectionInfo& planned, std::int64_t block) {
  return section.layer == planned.layer && section.side == planned.side && section.block == block &&
         section.packed == planned.packed && section.raw_bytes == planned.raw_bytes &&
         is_stored_well(section);
}

std::vector<SectionInfo> plan_state(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  std::vector<SectionInfo> sections;
  for (const format::SectionKey& key : format::plan_sections(layers, n_tokens)) {
    if (key.side != format::SideName::kArray && key.block < final_blocks(n_tokens)) continue;
    SectionInfo section;
    section.layer = key.layer;
    section.side = key.side;
    section.block = key.block;
    section.raw_bytes = format::raw_bytes(layer_of(layers, key.layer), key, false, n_tokens);
    sections.push_back(section);
  }
  return sections;
}

Bytes data_content(std::span<const StoredSection> sections) {
  ByteWriter out;
  for (const StoredSection& section : sections) {
    const format::SectionInfo& info = section.info;
    out.write(info.layer);
    out.write(static_cast<std::uint64_t>(info.side));
    out.write(info.block);
    out.write(std::uint64_t{info.packed});
    out.write(static_cast<std::uint64_t>(info.compression));
    out.write(info.stored_bytes);
    out.write(info.raw_bytes);
    out.write(info.checksum.high);
    out.write(info.checksum.low);
    out.append(info.raw_sha256);
  }
  return std::move(out).take();
}

std::vector<std::size_t> part_ends(std::span<const SectionInfo> sections) {
  std::vector<std::uint64_t> sizes;
  for (const SectionInfo& section : sections) sizes.push_back(section.raw_bytes);
  return cut_into_parts(sizes);
}

}  // namespace tqcache::store
