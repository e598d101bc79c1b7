#pragma once
// store/upkeep/check.h: is a store whole: is all there that its prompts need, and is each blob what
// its key says?
//
// Spec: docs/reference/store.md, "Checking".

#include <cstdint>
#include <functional>
#include <string>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::store {

struct Finding {
  std::string prompt;     // the name of a kept prompt that this damages; otherwise empty
  std::string key;        // of what is missing or damaged
  Error error;            // kNotFound: missing; otherwise decode_blob()'s
  bool repaired = false;  // it was taken away
};

struct CheckOptions {
  bool read_data = false;  // read and decode every blob, and not only records and parameters
  // Takes away what is damaged, and blocks that lack a part: the next put brings them again.
  bool repair = false;
  std::function<void(const Finding& finding)> on_finding = {};
};

struct CheckReport {
  KindTotal blobs;  // that the store lists
  KindTotal read;   // and those of them that were read
  std::uint64_t prompts = 0;
  std::uint64_t prompts_damaged = 0;  // that cannot be had as they were put
  std::uint64_t missing = 0;          // blobs that a kept prompt, or the rest of a block, needs
  std::uint64_t damaged = 0;
  std::uint64_t repaired = 0;  // blobs that were taken away
  std::uint64_t later = 0;     // of a version that this program does not know; not damage
  // Parts without part 0, states without their block; with read_data also blocks without the one
  // before, and data that no state names. Nobody finds them, and gc takes them.
  KindTotal unfindable;
  KindTotal others;  // under keys that are none of ours

  bool is_whole() const { return missing == 0 && damaged == 0; }
};

// What others put, remove or evict meanwhile can be told as missing, but what is there when it is
// looked for again is not.
//
// Memory:   that of Inventory, and what get() has at a time.
// Progress: in blobs read.
// Errors:   those of the backend; kInterrupted. Damage is no error, but a finding.
Result<CheckReport> check(Backend& backend, const CheckOptions& options,
                          const Progress& progress = {});

}  // namespace tqcache::store
