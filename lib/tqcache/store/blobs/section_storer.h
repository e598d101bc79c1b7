#pragma once
// store/blobs/section_storer.h: sections of a cache in memory in the form in which a store keeps them.
//
// Packed blocks are stored as they are, but for trellis codes, which become symbols; dense ones
// become planes (docs/reference/store.md, "Putting", says why).
//
// Only for the sources of store.

#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

// Threads: any number may use one at once.
class SectionStorer {
 public:
  static Result<SectionStorer> make();

  // With all digests. `info` and `layer` say what the section is.
  StoredSection store(const cache::LayerDesc& layer, const format::SectionInfo& info,
                      SharedBytes raw) const;

 private:
  SectionStorer(format::SectionCompressor as_it_is, format::SectionCompressor smaller)
      : as_it_is_(std::move(as_it_is)), smaller_(std::move(smaller)) {}

  format::SectionCompressor as_it_is_, smaller_;
};

}  // namespace tqcache::store
