#pragma once
// interop/turbomlx/turbomlx_blocks.h: token blocks of ours from the codes and numbers of a TurboMLX file.
//
// Spec: docs/reference/interop.md, "TurboMLX".

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codec_spec.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {

// Numbers of a token block's tokens in one kv head, as ours are before they are f16: [256].
// Errors: those of the file.
using ReadNumbers = std::function<Result<std::vector<float>>(const ByteSource& file,
                                                             std::size_t head, std::int64_t block)>;

// Codes that stand in rows of bits, one a head vector.
struct TurboMlxCodeRows {
  TurboMlxRows rows;
  int bits = 0;
  std::size_t n_codes = 0;
};

// A part of ours, and what the file has for it.
struct TurboMlxCodedPart {
  codec::PartSpec spec;
  std::size_t rows = 0;        // which of TurboMlxCodedSide::rows
  std::size_t first_code = 0;  // in a row of these
  ReadNumbers scales, biases;  // biases: with spec.has_bias
};

struct TurboMlxCodedSide {
  cache::HeadShape shape;
  codec::BlockOrder order = codec::BlockOrder::kKeys;
  std::vector<TurboMlxCodeRows> rows;
  std::vector<TurboMlxCodedPart> parts;
  std::vector<std::uint16_t> outliers;  // as ForeignPacked's

  std::vector<codec::PartSpec> specs() const;
};

// Requires: parts that codec::mode_of() takes.
// Errors when read: those of the file; kCorrupt (a number beyond f16).
ReadBlock turbomlx_blocks(TurboMlxSource file, TurboMlxCodedSide side);

}  // namespace tqcache::interop
