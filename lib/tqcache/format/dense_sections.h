#pragma once
// format/dense_sections.h: a cache as if nothing in it were packed: what other programs can take.

#include <cstddef>
#include <vector>

#include "tqcache/cache/kv_codec.h"
#include "tqcache/format/section_source.h"

namespace tqcache::format {

// Every turbo side is dense here, of the dtype of its tail; packed blocks are decoded as they are
// read. Turbo windows are arrays of exactly the window's tokens, as dense ones are. All else is as
// in the source.
//
// Threads: as SectionSource.
class DenseSections : public SectionSource {
 public:
  // `source` must outlive this. Errors: those of cache::KvCodec::make().
  static Result<DenseSections> make(const SectionSource& source);

  const Manifest& manifest() const override { return manifest_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;

 private:
  DenseSections(const SectionSource& source, std::vector<cache::LayerCodecs> codecs);
  Result<void> read_block(std::size_t in_source, AlignedBytes& raw) const;
  Result<void> read_window(std::size_t section, AlignedBytes& raw) const;

  const SectionSource* source_;
  std::vector<cache::LayerCodecs> codecs_;  // [n_layers]
  Manifest manifest_;
  // [n_sections] where each comes from: numbers of sections of the source, those of a window in the
  // order of its token blocks.
  std::vector<std::vector<std::size_t>> origins_;
};

}  // namespace tqcache::format
