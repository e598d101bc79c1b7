#pragma once
// store/library/cache_pieces.h: what a store is given of a cache in memory: its parameters, one token
// block, or all that stands behind the last of them.
//
// Pieces own what they hold, or share it: the cache may grow, be cut or go while they are put.
//
// Only for the sources of store. Spec: docs/reference/store.md, "Generating from a store".

#include <cstdint>
#include <vector>

#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/manifest.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

// A section before compression. Of `info` layer, side, block, form and size are there.
struct RawSection {
  format::SectionInfo info;
  SharedBytes raw;
};

std::uint64_t total_bytes(const std::vector<RawSection>& sections);

// Whether a layer keeps what cannot be cut shorter: a window, or state without attention.
bool keeps_state(const cache::Cache& cache);

// What all token blocks of the cache are coded with.
// Requires: a token block is final; so is then every mean.
Parameters parameters_of(const cache::Cache& cache);

// One token block. Packed sections are shared with the cache, dense ones are copied.
// Requires: `block` < final_blocks(cache.n_tokens()); `layers` are those of parameters_of(cache).
std::vector<RawSection> block_pieces(const cache::Cache& cache,
                                     const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t block);

// All that no final block has: the tail, windows, arrays. Packed sections are shared.
struct StatePieces {
  State state;  // without data and content name; layers are whole, not bare
  std::vector<RawSection> sections;
};

// Requires: the cache has a token, and is whole: nothing is half appended.
StatePieces state_pieces(const cache::Cache& cache);

}  // namespace tqcache::store
