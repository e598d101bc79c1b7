// store/upkeep/collect_plan.h: which units of a store go, and in which order.
//
// Only for the sources of store. Spec: docs/reference/store.md, "Keeping it small".

#include "tqcache/store/upkeep/collect.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/upkeep/inventory.h"

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

namespace {

// So many units go before it is looked again whether somebody kept a prompt meanwhile.
constexpr std::size_t kUnitsAtOnce = 1000;

class Collector {
 public:
  Collector(Backend& backend, const CollectOptions& options, const Progress& progress,
            const Inventory& inventory, std::span<const KeptPrompt> prompts,
            const CollectPlan& plan)
      : backend_(backend),
        options_(options),
        progress_(progress),
        inventory_(inventory),
        prompts_(prompts),
        plan_(plan) {}

  Result<CollectReport> run() {
    tell_plan();
    if (options_.dry_run) return report_;
    for (const std::uint32_t i : plan_.prompts) {
      TQC_TRY(backend_.remove(inventory_.unit(prompts_[i].record).name));
    }
    TQC_TRY(note_known_records());
    const std::span<const std::uint32_t> units = plan_.units;
    for (std::size_t i = 0; i < units.size(); i += kUnitsAtOnce) {
      TQC_TRY(spare_new_prompts());
      TQC_TRY(remove(units.subspan(i, std::min(kUnitsAtOnce, units.size() - i))));
    }
    TQC_TRY(tell_losses());
    return report_;
  }

 private:
  // What is planned, from which what is spared is taken later.
  void tell_plan() {
    report_.bytes_before = inventory_.bytes();
    report_.bytes_after = plan_.bytes_after;
    report_.prompts = prompts_.size();
    report_.prompts_removed = plan_.prompts.size();
    report_.bytes_needed = plan_.bytes_needed;
    report_.bytes_in_grace = plan_.bytes_in_grace;
    for (const std::uint32_t i : plan_.prompts) {
      count(inventory_.unit(prompts_[i].record), 1);
      if (options_.on_prompt) options_.on_prompt(prompts_[i].name);
    }
    for (const std::uint32_t i : plan_.units) {
      count(inventory_.unit(i), std::max<std::size_t>(1, inventory_.unit(i).parts.size()));
    }
    note_limit();
  }

  void count(const Unit& unit, std::uint64_t blobs) {
    KindTotal& total = report_.removed[static_cast<std::size_t>(unit.kind)];
    total.blobs += blobs;
    total.bytes += unit.bytes;
  }

  void note_limit() {
    report_.above_limit = options_.max_bytes && report_.bytes_after > *options_.max_bytes;
  }

  void spare(const Unit& unit) {
    KindTotal& total = report_.removed[static_cast<std::size_t>(unit.kind)];
    total.blobs -= std::max<std::size_t>(1, unit.parts.size());
    total.bytes -= unit.bytes;
    report_.bytes_after += unit.bytes;
    note_limit();
  }

  // As they are after they have been read, which is a use in Redis.
  Result<void> note_known_records() {
    std::set<std::string_view> kept;
    for (const KeptPrompt& prompt : prompts_) kept.insert(inventory_.unit(prompt.record).name);
    return backend_.list("n/", [&](const Entry& entry) -> Result<void> {
      if (kept.contains(entry.key))
        known_[entry.key] = entry.idle.value_or(std::chrono::seconds(0));
      return {};
    });
  }

  // Whether it came, or was put anew, since this was last asked.
  bool is_new(const Entry& entry) {
    if (!parse_key(entry.key)) return false;
    const std::chrono::seconds idle = entry.idle.value_or(std::chrono::seconds(0));
    const auto [known, is_unknown] = known_.try_emplace(entry.key, idle);
    const bool younger = idle < known->second;
    known->second = idle;
    return is_unknown || younger;
  }

  Result<void> each_new_record(const std::function<void(const Record&)>& sink) {
    std::vector<std::string> keys;
    TQC_TRY(backend_.list("n/", [&](const Entry& entry) -> Result<void> {
      if (is_new(entry)) keys.push_back(entry.key);
      return {};
    }));
    return read_blobs(backend_, keys,
                      [&](std::size_t, std::optional<ReadBlob> blob) -> Result<void> {
                        if (!blob || !blob->content) return {};
                        if (const auto* record = std::get_if<Record>(&*blob->content))
                          sink(*record);
                        return {};
                      });
  }

  Result<void> spare_new_prompts() {
    return each_new_record([&](const Record& record) {
      const std::vector<std::string> needs = needs_of(record);
      tell_loss(record, needs);
      needed_.insert(needs.begin(), needs.end());
    });
  }

  Result<void> tell_losses() {
    return each_new_record([&](const Record& record) { tell_loss(record, needs_of(record)); });
  }

  void tell_loss(const Record& record, const std::vector<std::string>& needs) {
    const auto is_removed = [&](const std::string& name) { return removed_.contains(name); };
    if (options_.on_loss && std::ranges::any_of(needs, is_removed)) options_.on_loss(record.name);
  }

  Result<void> remove(std::span<const std::uint32_t> units) {
    for (const std::uint32_t i : units) {
      if (progress_ && !progress_(removed_.size(), plan_.units.size())) {
        return interrupted_error();
      }
      const Unit& unit = inventory_.unit(i);
      if (needed_.contains(unit.name)) {
        spare(unit);
        continue;
      }
      for (const std::string& key : keys_of(unit)) TQC_TRY(backend_.remove(key));
      removed_.insert(unit.name);
    }
    return {};
  }

  Backend& backend_;
  const CollectOptions& options_;
  const Progress& progress_;
  const Inventory& inventory_;
  std::span<const KeptPrompt> prompts_;
  const CollectPlan& plan_;
  CollectReport report_;
  std::map<std::string, std::chrono::seconds> known_;  // records, and since when they are idle
  std::unordered_set<std::string> needed_;             // by prompts that were put meanwhile
  std::unordered_set<std::string_view> removed_;       // names of the inventory
};

}  // namespace

Result<CollectReport> collect(Backend& backend, const CollectOptions& options,
                              const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  TQC_TRY_ASSIGN(const std::vector<KeptPrompt> prompts,
                 read_kept_prompts(backend, inventory, progress));
  const CollectPlan plan = plan_collection(inventory, prompts, options);
  return Collector(backend, options, progress, inventory, prompts, plan).run();
}

}  // namespace tqcache::store
