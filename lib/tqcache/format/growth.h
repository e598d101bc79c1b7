#pragma once
// format/growth.h: the comparison of a file with a cache to append: whether the file can be
// extended to it, and which sections it keeps.
//
// Spec: docs/reference/format.md, "Appending".

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"
#include "tqcache/reader.h"

namespace tqcache::format {

// Checks by the manifests that `cache` is the file's content with tokens added; `grown` is the
// manifest of the cache.
//
// Errors: kMismatch; kUnsupported when the tokens cannot be compared: the cache's tokens are
//         hidden, or the file has neither ids nor hashes.
Result<void> check_growth(const Manifest& file, const cache::Cache& cache, const Manifest& grown);

struct Growth {
  std::vector<std::size_t> new_sections;   // indices in the grown manifest, ascending
  std::vector<std::size_t> dead_sections;  // indices in the file's manifest
};

// Separates sections that stay from those to be written, and fills in the rows of the former. Token
// blocks before `n_trusted` are assumed unchanged if they stay packed or stay dense; all others are
// compared, and those that stay are read from `source` and compared with their SHA-256: the new
// content digest vouches for them, too.
//
// Requires: check_growth(file, ..., grown); `grown` has the reader's blocks; `file` is the manifest
//           of `source`.
// Errors:   those of the reader and of read_section(); kCorrupt when a section that stays is not
//           that of its SHA-256.
Result<Growth> compare_sections(const ByteSource& source, const Manifest& file,
                                std::int64_t n_trusted, Manifest& grown,
                                const cache::CacheReader& reader, unsigned n_threads);

// All dead space of the file after the append: its gaps, the sections that are replaced, and its
// manifest, in ascending order.
std::vector<GapInfo> gaps_after(const Manifest& file, const HeaderSlot& slot, const Growth& growth);

}  // namespace tqcache::format
