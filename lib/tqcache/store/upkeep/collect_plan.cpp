#include "tqcache/store/upkeep/collect_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace tqcache::store {
namespace {

using Seconds = std::chrono::seconds;

// Uses of one run lie seconds apart: within a minute depth decides, and not the order in which a
// chain was read.
constexpr std::int64_t kSecondsAlike = 60;

// What goes first among those used in one minute: ends of prompts, then their data, then blocks
// from the deepest on, so that what is left of a chain can be found.
constexpr std::int64_t kNobodyFinds = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kDepthOfUsage = kNobodyFinds - 1;
constexpr std::int64_t kDepthOfState = kNobodyFinds - 2;
constexpr std::int64_t kDepthOfData = kNobodyFinds - 3;
constexpr std::int64_t kDepthOfParameters = -1;

struct Rank {
  Seconds idle{0};
  std::int64_t depth = 0;

  bool nobody_finds() const { return depth == kNobodyFinds; }
  bool goes_before(const Rank& other) const {
    const std::int64_t minutes = idle.count() / kSecondsAlike;
    const std::int64_t others = other.idle.count() / kSecondsAlike;
    return minutes != others ? minutes > others : depth > other.depth;
  }
};

class Planner {
 public:
  Planner(const Inventory& inventory, std::span<const KeptPrompt> prompts,
          const CollectOptions& options)
      : inventory_(inventory),
        prompts_(prompts),
        options_(options),
        ranks_(inventory.units().size()),
        n_needing_(inventory.units().size()),
        gone_(inventory.units().size()) {
    plan_.bytes_after = inventory.bytes();
  }

  CollectPlan plan() {
    rank_all();
    for (const KeptPrompt& prompt : prompts_) {
      for (const std::uint32_t unit : prompt.needs) n_needing_[unit] += 1;
    }
    drop_old_prompts();
    remove_unneeded(all_but_prompts());
    if (options_.drop_prompts) drop_prompts_by_use();
    count_what_stays();
    return std::move(plan_);
  }

 private:
  std::int64_t depth_of(const Unit& unit) const {
    switch (unit.kind) {
      case BlobKind::kBlock:
        return has_part(unit, 0) ? unit.index : kNobodyFinds;
      case BlobKind::kState:
        return inventory_.find_block(parse_key(unit.name)->hash) ? kDepthOfState : kNobodyFinds;
      case BlobKind::kData:
        return kDepthOfData;
      case BlobKind::kUsage:
        return kDepthOfUsage;
      case BlobKind::kParameters:
      case BlobKind::kRecord:
        break;
    }
    return kDepthOfParameters;
  }

  void rank_all() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const Unit& unit = inventory_.unit(i);
      ranks_[i] = {unit.idle, depth_of(unit)};
    }
  }

  bool above_limit() const { return options_.max_bytes && plan_.bytes_after > *options_.max_bytes; }
  bool in_grace(Seconds idle) const { return idle < options_.grace; }
  bool is_old(Seconds idle) const { return options_.max_age && idle > *options_.max_age; }

  void drop(std::size_t i) {
    const KeptPrompt& prompt = prompts_[i];
    plan_.prompts.push_back(static_cast<std::uint32_t>(i));
    plan_.bytes_after -= inventory_.unit(prompt.record).bytes;
    gone_[prompt.record] = true;
    for (const std::uint32_t unit : prompt.needs) n_needing_[unit] -= 1;
  }

  void drop_old_prompts() {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      if (is_old(prompts_[i].idle) && !in_grace(prompts_[i].idle)) drop(i);
    }
  }

  std::vector<std::uint32_t> all_but_prompts() const {
    std::vector<std::uint32_t> units;
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
      if (inventory_.unit(i).kind != BlobKind::kRecord) units.push_back(i);
    }
    return units;
  }

  // As many of these as have to go, in their order.
  void remove_unneeded(std::vector<std::uint32_t> units) {
    std::erase_if(units, [&](std::uint32_t i) {
      return n_needing_[i] > 0 || gone_[i] || in_grace(ranks_[i].idle);
    });
    std::ranges::stable_sort(
        units, [&](std::uint32_t a, std::uint32_t b) { return ranks_[a].goes_before(ranks_[b]); });
    for (const std::uint32_t i : units) {
      if (ranks_[i].nobody_finds() || is_old(ranks_[i].idle) || above_limit()) remove(i);
    }
  }

  void remove(std::uint32_t i) {
    plan_.units.push_back(i);
    plan_.bytes_after -= inventory_.unit(i).bytes;
    gone_[i] = true;
  }

  void drop_prompts_by_use() {
    std::vector<std::size_t> order(prompts_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto idle_of = [&](std::size_t i) { return prompts_[i].idle; };
    std::ranges::stable_sort(order, std::ranges::greater(), idle_of);
    for (const std::size_t i : order) {
      if (!above_limit()) return;
      if (gone_[prompts_[i].record] || in_grace(idle_of(i))) continue;
      drop(i);
      remove_unneeded(prompts_[i].needs);
    }
  }

  void count_what_stays() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (gone_[i]) continue;
      const Unit& unit = inventory_.unit(i);
      const bool is_needed = unit.kind == BlobKind::kRecord || n_needing_[i] > 0;
      if (is_needed) plan_.bytes_needed += unit.bytes;
      if (!is_needed && in_grace(ranks_[i].idle)) plan_.bytes_in_grace += unit.bytes;
    }
  }

  const Inventory& inventory_;
  std::span<const KeptPrompt> prompts_;
  const CollectOptions& options_;
  std::vector<Rank> ranks_;               // of each unit
  std::vector<std::uint32_t> n_needing_;  // kept prompts, by unit
  std::vector<bool> gone_;
  CollectPlan plan_;
};

}  // namespace

CollectPlan plan_collection(const Inventory& inventory, std::span<const KeptPrompt> prompts,
                            const CollectOptions& options) {
  return Planner(inventory, prompts, options).plan();
}

}  // namespace tqcache::store
