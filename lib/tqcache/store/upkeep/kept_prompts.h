#pragma once
// store/upkeep/kept_prompts.h: the prompts that a store keeps under names, and what each cannot be had
// without.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/store/trouble.h"

namespace tqcache::store {

// Names of the units (inventory.h) that a kept prompt cannot be had without, each once.
std::vector<std::string> needs_of(const Record& record);

struct KeptPrompt {
  std::uint32_t record = 0;          // among the inventory's units
  std::vector<std::uint32_t> needs;  // of these, those that are there
  std::string name;
  std::int64_t n_tokens = 0;
  // Since the last use of the prompt's end: of record, state and data. Where reading counts as use
  // the record alone would say when it was last looked through.
  std::chrono::seconds idle{0};
};

// Reads all records. Progress: in records.
//
// Errors: those of the backend. kCorrupt, kTruncated, kMismatch when a record is damaged, and
//         kUnsupported when a later version wrote it: what it needs is not known then. The message
//         names its key. kInterrupted.
Result<std::vector<KeptPrompt>> read_kept_prompts(Backend& backend, const Inventory& inventory,
                                                  const Progress& progress = {});

// Tells of each prompt that is kept under keys that begin with `prefix` (record_prefix(), keys.h;
// "n/": those of all tenants), in the order of their keys, and of each damaged one. `sink` must not
// call the backend.
// Errors: those of the backend and of `sink`.
using RecordSink = std::function<Result<void>(const Entry& entry, const Record& record)>;
Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnTrouble& on_trouble,
                          const RecordSink& sink);

}  // namespace tqcache::store
