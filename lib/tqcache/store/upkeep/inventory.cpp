
#include "tqcache/store/upkeep/inventory.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

namespace {

std::string_view hash_in(std::string_view block_name) {
  return block_name.substr(block_name.rfind('/') + 1);
}

}  // namespace

std::vector<std::string> keys_of(const InventoryItem& item) {
  if (item.kind != BlobKind::kBlock) return {item.name};
  std::vector<std::string> keys;
  for (const int part : item.parts) keys.push_back(part_key(item.name, part));
  return keys;
}

bool has_part(const InventoryItem& item, int part) {
  return std::ranges::binary_search(item.parts, part);
}

Result<Inventory> Inventory::take(Backend& backend, const Progress& progress) {
  Inventory inventory;
  std::uint64_t n_seen = 0;
  TQC_TRY(backend.list("", [&](const Entry& entry) -> Result<void> {
    TQC_TRY(report_progress(progress, n_seen, 0));
    n_seen += 1;
    return inventory.add(entry);
  }));
  for (InventoryItem& item : inventory.items_)
    std::ranges::sort(item.parts);  // "10" was listed before "2"
  inventory.index_blocks();
  return inventory;
}

Result<void> Inventory::add(const Entry& entry) {
  if (entry.key == kKeyCheck) return {};
  const std::optional<KeyParts> key = parse_key(entry.key);
  KindTotal& total = key ? totals_[static_cast<std::size_t>(key->kind)] : others_;
  total.blobs += 1;
  total.bytes += entry.bytes;
  if (!key) return {};
  const std::chrono::seconds idle = entry.idle.value_or(std::chrono::seconds(0));
  if (items_.empty() || items_.back().name != key->name) {
    if (!items_.empty() && items_.back().name > key->name) {
      return corrupt("the store does not list its keys in order");
    }
    if (items_.size() == std::numeric_limits<std::uint32_t>::max()) {
      return too_large("the store holds more than 2^32 items");
    }
    items_.push_back({key->kind, std::string(key->name), key->index, {}, 0, idle});
  }
  InventoryItem& item = items_.back();
  item.bytes += entry.bytes;
  item.idle = std::min(item.idle, idle);
  if (key->kind == BlobKind::kBlock) item.parts.push_back(key->number);
  return {};
}

void Inventory::index_blocks() {
  const Range blocks = of_kind(BlobKind::kBlock);
  for (std::size_t i = blocks.first; i < blocks.end; ++i) {
    blocks_.emplace(hash_in(items_[i].name), static_cast<std::uint32_t>(i));
  }
}

Inventory::Range Inventory::of_kind(BlobKind kind) const {
  const auto first = std::ranges::find(items_, kind, &InventoryItem::kind);
  const auto end =
      std::find_if(first, items_.end(), [&](const InventoryItem& u) { return u.kind != kind; });
  return {static_cast<std::size_t>(first - items_.begin()),
          static_cast<std::size_t>(end - items_.begin())};
}

std::vector<std::string> Inventory::names(BlobKind kind) const {
  std::vector<std::string> names;
  const Range range = of_kind(kind);
  for (std::size_t i = range.first; i < range.end; ++i) names.push_back(items_[i].name);
  return names;
}

std::optional<std::uint32_t> Inventory::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(items_, name, {}, &InventoryItem::name);
  if (found == items_.end() || found->name != name) return std::nullopt;
  return static_cast<std::uint32_t>(found - items_.begin());
}

