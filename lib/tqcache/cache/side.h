#pragma once
// cache/side.h: the keys, or the values, of one attention layer, in token blocks.
//
// A side is dense or turbo. Either way it is cut into token blocks of 256 tokens, the one unit
// of memory and file. A turbo side packs whole blocks only; what follows them is its dense tail.
// A block that has just become full stays dense until the next token comes, so that the last
// token's key and value are always at hand in full precision while a conversation goes on.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/centering.h"
#include "tqcache/cache/head_transforms.h"
#include "tqcache/cache/outliers.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::cache {

// Whole token blocks in memory even when fewer tokens are valid, so that appending never moves
// a value.
struct DenseSide {
  Dtype dtype = Dtype::kF16;
  std::vector<AlignedBytes> blocks;  // each [n_kv_heads, kTokenBlock, head_dim] of dtype
};

// One packed token block, as it stands in the file too: the codes of every kv head, the scales of
// every kv head, and in the first block of a side with sink tokens those tokens, dense.
//
//   [n_kv_heads, codec.code_bytes()], [n_kv_heads, codec.n_scale_rows(), kTokenBlock] f16 bits,
//   [n_kv_heads, n_sinks, head_dim] of the tail's dtype
struct TurboBlock {
  SharedBytes bytes;  // begins at a multiple of 64
  // Of keys that are mapped before RoPE, whose codes cannot be scored, the same decoded:
  // [n_kv_heads, kTokenBlock, head_dim] of the tail's dtype. Otherwise empty.
  AlignedBytes decoded = {};
};

struct TurboSide {
  codec::HeadCodec codec;          // keys and values stand in different orders
  std::vector<TurboBlock> packed;  // the first blocks, each full; empty: a window has left it
  DenseSide tail;                  // the tokens after them: at most one block
  Mean mean = {};                  // taken out of what is packed; the tail has it in
  Outliers outliers = {};          // of mode mixed: the channels that are coded apart
  std::int64_t n_sinks = 0;        // first tokens that stay dense, 0 to kTokenBlock; not centered
  HeadTransforms transforms = {};  // that vectors go through before they are coded, or none
};

using Side = std::variant<DenseSide, TurboSide>;

// Blocks that stand packed: 0 for a dense side.
std::int64_t packed_block_count(const Side& side);

// The type of the values that are not packed.
Dtype dense_dtype(const Side& side);

// The dense block that holds `block`, whether of a dense side or of a turbo side's tail.
// Requires: block >= packed_block_count(side), and it exists.
const AlignedBytes& dense_block(const Side& side, std::int64_t block);

// Packs the tail of a turbo side if it is a full block; leaves every other side as it is. To be
// called before append(), so that the side's tail has room. If this is the side's first packed
// block, its mean and its outlier channels become the side's, unless those are fixed already.
//
// Requires: the side holds `n_tokens` tokens. Of a sliding window `begin` is the first one in it;
//           what stands before gets no codes, and counts for nothing.
// Errors:   as pack_block(); the side is then as it was.
Result<void> pack_full_tail(Side& side, HeadShape shape, std::int64_t n_tokens, unsigned n_threads,
                            std::int64_t begin = 0);

// Appends one or more tokens that all fall into one token block.
//
// Shapes:   rows [n, n_kv_heads, head_dim] f32, in token order; rounded to the side's dtype.
// Requires: the side holds `n_tokens` tokens, of which no full block is left in a turbo side's
//           tail (pack_full_tail); n_tokens % 256 + n <= 256.
void append(Side& side, HeadShape shape, std::int64_t n_tokens, std::span<const float> rows);

// Takes the tokens from `n_tokens` on away again, if there are any. Requires: the side holds at
// least `n_tokens` tokens, and its blocks from `n_tokens` / 256 on are dense.
void remove_tail(Side& side, std::int64_t n_tokens);

// Widens the valid head vectors of one kv head in one block, decoding packed ones. The mean that
// was taken out of them is in again; sink tokens are as they were.
//
// Shapes: out [tokens_in_block(n_tokens, block), head_dim].
void read_block(const Side& side, HeadShape shape, std::int64_t n_tokens, std::int64_t block,
                std::int64_t kv_head, std::span<float> out);

// The codes of one kv head in one packed block, as kernels take them. Those of sink tokens are 0,
// and so are their scales: they add nothing to sums, and what they get for a score is to be
// replaced.
codec::PackedHead packed_head(const TurboSide& side, HeadShape shape, std::int64_t block,
                              std::int64_t kv_head);

// Sink tokens in one packed block: n_sinks in the first, none in the others.
inline std::int64_t sinks_in_block(const TurboSide& side, std::int64_t block) {
  return sinks_in_block(side.n_sinks, block);
}

// The dense rows of the sink tokens of one kv head: [n_sinks, head_dim] of side.tail.dtype.
// Requires: a block is packed.
ByteView sink_rows(const TurboSide& side, HeadShape shape, std::int64_t kv_head);

// Bytes of packed block `block` of this side, with its sink tokens.
std::size_t packed_block_bytes(const TurboSide& side, HeadShape shape, std::int64_t block);

// Decodes a packed block, if its side's codes cannot be scored: to be done once it is packed or
// loaded, before attention looks at it. Threads: several blocks of a side at once.
void complete_block(TurboSide& side, HeadShape shape, std::int64_t block);

// Takes the mean, the outlier channels and the maps of a side from some of its blocks, as far as
// they are not fixed yet: the mean from all of them, outlier channels as the policy says.
//
// Requires: full blocks in ascending order, at least one. If the side has sink tokens, the first
//           token block is among them.
void fix_side(TurboSide& side, std::span<const FullBlock> blocks, OutlierPolicy policy,
              unsigned n_threads);

// Packs a block as one of `side`, less the side's mean. `side.packed` is not looked at.
//
// Requires: side.mean, side.outliers and side.transforms are fixed; the block's dtype is the
// tail's. Errors:   as HeadCodec::encode, and kCorrupt for a sink token that is not finite; the
// message
//           names the head and the token in the block.
// Bytes:    identical on every CPU and for any number of threads.
Result<TurboBlock> pack_block(const TurboSide& side, const FullBlock& block, unsigned n_threads);

// Memory taken, and the part of it that holds valid tokens.
struct ByteCount {
  std::uint64_t allocated = 0;
  std::uint64_t used = 0;

  ByteCount& operator+=(const ByteCount& other) {
    allocated += other.allocated;
    used += other.used;
    return *this;
  }
};
ByteCount byte_count(const Side& side, HeadShape shape, std::int64_t n_tokens);

}  // namespace tqcache::cache
