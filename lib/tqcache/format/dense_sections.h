#pragma once
// format/dense_sections.h: a cache as if nothing in it were packed: what other programs can take.

#include <cstddef>

#include "tqcache/cache/cache.h"
#include "tqcache/format/section_source.h"

namespace tqcache::format {

// Every turbo side is dense here, of the dtype of its tail; packed blocks are decoded as they are
// read. All else is as in the source.
//
// Threads: as SectionSource.
class DenseSections : public SectionSource {
 public:
  // `source` must outlive this. Errors: those of codec::HeadCodec::make.
  static Result<DenseSections> make(const SectionSource& source);

  const Manifest& manifest() const override { return manifest_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;

 private:
  DenseSections(const SectionSource& source, cache::Cache decoders);

  const SectionSource* source_;
  cache::Cache decoders_;
  Manifest manifest_;
};

}  // namespace tqcache::format
