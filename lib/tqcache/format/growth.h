#pragma once
// format/growth.h: what a file has to do with the cache that it shall grow to: whether it can, and
// which of its sections stay.
//
// Spec: docs/reference/format.md, "Appending".

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Whether `cache` is what the file holds with tokens added, as far as the manifests tell; `grown`
// is that of the cache.
//
// Errors: kMismatch; kUnsupported when the tokens cannot be compared: those of the cache are
//         hidden, or the file has neither ids nor hashes.
Result<void> check_growth(const Manifest& file, const cache::Cache& cache, const Manifest& grown);

struct Growth {
  std::vector<std::size_t> new_sections;   // numbers in the grown manifest, ascending
  std::vector<std::size_t> dead_sections;  // numbers in the file's
};

// Tells the sections that stay from those that are to be written, and fills the former in. Of token
// blocks before `n_trusted` it takes for granted that they stay what they are if they keep their
// form; all else is compared.
//
// Requires: check_growth(file, ..., grown); `grown` has the reader's blocks.
// Errors:   those of the reader.
Result<Growth> compare_sections(const Manifest& file, std::int64_t n_trusted, Manifest& grown,
                                const cache::CacheReader& reader, unsigned n_threads);

// All dead bytes of the file once it has grown: its gaps, the sections that do not stay, and its
// manifest, in ascending order.
std::vector<GapInfo> gaps_after(const Manifest& file, const HeaderSlot& slot, const Growth& growth);

}  // namespace tqcache::format
