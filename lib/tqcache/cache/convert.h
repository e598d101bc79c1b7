#pragma once
// cache/convert.h: turns the dense sides of a cache into turbo form.

#include <optional>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cache {

struct ConvertOptions {
  int key_bits = 4;    // 1 to 8, or 16: keep this side dense
  int value_bits = 4;  // likewise
  std::uint64_t sign_seed = codec::kDefaultSignSeed;
  // What is taken out of keys and values before they are packed: see key_centring() and
  // value_centring() for what each gets.
  Centring center = Centring::kPreRope;
  unsigned n_threads = 0;  // 0: all processors
};

inline constexpr int kDenseBits = 16;  // "keep this side dense"

// Packs every full token block of every dense side; the incomplete last block stays dense, and
// so do arrays layers. A side that is turbo already keeps its packed blocks when bits, seed and
// centring are the ones asked for, and is refused otherwise: packing again would add the error of
// both.
//
// The mean of a side is that of all tokens it holds; of a side without a full block, that of its
// first block once it is full.
//
// Takes the cache and gives the memory of each dense block back as soon as it is packed.
// Progress: head vectors packed, of all to pack.
// Errors:   kInvalidArgument (bits; a side that is turbo in another form), kUnsupported
//           (head_dim), kCorrupt (a value that is not finite), kInterrupted. The message names
//           layer, side, head and token.
Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress = {});

}  // namespace tqcache::cache
