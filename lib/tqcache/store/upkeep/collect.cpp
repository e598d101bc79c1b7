// Garbage collection of a store: the plan (which items are removed, in which order) and its
// execution.
//
// Spec: docs/reference/store.md, "Keeping it small".

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/upkeep.h"

namespace tqcache::store {
namespace {

struct CollectPlan {
  std::vector<std::uint32_t> prompts;  // indices; removed first
  std::vector<std::uint32_t> items;    // of the inventory, in the order of removal
  std::uint64_t bytes_after = 0;
  std::uint64_t bytes_needed = 0;
  std::uint64_t bytes_in_grace = 0;
};

CollectPlan plan_collection(const Inventory& inventory, std::span<const NamedPrompt> prompts,
                            const CollectOptions& options);

using Seconds = std::chrono::seconds;

// Uses in one run are seconds apart. Within a minute the depth decides, not the order of reading.
constexpr std::int64_t kSecondsAlike = 60;

// The order within a minute: hit statistics, snapshots, data, then blocks from the deepest up, so
// that the rest of a chain can still be found.
constexpr std::int64_t kUnfindable = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kDepthOfUsage = kUnfindable - 1;
constexpr std::int64_t kDepthOfState = kUnfindable - 2;
constexpr std::int64_t kDepthOfData = kUnfindable - 3;
constexpr std::int64_t kDepthOfNext = kUnfindable - 4;
constexpr std::int64_t kDepthOfParameters = -1;

struct Rank {
  Seconds idle{0};
  Seconds order{0};  // `idle`, or CollectOptions::order_by
  std::int64_t depth = 0;

  bool is_unfindable() const { return depth == kUnfindable; }
  bool goes_before(const Rank& other) const {
    const std::int64_t minutes = order.count() / kSecondsAlike;
    const std::int64_t others = other.order.count() / kSecondsAlike;
    return minutes != others ? minutes > others : depth > other.depth;
  }
};

class Planner {
 public:
  Planner(const Inventory& inventory, std::span<const NamedPrompt> prompts,
          const CollectOptions& options)
      : inventory_(inventory),
        prompts_(prompts),
        options_(options),
        ranks_(inventory.items().size()),
        n_needing_(inventory.items().size()),
        gone_(inventory.items().size()) {
    plan_.bytes_after = inventory.bytes();
  }

  CollectPlan plan() {
    rank_all();
    for (const NamedPrompt& prompt : prompts_) {
      for (const std::uint32_t item : prompt.needs) n_needing_[item] += 1;
    }
    drop_old_prompts();
    remove_unneeded(all_but_prompts());
    if (options_.drop_prompts) drop_prompts_by_use();
    count_what_stays();
    return std::move(plan_);
  }

 private:
  std::int64_t depth_of(const InventoryItem& item) const {
    switch (item.kind) {
      case BlobKind::kBlock:
        return has_part(item, 0) ? item.index : kUnfindable;
      case BlobKind::kState:
        return inventory_.find_block(parse_key(item.name)->hash) ? kDepthOfState : kUnfindable;
      case BlobKind::kNext:
        return block_before(item) ? kDepthOfNext : kUnfindable;
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

  // The block behind which stands what this names.
  std::optional<std::uint32_t> block_before(const InventoryItem& next) const {
    return inventory_.find_block(parse_key(next.name)->hash);
  }

  // It stays as long as the block that it stands behind, and is as old.
  bool is_needed(std::uint32_t i) const {
    if (inventory_.item(i).kind != BlobKind::kNext) return n_needing_[i] > 0;
    const auto block = block_before(inventory_.item(i));
    return block && n_needing_[*block] > 0;
  }

  void rank_all() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const InventoryItem& item = inventory_.item(i);
      const InventoryItem* used = &item;
      if (item.kind == BlobKind::kNext) {
        if (const auto block = block_before(item)) {
          used = &inventory_.item(*block);
          nexts_.emplace(*block, static_cast<std::uint32_t>(i));
        }
      }
      const Seconds order =
          options_.order_by ? options_.order_by(used->name, used->idle) : used->idle;
      ranks_[i] = {used->idle, order, depth_of(item)};
    }
  }

  bool above_limit() const { return options_.max_bytes && plan_.bytes_after > *options_.max_bytes; }
  bool in_grace(Seconds idle) const { return idle < options_.grace; }
  bool is_old(Seconds idle) const { return options_.max_age && idle > *options_.max_age; }

