#include "tqcache/store/upkeep/kept_prompts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/read_blobs.h"

namespace tqcache::store {
namespace {

std::vector<std::uint32_t> units_of(const Inventory& inventory,
                                    const std::vector<std::string>& names) {
  std::vector<std::uint32_t> units;
  for (const std::string& name : names) {
    if (const auto unit = inventory.find(name)) units.push_back(*unit);
  }
  return units;
}

std::chrono::seconds idle_of(const Inventory& inventory, const KeptPrompt& prompt) {
  std::optional<std::chrono::seconds> end;
  for (const std::uint32_t i : prompt.needs) {
    const Unit& unit = inventory.unit(i);
    if (unit.kind != BlobKind::kState && unit.kind != BlobKind::kData) continue;
    end = std::min(end.value_or(unit.idle), unit.idle);
  }
  const std::chrono::seconds record = inventory.unit(prompt.record).idle;
  return std::max(record, end.value_or(record));
}

}  // namespace

std::vector<std::string> needs_of(const Record& record) {
  std::vector<std::string> names;
  if (!record.parameters_key.empty()) names.push_back(record.parameters_key);
  for (std::size_t i = 0; i < record.chain.size(); ++i) {
    names.push_back(block_name(record.chain[i], static_cast<std::int64_t>(i)));
  }
  if (!record.state_key.empty()) names.push_back(record.state_key);
  names.insert(names.end(), record.state.data_keys.begin(), record.state.data_keys.end());
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<std::vector<KeptPrompt>> read_kept_prompts(Backend& backend, const Inventory& inventory,
                                                  const Progress& progress) {
  const std::size_t first = inventory.of_kind(BlobKind::kRecord).first;
  const std::vector<std::string> keys = inventory.names(BlobKind::kRecord);
  std::vector<KeptPrompt> prompts;
  TQC_TRY(
      read_blobs(backend, keys, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
        if (progress && !progress(i, keys.size())) {
          return interrupted_error();
        }
        if (!blob) return {};  // one that went meanwhile needs nothing any more
        TQC_TRY_ASSIGN(const Record record, content_of<Record>(keys[i], std::move(*blob)));
        KeptPrompt prompt{static_cast<std::uint32_t>(first + i),
                          units_of(inventory, needs_of(record)), record.name,
                          record.state.n_tokens};
        prompt.idle = idle_of(inventory, prompt);
        prompts.push_back(std::move(prompt));
        return {};
      }));
  return prompts;
}

Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnTrouble& on_trouble,
                          const RecordSink& sink) {
  std::vector<Entry> entries;
  std::vector<std::string> keys;
  TQC_TRY(backend.list(prefix, [&](const Entry& entry) -> Result<void> {
    entries.push_back(entry);
    keys.push_back(entry.key);
    return {};
  }));
  return read_blobs(backend, keys,
                    [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
                      if (!blob) return {};
                      const Result<Record> record = content_of<Record>(keys[i], std::move(*blob));
                      if (record) return sink(entries[i], *record);
                      if (on_trouble) on_trouble(record.error().message);
                      return {};
                    });
}

}  // namespace tqcache::store
