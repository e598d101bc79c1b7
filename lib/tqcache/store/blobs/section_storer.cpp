#include "tqcache/store/blobs/section_storer.h"

#include <memory>

#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::store {
namespace {

bool becomes_smaller(const cache::LayerDesc& layer, const format::SectionInfo& section) {
  return !section.packed || format::has_symbols(format::side_of(layer, section.side));
}

}  // namespace

Result<SectionStorer> SectionStorer::make() {
  using enum format::Compression;
  TQC_TRY_ASSIGN(auto as_it_is, format::SectionCompressor::make(kNone, 1));
  TQC_TRY_ASSIGN(auto smaller, format::SectionCompressor::make(kPlanes, 1));
  return SectionStorer(std::move(as_it_is), std::move(smaller));
}

StoredSection SectionStorer::store(const cache::LayerDesc& layer,
                                   const format::SectionInfo& section, SharedBytes raw) const {
  format::SectionInfo info = section;
  Bytes compressed;
  const auto& compressor = becomes_smaller(layer, info) ? smaller_ : as_it_is_;
  compressor.prepare(layer, raw.view(), info, compressed);
  if (compressed.empty()) return {info, std::move(raw)};
  const auto owner = std::make_shared<const Bytes>(std::move(compressed));
  return {info, SharedBytes(owner, *owner)};
}

}  // namespace tqcache::store
