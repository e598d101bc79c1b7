#include "tqcache/format/sections/section_compressor.h"

#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/format/sections/symbol_section.h"
#include "tqcache/hash.h"

namespace tqcache::format {

SectionCompressor::SectionCompressor(Compression method, Compressor zstd)
    : method_(method), zstd_(std::move(zstd)), planes_(Compressor::for_planes()) {}

Result<SectionCompressor> SectionCompressor::make(Compression method, int zstd_level) {
  TQC_TRY_ASSIGN(Compressor zstd, Compressor::make(zstd_level));
  return SectionCompressor(method, std::move(zstd));
}

void SectionCompressor::prepare(const cache::LayerDesc& layer, ByteView raw, SectionInfo& section,
                                Bytes& compressed) const {
  compressed.clear();
  section.raw_sha256 = sha256(raw);
  section.compression = compress(layer, section, raw, compressed);
  const ByteView stored = compressed.empty() ? raw : ByteView(compressed);
  section.stored_bytes = stored.size();
  section.checksum = xxh3_128(stored);
}

// Returns the method used. kNone: the result would not be smaller, and `out` is empty.
Compression SectionCompressor::compress(const cache::LayerDesc& layer, const SectionInfo& section,
                                        ByteView raw, Bytes& out) const {
  if (method_ == Compression::kNone) return Compression::kNone;
  if (method_ == Compression::kPlanes && !section.packed) {
    const std::size_t width = number_bytes(layer, key_of(section));
    return compress_planes(planes_, raw, width, out) ? Compression::kPlanes : Compression::kNone;
  }
  if (section.packed && has_symbols(tensor_of(layer, section.tensor)) &&
      compress_symbols(planes_, symbol_shape(layer, section), raw, out)) {
    return Compression::kSymbols;
  }
  return zstd_.compress(raw, out) ? Compression::kZstd : Compression::kNone;
}

}  // namespace tqcache::format
