#pragma once
// store/upkeep/collect.h: garbage collection: removes the least recently used blobs that no named
// prompt needs.
//
// Spec: docs/reference/store.md, "Keeping it small".

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/upkeep/stats.h"

namespace tqcache::store {

struct CollectOptions {
  std::optional<std::uint64_t> max_bytes = {};  // limit for the whole store, as the backend counts
  std::optional<std::chrono::seconds> max_age = {};    // since the last use; for named prompts, too
  std::chrono::seconds grace = std::chrono::hours(1);  // what was used within this time stays
  bool drop_prompts =
      false;  // named prompts may be removed for max_bytes, after all unneeded blobs
  bool dry_run = false;
  // Receives the name of each prompt that is removed.
  std::function<void(const std::string& name)> on_prompt = {};
  // Receives the name of each prompt that was put meanwhile and lost blobs that it needs.
  std::function<void(const std::string& name)> on_loss = {};
};

struct CollectReport {
  std::uint64_t bytes_before = 0, bytes_after = 0;
  std::uint64_t prompts = 0;                    // named prompts before
  std::uint64_t prompts_removed = 0;            // those that were removed
  std::array<KindTotal, kBlobKinds> removed{};  // by BlobKind; in a dry run, what would be removed
  std::uint64_t bytes_needed = 0;               // by remaining named prompts, with their records
  std::uint64_t bytes_in_grace = 0;             // kept only because of the grace period
  bool above_limit = false;                     // more than max_bytes remains
};

// Lists the store, chooses, and removes: prompts before the blobs that they need, and part 0 of a
// block first. Concurrent puts are safe if `grace` is longer than a put takes, because a put
// touches the blobs that it reuses.
//
// Progress: in blobs.
// Errors: those of the backend and of read_named_prompts(): a record that is damaged or of a later
//         version ends it before anything is removed. kInterrupted: some blobs may have been
//         removed.
Result<CollectReport> collect(Backend& backend, const CollectOptions& options,
                              const Progress& progress = {});

}  // namespace tqcache::store