  void drop(std::size_t i) {
    const NamedPrompt& prompt = prompts_[i];
    plan_.prompts.push_back(static_cast<std::uint32_t>(i));
    plan_.bytes_after -= inventory_.item(prompt.record).bytes;
    gone_[prompt.record] = true;
    for (const std::uint32_t item : prompt.needs) n_needing_[item] -= 1;
  }

  void drop_old_prompts() {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      if (is_old(prompts_[i].idle) && !in_grace(prompts_[i].idle)) drop(i);
    }
  }

  std::vector<std::uint32_t> all_but_prompts() const {
    std::vector<std::uint32_t> items;
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
      if (inventory_.item(i).kind != BlobKind::kRecord) items.push_back(i);
    }
    return items;
  }

  // Removes as many of these as necessary, in their order.
  void remove_unneeded(std::vector<std::uint32_t> items) {
    std::erase_if(items, [&](std::uint32_t i) {
      return is_needed(i) || gone_[i] || in_grace(ranks_[i].idle);
    });
    std::ranges::stable_sort(
        items, [&](std::uint32_t a, std::uint32_t b) { return ranks_[a].goes_before(ranks_[b]); });
    for (const std::uint32_t i : items) {
      if (ranks_[i].is_unfindable() || is_old(ranks_[i].idle) || above_limit()) remove(i);
    }
  }

  void remove(std::uint32_t i) {
    plan_.items.push_back(i);
    plan_.bytes_after -= inventory_.item(i).bytes;
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
      std::vector<std::uint32_t> items = prompts_[i].needs;
      for (const std::uint32_t item : prompts_[i].needs) {
        const auto nexts = nexts_.equal_range(item);
        for (auto next = nexts.first; next != nexts.second; ++next) items.push_back(next->second);
      }
      remove_unneeded(std::move(items));
    }
  }

  void count_what_stays() {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
      if (gone_[i]) continue;
      const InventoryItem& item = inventory_.item(i);
      const bool stays = item.kind == BlobKind::kRecord || is_needed(i);
      if (stays) plan_.bytes_needed += item.bytes;
      if (!stays && in_grace(ranks_[i].idle)) plan_.bytes_in_grace += item.bytes;
    }
  }

  const Inventory& inventory_;
  std::span<const NamedPrompt> prompts_;
  const CollectOptions& options_;
  std::vector<Rank> ranks_;               // by item
  std::vector<std::uint32_t> n_needing_;  // number of named prompts, by item
  std::vector<bool> gone_;
  std::multimap<std::uint32_t, std::uint32_t> nexts_;  // by the block that they stand behind
  CollectPlan plan_;
};

CollectPlan plan_collection(const Inventory& inventory, std::span<const NamedPrompt> prompts,
                            const CollectOptions& options) {
  return Planner(inventory, prompts, options).plan();
}

// The number of items that are removed between two searches for new records.
constexpr std::size_t kItemsAtOnce = 1000;

class Collector {
 public:
  Collector(Backend& backend, const CollectOptions& options, const Progress& progress,
            const Inventory& inventory, std::span<const NamedPrompt> prompts,
            const CollectPlan& plan)
      : backend_(backend),
        options_(options),
        progress_(progress),
        inventory_(inventory),
        prompts_(prompts),
        plan_(plan) {}

  Result<CollectReport> run() {
    report_plan();
    TQC_TRY_ASSIGN(report_.leftovers, backend_.leftovers(options_.grace, !options_.dry_run));
    if (options_.dry_run) return report_;
    for (const std::uint32_t i : plan_.prompts) {
      TQC_TRY(backend_.remove(inventory_.item(prompts_[i].record).name));
    }
    TQC_TRY(note_known_records());
    const std::span<const std::uint32_t> items = plan_.items;
    for (std::size_t i = 0; i < items.size(); i += kItemsAtOnce) {
      TQC_TRY(spare_new_prompts());
      TQC_TRY(remove(items.subspan(i, std::min(kItemsAtOnce, items.size() - i))));
    }
    TQC_TRY(report_losses());
    return report_;
  }

 private:
  // Reports the plan. spare() corrects it later.
  void report_plan() {
    report_.bytes_before = inventory_.bytes();
    report_.bytes_after = plan_.bytes_after;
    report_.prompts = prompts_.size();
    report_.prompts_removed = plan_.prompts.size();
    report_.bytes_needed = plan_.bytes_needed;
    report_.bytes_in_grace = plan_.bytes_in_grace;
    for (const std::uint32_t i : plan_.prompts) {
      count(inventory_.item(prompts_[i].record), 1);
      if (options_.on_prompt) options_.on_prompt(prompts_[i].name);
    }
    for (const std::uint32_t i : plan_.items) {
      count(inventory_.item(i), std::max<std::size_t>(1, inventory_.item(i).parts.size()));
    }
    note_limit();
  }

