#include "tqcache/store/upkeep/collect.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/read_blobs.h"
#include "tqcache/store/upkeep/collect_plan.h"
#include "tqcache/store/upkeep/kept_prompts.h"

namespace tqcache::store {
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
