#pragma once
// migrations/v1_to_v2.h: conversion of a file of version 1 to a cache of version 2.
//
// A pure function: no files, no threads, no clock. Packed codes are kept and never encoded again:
// every head vector of the new cache equals that of the old file.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_file.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"

namespace tqcache::migrations {

struct Migration {
  cache::Cache cache;
  // Notes for the user, one line each: "layer 3 v: groups of 16 do not fit a packed tensor; kept
  // dense". Usually empty.
  std::vector<std::string> notes;
};

// The class paths of version 1, including old ones. All others are rejected: a class_path is only
// looked up in a table.
std::span<const std::string_view> known_class_paths();

// Errors: kUnsupported (an unknown class_path; content that version 2 cannot represent), kCorrupt
//         (tensors that contradict each other or meta_state), kTooLarge (`memory`; a single token
//         takes that of a token block of 256). The message names the layer.
Result<Migration> v1_to_v2(const V1File& file, const MemoryBudget& memory = {});

// Checks that every head vector and array of `cache` has the value from `file`. The values are
// computed from the tensors of the file by code independent of v1_to_v2(). Computed values may
// differ by f32 rounding; all others must be equal.
//
// Requires: v1_to_v2() accepts the file.
// Errors:   kCorrupt, naming the first one that differs.
Result<void> check_migrated(const V1File& file, const cache::Cache& cache, unsigned n_threads);

}  // namespace tqcache::migrations