  void count(const InventoryItem& item, std::uint64_t blobs) {
    KindTotal& total = report_.removed[static_cast<std::size_t>(item.kind)];
    total.blobs += blobs;
    total.bytes += item.bytes;
  }

  void note_limit() {
    report_.above_limit = options_.max_bytes && report_.bytes_after > *options_.max_bytes;
  }

  void spare(const InventoryItem& item) {
    KindTotal& total = report_.removed[static_cast<std::size_t>(item.kind)];
    total.blobs -= std::max<std::size_t>(1, item.parts.size());
    total.bytes -= item.bytes;
    report_.bytes_after += item.bytes;
    note_limit();
  }

  // Stores the ages of the records after they have been read, because Redis counts reading as use.
  Result<void> note_known_records() {
    std::set<std::string_view> kept;
    for (const NamedPrompt& prompt : prompts_) kept.insert(inventory_.item(prompt.record).name);
    return backend_.list("n/", [&](const Entry& entry) -> Result<void> {
      if (kept.contains(entry.key))
        known_[entry.key] = entry.idle.value_or(std::chrono::seconds(0));
      return {};
    });
  }

  // Whether the record was put since the last search.
  bool is_new(const Entry& entry) {
    if (!parse_key(entry.key)) return false;
    const std::chrono::seconds idle = entry.idle.value_or(std::chrono::seconds(0));
    const auto [known, is_unknown] = known_.try_emplace(entry.key, idle);
    const bool younger = idle < known->second;
    known->second = idle;
    return is_unknown || younger;
  }

  Result<void> each_new_record(const std::function<void(const PromptRecord&)>& sink) {
    std::vector<std::string> keys;
    TQC_TRY(backend_.list("n/", [&](const Entry& entry) -> Result<void> {
      if (is_new(entry)) keys.push_back(entry.key);
      return {};
    }));
    return read_blobs(backend_, keys,
                      [&](std::size_t, std::optional<ReadBlob> blob) -> Result<void> {
                        if (!blob || !blob->content) return {};
                        if (const auto* record = std::get_if<PromptRecord>(&*blob->content))
                          sink(*record);
                        return {};
                      });
  }

  Result<void> spare_new_prompts() {
    return each_new_record([&](const PromptRecord& record) {
      const std::vector<std::string> needs = needs_of(record);
      report_loss(record, needs);
      needed_.insert(needs.begin(), needs.end());
    });
  }

  Result<void> report_losses() {
    return each_new_record(
        [&](const PromptRecord& record) { report_loss(record, needs_of(record)); });
  }

  void report_loss(const PromptRecord& record, const std::vector<std::string>& needs) {
    const auto is_removed = [&](const std::string& name) { return removed_.contains(name); };
    if (options_.on_loss && std::ranges::any_of(needs, is_removed)) options_.on_loss(record.name);
  }

  Result<void> remove(std::span<const std::uint32_t> items) {
    for (const std::uint32_t i : items) {
      TQC_TRY(report_progress(progress_, removed_.size(), plan_.items.size()));
      const InventoryItem& item = inventory_.item(i);
      if (needed_.contains(item.name)) {
        spare(item);
        continue;
      }
      for (const std::string& key : keys_of(item)) TQC_TRY(backend_.remove(key));
      removed_.insert(item.name);
    }
    return {};
  }

  Backend& backend_;
  const CollectOptions& options_;
  const Progress& progress_;
  const Inventory& inventory_;
  std::span<const NamedPrompt> prompts_;
  const CollectPlan& plan_;
  CollectReport report_;
  std::map<std::string, std::chrono::seconds> known_;  // ages of records
  std::set<std::string> needed_;                       // needed by prompts that were put meanwhile
  std::set<std::string_view> removed_;                 // names of the inventory
};

}  // namespace

Result<CollectReport> collect(Backend& backend, const CollectOptions& options,
                              const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  TQC_TRY_ASSIGN(const std::vector<NamedPrompt> prompts,
                 read_named_prompts(backend, inventory, progress));
  const CollectPlan plan = plan_collection(inventory, prompts, options);
  return Collector(backend, options, progress, inventory, prompts, plan).run();
}

}  // namespace tqcache::store
