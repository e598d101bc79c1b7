#pragma once
// format/sections/symbol_section.h: one packed section of mode trellis as the symbols of its paths,
// entropy coded, and back. Decompression is safe for untrusted input.
//
// In memory a component takes a byte, of which a path through the trellis leaves few bits open.
// Here stand these alone: symbols component by component, since components of one map are alike and
// others are not, and the scales as bytes.
//
// Spec: docs/reference/format.md §6.6.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/kv_codec.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// What the shape of a packed section says of its symbols.
struct SymbolShape {
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;
  codec::BlockOrder order = codec::BlockOrder::kKeys;
  cache::PackedLayout layout;

  std::size_t sink_bytes() const { return n_heads * layout.sink_bytes; }
};

// Whether the packed sections of a side can be symbols: those of mode trellis.
bool has_symbols(const cache::TensorDesc& tensor);

// Requires: the section is packed, of a side that has_symbols().
SymbolShape symbol_shape(const cache::LayerDesc& layer, const SectionInfo& section);

// Fills `stored` with the symbols of `raw`. False: they would not be smaller, or its codes are no
// paths, as those of a file may be that was made elsewhere.
//
// Requires: `compressor` is for_planes(). Threads: any number at once.
bool compress_symbols(const Compressor& compressor, const SymbolShape& shape, ByteView raw,
                      Bytes& stored);

// Checks what `stored` says of itself. To be called before memory for the content is allocated.
// Errors: kCorrupt.
Result<void> check_symbols(ByteView stored, const SymbolShape& shape);

// Shapes:   raw [shape.layout.bytes()].
// Requires: check_symbols(stored, shape).
// Errors:   kCorrupt, when the frame does not hold what it says, or not symbols.
Result<void> decompress_symbols(const Decompressor& decompressor, ByteView stored,
                                const SymbolShape& shape, std::span<std::byte> raw);

}  // namespace tqcache::format
