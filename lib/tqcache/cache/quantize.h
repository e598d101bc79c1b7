#pragma once
// cache/quantize.h: the conversion of a cache: K and V quantized as a plan says (cache/plan.h).
//
// There is one conversion, a view of a reader. Files, stores, other programs' caches and caches in
// memory all go through it, and get the same bytes.

#include <memory>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/plan.h"
#include "tqcache/cache/reader.h"

namespace tqcache::cache {

// A view that packs the full token blocks of K and V as they are read. The last block stays dense
// until it is full; recurrent state stays as it is, and so do sliding windows unless the options
// quantize them. K or V that is quantized already keeps its packed blocks when its codec, centering
// and sink tokens are the ones asked for, and is refused otherwise: packing again would add the
// error of both.
//
// The mean of K or V is taken over mean_blocks(), outlier channels over the blocks that the policy
// names. These token blocks are read here, and once more when they are packed. Without a full block
// mean and outlier channels stay open until the first block is full.
//
// Memory:   the token blocks that the mean of one K or V is taken over (at most 32), and sliding
//           windows that are quantized, in packed form.
// Progress: bytes of the blocks that are read here.
// Errors:   as plan_layers(); those of the source; kTooLarge (windows); kInterrupted. Reading a
//           block: kCorrupt (a value that is not finite), kUnsupported (one whose scale is beyond
//           f16); the message names layer, K or V, token block, head and token.
// Bytes:    identical on every CPU and for any number of threads.
Result<std::shared_ptr<const CacheReader>> quantize(std::shared_ptr<const CacheReader> source,
                                                    const ConvertOptions& options,
                                                    const Progress& progress = {});

// The same for a cache in memory, layer by layer: the memory of a dense layer is released when the
// layer is packed.
//
// Progress: bytes of the dense blocks of layers that are quantized.
// Errors:   as quantize(), and those of validate().
Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress = {});

}  // namespace tqcache::cache
