#pragma once
// store/upkeep/collect.h: keeps a store small: what was not used for longest goes first, and never
// what a kept prompt needs.
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
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::store {

struct CollectOptions {
  std::optional<std::uint64_t> max_bytes = {};  // of all that the store holds, as the engine counts
  std::optional<std::chrono::seconds> max_age = {};    // since its last use; kept prompts go, too
  std::chrono::seconds grace = std::chrono::hours(1);  // what was used in this time stays
  bool drop_prompts = false;  // kept prompts may go for max_bytes, after all that none needs
  bool dry_run = false;
  // Told of each prompt that goes, by its name.
  std::function<void(const std::string& name)> on_prompt = {};
  // Told of each prompt that was put meanwhile and lost what it relied on.
  std::function<void(const std::string& name)> on_loss = {};
};

struct CollectReport {
  std::uint64_t bytes_before = 0, bytes_after = 0;
  std::uint64_t prompts = 0;                    // that were kept before
  std::uint64_t prompts_removed = 0;            // and those of them that went
  std::array<KindTotal, kBlobKinds> removed{};  // by BlobKind; of a dry run what would be
  std::uint64_t bytes_needed = 0;               // by the prompts that are still kept, and their own
  std::uint64_t bytes_in_grace = 0;             // that no prompt needs, and that grace keeps
  bool above_limit = false;                     // more than max_bytes is left
};

// Takes the inventory, chooses, and removes: prompts before what they needed, of a block the part
// first that stands for all. Whoever puts at the same time is safe as long as `grace` is longer
// than a put takes, since what a put finds it uses.
//
// Progress: in blobs.
// Errors: those of the backend and of read_kept_prompts(): a record that is damaged or of a later
// version
//         ends it before anything is removed. kInterrupted: what went by then is gone.
Result<CollectReport> collect(Backend& backend, const CollectOptions& options,
                              const Progress& progress = {});

}  // namespace tqcache::store
