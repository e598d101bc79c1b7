#pragma once
// migrations/v1_to_v2.h: what a file of version 1 means, as a cache that version 2 can hold.
//
// A pure function: no files, no threads, no clock. Packed codes are carried over and never made
// anew: every head vector of the new cache has the value that the old file gave it.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::migrations {

struct Migration {
  cache::Cache cache;
  // What a user should know, one line each: "layer 3 v: groups of 16 do not fit a packed side; kept
  // dense". Empty as a rule.
  std::vector<std::string> notes;
};

// The classes that version 1 knows, by every path that they ever had. Everything else is refused:
// a class_path never leads to code by any other way.
std::span<const std::string_view> known_class_paths();

struct V1ToV2Options {
  // Refused with kTooLarge when the cache would take more memory than this. (One token takes room
  // for a token block of 256.)
  std::uint64_t max_cache_bytes = std::uint64_t{64} << 30;
};

// Errors: kUnsupported (an unknown class_path; something that version 2 has no words for), kCorrupt
//         (tensors that contradict each other or meta_state), kTooLarge. The message names the
//         layer.
Result<Migration> v1_to_v2(const V1File& file, const V1ToV2Options& options = {});

// Whether every head vector and array of `cache` has the value that `file` says, which is computed
// here from the state as it stands there, by other code than v1_to_v2() uses. Values that are
// computed may differ by rounding in f32, and others not at all.
//
// Requires: v1_to_v2() accepts the file.
// Errors:   kCorrupt, naming the first one that differs.
Result<void> check_migrated(const V1File& file, const cache::Cache& cache, unsigned n_threads);

}  // namespace tqcache::migrations
