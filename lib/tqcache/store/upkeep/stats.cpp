#include "tqcache/store/upkeep/stats.h"

#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/read_blobs.h"
#include "tqcache/store/upkeep/kept_prompts.h"

namespace tqcache::store {
namespace {

void add_prompts(const Inventory& inventory, const std::vector<KeptPrompt>& prompts,
                 StoreStats& stats) {
  std::vector<bool> is_needed(inventory.units().size());
  for (const KeptPrompt& prompt : prompts) {
    stats.prompts += 1;
    stats.prompt_tokens += static_cast<std::uint64_t>(prompt.n_tokens);
    stats.bytes_alone += inventory.unit(prompt.record).bytes;
    is_needed[prompt.record] = true;
    for (const std::uint32_t unit : prompt.needs) {
      stats.bytes_alone += inventory.unit(unit).bytes;
      is_needed[unit] = true;
    }
  }
  for (std::size_t i = 0; i < is_needed.size(); ++i) {
    const Unit& unit = inventory.unit(i);
    if (unit.kind == BlobKind::kUsage) continue;
    (is_needed[i] ? stats.bytes_needed : stats.bytes_unneeded) += unit.bytes;
  }
}

void add_usage(const Usage& usage, StoreStats& stats) {
  stats.runs += 1;
  stats.runs_that_found += usage.found_tokens > 0 ? 1 : 0;
  stats.wanted_tokens += static_cast<std::uint64_t>(usage.wanted_tokens);
  stats.found_tokens += static_cast<std::uint64_t>(usage.found_tokens);
  stats.read_bytes += usage.read_bytes;
  stats.stored_bytes += usage.stored_bytes;
}

Result<void> add_notes(Backend& backend, const std::vector<std::string>& keys,
                       const Progress& progress, StoreStats& stats) {
  return read_blobs(backend, keys,
                    [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
                      if (progress && !progress(i, keys.size())) return interrupted_error();
                      if (!blob || !blob->content) return {};
                      if (const auto* usage = std::get_if<Usage>(&*blob->content))
                        add_usage(*usage, stats);
                      return {};
                    });
}

}  // namespace

Result<StoreStats> read_stats(Backend& backend, const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  TQC_TRY_ASSIGN(const std::vector<KeptPrompt> prompts,
                 read_kept_prompts(backend, inventory, progress));
  StoreStats stats;
  for (const BlobKind kind : kAllKinds) {
    stats.kinds[static_cast<std::size_t>(kind)] = inventory.total(kind);
  }
  stats.others = inventory.others();
  add_prompts(inventory, prompts, stats);
  TQC_TRY(add_notes(backend, inventory.names(BlobKind::kUsage), progress, stats));
  return stats;
}

}  // namespace tqcache::store
