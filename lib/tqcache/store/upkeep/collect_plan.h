#pragma once
// store/upkeep/collect_plan.h: which units of a store go, and in which order.
//
// Only for the sources of store. Spec: docs/reference/store.md, "Keeping it small".

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/store/upkeep/collect.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/store/upkeep/kept_prompts.h"

namespace tqcache::store {

struct CollectPlan {
  std::vector<std::uint32_t> prompts;  // indices: they go first
  std::vector<std::uint32_t> units;    // of the inventory, in the order in which they go
  std::uint64_t bytes_after = 0;
  std::uint64_t bytes_needed = 0;
  std::uint64_t bytes_in_grace = 0;
};

CollectPlan plan_collection(const Inventory& inventory, std::span<const KeptPrompt> prompts,
                            const CollectOptions& options);

}  // namespace tqcache::store
