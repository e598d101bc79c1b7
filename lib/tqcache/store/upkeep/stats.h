#pragma once
// store/upkeep/stats.h: the list of named prompts, and the statistics of a store.

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/records.h"

namespace tqcache::store {

struct KindTotal {
  std::uint64_t blobs = 0;
  std::uint64_t bytes = 0;
};

// Passes each named prompt whose key begins with `prefix` (record_prefix(); "n/": all tenants) to
// `sink`, in the order of the keys. Damaged ones are reported. `sink` must not call the backend.
// Errors: those of the backend and of `sink`.
using RecordSink = std::function<Result<void>(const Entry& entry, const PromptRecord& record)>;
Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnWarning& on_warning,
                          const RecordSink& sink);

// Totals of a store. Bytes are as the backend counts them.
// Spec: docs/reference/store.md, "What a store holds".
struct StoreStats {
  std::array<KindTotal, kBlobKinds> kinds{};  // by BlobKind
  KindTotal others;                           // under foreign keys

  std::uint64_t prompts = 0;  // named prompts of all tenants
  std::uint64_t prompt_tokens = 0;
  std::uint64_t bytes_alone = 0;     // of these prompts, if nothing was shared
  std::uint64_t bytes_needed = 0;    // of these prompts, with sharing
  std::uint64_t bytes_unneeded = 0;  // that no named prompt needs

  // Hit statistics of the runs that looked for a prompt.
  std::uint64_t runs = 0;
  std::uint64_t runs_that_found = 0;
  std::uint64_t wanted_tokens = 0, found_tokens = 0;
  std::uint64_t read_bytes = 0, stored_bytes = 0;

  std::uint64_t bytes_saved() const { return bytes_alone - bytes_needed; }
};

// Damaged notes are ignored.
// Progress: in blobs read.
// Errors: those of the backend and of read_named_prompts(); kInterrupted.
Result<StoreStats> read_stats(Backend& backend, const Progress& progress = {});

}  // namespace tqcache::store
