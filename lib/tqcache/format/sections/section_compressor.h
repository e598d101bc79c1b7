#pragma once
// format/sections/section_compressor.h: compression of a section, with the matching fields of its
// row in the section table.
//
// Spec: docs/reference/format.md §4.5, §5 and §6.

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// Threads: any number may use one at once.
class SectionCompressor {
 public:
  // Errors: kInvalidArgument when the level is not 1 to 19.
  static Result<SectionCompressor> make(Compression method, int zstd_level);

  // Fills in compression, stored size and digests of `section`, whose other fields and layer
  // describe it. `compressed` gets the bytes to store; it is empty if these are `raw` itself.
  void prepare(const cache::LayerDesc& layer, ByteView raw, SectionInfo& section,
               Bytes& compressed) const;

 private:
  SectionCompressor(Compression method, Compressor zstd);
  Compression compress(const cache::LayerDesc& layer, const SectionInfo& section, ByteView raw,
                       Bytes& out) const;

  Compression method_;
  Compressor zstd_;
  Compressor planes_;
};

}  // namespace tqcache::format