std::optional<std::uint32_t> Inventory::find_block(std::string_view hash) const {
  const auto found = blocks_.find(hash);
  return found == blocks_.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t Inventory::bytes() const {
  std::uint64_t sum = others_.bytes;
  for (const KindTotal& total : totals_) sum += total.bytes;
  return sum;
}

namespace {

std::vector<std::uint32_t> items_of(const Inventory& inventory,
                                    const std::vector<std::string>& names) {
  std::vector<std::uint32_t> items;
  for (const std::string& name : names) {
    if (const auto item = inventory.find(name)) items.push_back(*item);
  }
  return items;
}

std::chrono::seconds idle_of(const Inventory& inventory, const NamedPrompt& prompt) {
  std::optional<std::chrono::seconds> end;
  for (const std::uint32_t i : prompt.needs) {
    const InventoryItem& item = inventory.item(i);
    if (item.kind != BlobKind::kState && item.kind != BlobKind::kData) continue;
    end = std::min(end.value_or(item.idle), item.idle);
  }
  const std::chrono::seconds record = inventory.item(prompt.record).idle;
  return std::max(record, end.value_or(record));
}

}  // namespace

std::vector<std::string> needs_of(const PromptRecord& record) {
  std::vector<std::string> names;
  if (!record.parameters_key.empty()) names.push_back(record.parameters_key);
  for (std::size_t i = 0; i < record.chain.size(); ++i) {
    names.push_back(block_name(record.chain[i], static_cast<std::int64_t>(i)));
  }
  if (!record.state_key.empty()) names.push_back(record.state_key);
  names.insert(names.end(), record.snapshot.data_keys.begin(), record.snapshot.data_keys.end());
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<std::vector<NamedPrompt>> read_named_prompts(Backend& backend, const Inventory& inventory,
                                                    const Progress& progress) {
  const std::size_t first = inventory.of_kind(BlobKind::kRecord).first;
  const std::vector<std::string> keys = inventory.names(BlobKind::kRecord);
  std::vector<NamedPrompt> prompts;
  TQC_TRY(
      read_blobs(backend, keys, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
        TQC_TRY(report_progress(progress, i, keys.size()));
        // Removed meanwhile; or empty, as what another kind of value or file counts for, so that no
        // reading will ever tell its needs. check() finds it.
        if (!blob || blob->bytes.empty()) return {};
        TQC_TRY_ASSIGN(const PromptRecord record,
                       content_of<PromptRecord>(keys[i], std::move(*blob)));
        NamedPrompt prompt{static_cast<std::uint32_t>(first + i),
                           items_of(inventory, needs_of(record)), record.name,
                           record.snapshot.n_tokens};
        prompt.idle = idle_of(inventory, prompt);
        prompts.push_back(std::move(prompt));
        return {};
      }));
  return prompts;
}

Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnWarning& on_warning,
                          const RecordSink& sink) {
  constexpr std::size_t kEntriesAtOnce = 512;
  std::vector<Entry> entries;
  const auto read = [&]() -> Result<void> {
    std::vector<std::string> keys;
    for (const Entry& entry : entries) keys.push_back(entry.key);
    TQC_TRY(
        read_blobs(backend, keys, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
          if (!blob) return {};
          const Result<PromptRecord> record = content_of<PromptRecord>(keys[i], std::move(*blob));
          if (record) return sink(entries[i], *record);
          if (on_warning) on_warning(record.error().message);
          return {};
        }));
    entries.clear();
    return {};
  };
  TQC_TRY(backend.list(prefix, [&](const Entry& entry) -> Result<void> {
    entries.push_back(entry);
    return entries.size() < kEntriesAtOnce ? Result<void>() : read();
  }));
  return read();
}

namespace {

void add_prompts(const Inventory& inventory, const std::vector<NamedPrompt>& prompts,
                 StoreStats& stats) {
  std::vector<bool> is_needed(inventory.items().size());
  for (const NamedPrompt& prompt : prompts) {
    stats.prompts += 1;
    stats.prompt_tokens += static_cast<std::uint64_t>(prompt.n_tokens);
    stats.bytes_alone += inventory.item(prompt.record).bytes;
    is_needed[prompt.record] = true;
    for (const std::uint32_t item : prompt.needs) {
      stats.bytes_alone += inventory.item(item).bytes;
      is_needed[item] = true;
    }
  }
  for (std::size_t i = 0; i < is_needed.size(); ++i) {
    const InventoryItem& item = inventory.item(i);
    if (item.kind == BlobKind::kUsage) continue;
    if (item.kind == BlobKind::kNext) {  // belongs to the block before
      const auto block = inventory.find_block(parse_key(item.name)->hash);
      if (!block || !is_needed[*block]) stats.bytes_unneeded += item.bytes;
      continue;
    }
    (is_needed[i] ? stats.bytes_needed : stats.bytes_unneeded) += item.bytes;
  }
}

void add_usage(const UsageNote& usage, StoreStats& stats) {
  stats.runs += usage.wanted_tokens > 0 ? 1 : 0;
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
                      TQC_TRY(report_progress(progress, i, keys.size()));
                      if (!blob || !blob->content) return {};
                      if (const auto* usage = std::get_if<UsageNote>(&*blob->content))
                        add_usage(*usage, stats);
                      return {};
                    });
}

}  // namespace

Result<StoreStats> read_stats(Backend& backend, const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  TQC_TRY_ASSIGN(const std::vector<NamedPrompt> prompts,
                 read_named_prompts(backend, inventory, progress));
  StoreStats stats;
  for (const BlobKind kind : kAllKinds) {
    stats.kinds[static_cast<std::size_t>(kind)] = inventory.total(kind);
  }
  stats.others = inventory.others();
  TQC_TRY_ASSIGN(stats.leftovers, backend.leftovers(std::chrono::hours(1), false));
  add_prompts(inventory, prompts, stats);
  TQC_TRY(add_notes(backend, inventory.names(BlobKind::kUsage), progress, stats));
  return stats;
}

}  // namespace tqcache::store
