#pragma once
// format/unpack_section.h: packed sections as dense ones.

#include <cstdint>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// A cache with all that decoding takes of every layer and side (codecs, means, outlier channels),
// and without a token block.
//
// Requires: as make_empty_cache(). Errors: as there.
Result<cache::Cache> make_decoders(const Manifest& manifest);

// The first `n_tokens` of a packed block, decoded: [n_kv_heads, n_tokens, head_dim] of the dtype of
// the side's tail.
//
// Requires: `decoders` is of make_decoders(); the section is packed, and of one of its sides;
//           `packed` holds as many bytes as it says, and n_tokens is 1 to 256.
// Threads:  any number at once.
AlignedBytes unpack_section(const cache::Cache& decoders, const SectionInfo& section,
                            SharedBytes packed, std::int64_t n_tokens);

}  // namespace tqcache::format
