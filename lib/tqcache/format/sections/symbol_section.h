#pragma once
// format/sections/symbol_section.h: one packed section of mode trellis as entropy-coded path
// symbols. Decompression is safe for untrusted input.
//
// In memory each component takes a byte, of which a trellis path leaves only a few bits free. Only
// these are stored: symbols component by component, since the statistics depend on the component,
// and scales as bytes.
//
// Spec: docs/reference/format.md §6.6.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/error.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/kv_codec.h"

namespace tqcache::format {

// The shape of the symbols, which follows from the shape of a packed section.
struct SymbolShape {
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;
  codec::BlockOrder order = codec::BlockOrder::kKeys;
  codec::PackedLayout layout;

  std::size_t sink_bytes() const { return n_heads * layout.sink_bytes; }
};

// Whether the packed sections of a tensor can be symbols: only in mode trellis.
bool has_symbols(const cache::TensorDesc& tensor);

// Requires: the section is packed, and has_symbols() of its tensor.
SymbolShape symbol_shape(const cache::LayerDesc& layer, const SectionInfo& section);

// Fills `stored` with the symbols of `raw`. Returns false if they would not be smaller, or if its
// codes are not paths, as in files made by other programs.
//
// Requires: `compressor` is for_planes(). Threads: any number at once.
bool compress_symbols(const Compressor& compressor, const SymbolShape& shape, ByteView raw,
                      Bytes& stored);

// Checks the declarations in `stored`. Call it before memory for the content is allocated.
// Errors: kCorrupt.
Result<void> check_symbols(ByteView stored, const SymbolShape& shape);

// Shapes:   raw [shape.layout.bytes()].
// Requires: check_symbols(stored, shape).
// Errors:   kCorrupt when the frame does not hold what it declares, or not symbols.
Result<void> decompress_symbols(const Decompressor& decompressor, ByteView stored,
                                const SymbolShape& shape, std::span<std::byte> raw);

}  // namespace tqcache::format
