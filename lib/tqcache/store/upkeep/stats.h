#pragma once
// store/upkeep/stats.h: what a store holds, what sharing saves in it, and how often it was of use.
//
// Spec: docs/reference/store.md, "What a store holds".

#include <array>
#include <cstdint>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::store {

// Bytes are as the engine counts them.
struct StoreStats {
  std::array<KindTotal, kBlobKinds> kinds{};  // by BlobKind
  KindTotal others;                           // under keys that are none of ours

  std::uint64_t prompts = 0;  // that are kept under names, of all tenants
  std::uint64_t prompt_tokens = 0;
  std::uint64_t bytes_alone = 0;   // that these would take if each had all of its blobs for itself
  std::uint64_t bytes_needed = 0;  // and that they take
  std::uint64_t bytes_unneeded =
      0;  // of what no kept prompt needs: found by its tokens, or by none

  // Of runs that looked for a prompt here, as their notes say.
  std::uint64_t runs = 0;
  std::uint64_t runs_that_found = 0;
  std::uint64_t wanted_tokens = 0, found_tokens = 0;
  std::uint64_t read_bytes = 0, stored_bytes = 0;

  std::uint64_t bytes_saved() const { return bytes_alone - bytes_needed; }
};

// Notes that are damaged count for nothing.
// Progress: in blobs read.
// Errors: those of the backend and of read_kept_prompts(); kInterrupted.
Result<StoreStats> read_stats(Backend& backend, const Progress& progress = {});

}  // namespace tqcache::store
