#include "tqcache/format/dense_sections.h"

#include <string>
#include <utility>

#include "tqcache/format/section_plan.h"
#include "tqcache/format/type_names.h"
#include "tqcache/format/unpack_section.h"

namespace tqcache::format {
namespace {

SideInfo dense_side(Dtype dtype) {
  SideInfo side;
  side.cache_type_id = std::string(kDenseType);
  side.dense_dtype = dtype;
  return side;
}

}  // namespace

Result<DenseSections> DenseSections::make(const SectionSource& source) {
  TQC_TRY_ASSIGN(cache::Cache decoders, make_decoders(source.manifest()));
  return DenseSections(source, std::move(decoders));
}

DenseSections::DenseSections(const SectionSource& source, cache::Cache decoders)
    : source_(&source), decoders_(std::move(decoders)), manifest_(source.manifest()) {
  for (LayerInfo& layer : manifest_.layers) {
    if (!is_attention(layer)) continue;
    layer.k = dense_side(layer.k.dense_dtype);
    layer.v = dense_side(layer.v.dense_dtype);
  }
  for (SectionInfo& section : manifest_.sections) {
    section.packed = false;
    section.raw_bytes = raw_bytes(manifest_.layers[static_cast<std::size_t>(section.layer)],
                                  key_of(section), false, manifest_.n_tokens());
  }
}

Result<void> DenseSections::read(std::size_t section, AlignedBytes& raw) const {
  TQC_TRY(source_->read(section, raw));
  const SectionInfo& info = source_->manifest().sections[section];
  if (!info.packed) return {};
  raw = unpack_section(decoders_, info, SharedBytes(std::move(raw)), cache::kTokenBlock);
  return {};
}

}  // namespace tqcache::format
