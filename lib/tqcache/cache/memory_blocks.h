#pragma once
// cache/memory_blocks.h: conversion between a cache in memory and the bytes of its blocks.
//
// Spec: docs/reference/format.md §6.

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::cache {

// Whether a block of K or V is packed in memory. False for arrays.
bool is_packed(const Layer& layer, const BlockKey& key);

// The blocks of a cache in memory. Requires: validate(cache); `description` is describe(cache).
std::vector<BlockInfo> blocks_of(const Cache& cache, const CacheDesc& description);

// The bytes of one block: the cache's own memory if it has this layout, otherwise a copy in
// `scratch`.
//
// Requires: validate(cache); `block` is one of blocks_of(cache).
ByteView block_bytes(const Cache& cache, const BlockInfo& block, AlignedBytes& scratch);

// The rows of the first `n` tokens of a dense block: [n_kv_heads, n, head_dim]. The block itself if
// it has no more, otherwise a copy in `scratch`.
//
// Shapes: block [n_kv_heads, n_rows, head_dim].
ByteView first_rows(ByteView block, HeadShape shape, Dtype dtype, std::int64_t n_rows,
                    std::int64_t n, AlignedBytes& scratch);

// The bytes of block_bytes(), valid even after the cache changes: packed blocks are shared, others
// copied.
SharedBytes copy_block(const Cache& cache, const BlockInfo& block);

// A cache without values, with room for every block.
//
// Requires: a description and blocks of a CacheReader.
// Errors:   those of codec::HeadCodec::make; kTooLarge (windows too far from the first token).
Result<Cache> make_room(const CacheDesc& description, const std::vector<BlockInfo>& blocks);

// Puts the bytes of one block into a cache from make_room(). Packed blocks are used as they are,
// shared or not; memory of dense blocks is moved if it has the right size, and copied otherwise.
//
// Requires: raw.size() is block.raw_bytes; shared bytes of a packed block begin at a multiple
// of 64. Threads:  may be called for different blocks at the same time.
void place_block(const BlockInfo& block, SharedBytes raw, Cache& cache);
void place_block(const BlockInfo& block, AlignedBytes raw, Cache& cache);

}  // namespace tqcache::cache
