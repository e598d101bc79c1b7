#pragma once
// cache/side.h: the keys or the values of one attention layer, in token blocks.
//
// K or V is dense or quantized ("turbo"). Both are cut into token blocks of 256 tokens, the unit of
// memory and file. Only whole blocks are quantized; the tokens after them are the dense tail. A
// block that has just become full stays dense until the next token comes, so that the last token's
// key and value are available in full precision while a conversation continues.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/kv_codec.h"
#include "tqcache/cache/token_block.h"

namespace tqcache::cache {

// Whole token blocks in memory even when fewer tokens are valid, so that appending never moves
// a value.
struct DenseSide {
  Dtype dtype = Dtype::kF16;
  std::vector<AlignedBytes> blocks;  // each [n_kv_heads, kTokenBlock, head_dim] of dtype
};

// One packed token block.
struct TurboBlock {
  SharedBytes bytes;  // PackedLayout, as in a file; begins at a multiple of 64
  // The values of a codec that must_keep_decoded(): [n_kv_heads, kTokenBlock, head_dim] of its
  // dtype. Otherwise empty.
  AlignedBytes decoded = {};
};

// A packed token block with its decoded values, if the codec needs them. Attention can read it.
//
// Requires: codec.is_fixed(); `bytes` is block number `block`.
// Threads:  any number at once.
TurboBlock make_turbo_block(const KvCodec& codec, std::int64_t block, SharedBytes bytes);

struct TurboSide {
  KvCodec codec;
  std::vector<TurboBlock> packed;  // the first blocks, each full; empty: a window has left it
  DenseSide tail;                  // the tokens after them, of the codec's dtype: at most one block
};

using Side = std::variant<DenseSide, TurboSide>;

// Number of packed blocks: 0 for a dense side.
std::int64_t packed_block_count(const Side& side);

// The type of the values that are not packed.
Dtype dense_dtype(const Side& side);

// The dense block that holds `block`, whether of a dense side or of a turbo side's tail.
// Requires: block >= packed_block_count(side), and it exists.
const AlignedBytes& dense_block(const Side& side, std::int64_t block);

// Packs the tail of a turbo side if it is a full block; otherwise does nothing. Call it before
// append(), so that the tail has room. A codec that is not fixed yet is fitted to this block.
//
// Requires: the side holds `n_tokens` tokens. In a sliding window `begin` is the first token that
//           is held; those before it get no codes and count for nothing.
// Errors:   as KvCodec::encode(), with the number of the token block; the side does not change.
Result<void> pack_full_tail(Side& side, std::int64_t n_tokens, unsigned n_threads,
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

// Widens the valid head vectors of one kv head in one block, and decodes packed ones
// (KvCodec::decode).
//
// Shapes: out [tokens_in_block(n_tokens, block), head_dim].
void read_block(const Side& side, HeadShape shape, std::int64_t n_tokens, std::int64_t block,
                std::int64_t kv_head, std::span<float> out);

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
