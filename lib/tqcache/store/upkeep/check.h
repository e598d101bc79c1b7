#pragma once
// store/upkeep/check.h: a check of a store: missing blobs of named prompts, and damaged blobs.
//
// Spec: docs/reference/store.md, "Checking".

#include <cstdint>
#include <functional>
#include <string>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/upkeep/stats.h"

namespace tqcache::store {

struct Finding {
  std::string prompt;     // the name of the damaged prompt; empty if no named prompt needs the blob
  std::string key;        // of the missing or damaged blob
  Error error;            // kNotFound: missing; otherwise the error of decode_blob()
  bool repaired = false;  // the blob was removed
};

struct CheckOptions {
  bool read_data = false;  // read and decode every blob, and not only records and parameters
  // Remove damaged blobs, and blocks that lack a part: the next put stores them again.
  bool repair = false;
  std::function<void(const Finding& finding)> on_finding = {};
};

struct CheckReport {
  KindTotal blobs;  // all blobs of the store
  KindTotal read;   // blobs that were read
  std::uint64_t prompts = 0;
  std::uint64_t prompts_damaged = 0;  // that cannot be fetched completely
  std::uint64_t missing = 0;          // blobs that a named prompt, or the rest of a block, needs
  std::uint64_t damaged = 0;
  std::uint64_t repaired = 0;  // blobs that were removed
  std::uint64_t later = 0;     // of a later version, which is no damage
  // Blobs that nothing can find: parts without part 0, snapshots without their block; with
  // read_data also blocks without the one before, and data that no snapshot names. gc removes them.
  KindTotal unfindable;
  KindTotal others;  // under foreign keys

  bool is_whole() const { return missing == 0 && damaged == 0; }
};

// A blob that another process removes or evicts meanwhile can be reported as missing. A missing
// blob is looked for a second time before it is reported.
//
// Memory:   that of Inventory and of one get().
// Progress: in blobs read.
// Errors:   those of the backend; kInterrupted. Damage is a finding, not an error.
Result<CheckReport> check(Backend& backend, const CheckOptions& options,
                          const Progress& progress = {});

}  // namespace tqcache::store
