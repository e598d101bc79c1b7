#include "tqcache/store/upkeep/inventory.h"

#include <algorithm>
#include <limits>

namespace tqcache::store {
namespace {

Error interrupted_error() { return {ErrorCode::kInterrupted, "interrupted"}; }

std::string_view hash_in(std::string_view block_name) {
  return block_name.substr(block_name.rfind('/') + 1);
}

}  // namespace

std::vector<std::string> keys_of(const Unit& unit) {
  if (unit.kind != BlobKind::kBlock) return {unit.name};
  std::vector<std::string> keys;
  for (const int part : unit.parts) keys.push_back(part_key(unit.name, part));
  return keys;
}

bool has_part(const Unit& unit, int part) { return std::ranges::binary_search(unit.parts, part); }

Result<Inventory> Inventory::take(Backend& backend, const Progress& progress) {
  Inventory inventory;
  std::uint64_t n_seen = 0;
  TQC_TRY(backend.list("", [&](const Entry& entry) -> Result<void> {
    if (progress && !progress(n_seen, 0)) return interrupted_error();
    n_seen += 1;
    return inventory.add(entry);
  }));
  for (Unit& unit : inventory.units_) std::ranges::sort(unit.parts);  // "10" came before "2"
  inventory.index_blocks();
  return inventory;
}

Result<void> Inventory::add(const Entry& entry) {
  const std::optional<KeyParts> key = parse_key(entry.key);
  KindTotal& total = key ? totals_[static_cast<std::size_t>(key->kind)] : others_;
  total.blobs += 1;
  total.bytes += entry.bytes;
  if (!key) return {};
  const std::chrono::seconds idle = entry.idle.value_or(std::chrono::seconds(0));
  if (units_.empty() || units_.back().name != key->name) {
    if (!units_.empty() && units_.back().name > key->name) {
      return Error{ErrorCode::kCorrupt, "the store lists its keys in no order"};
    }
    if (units_.size() == std::numeric_limits<std::uint32_t>::max()) {
      return Error{ErrorCode::kTooLarge, "the store holds more than 2^32 things"};
    }
    units_.push_back({key->kind, std::string(key->name), key->index, {}, 0, idle});
  }
  Unit& unit = units_.back();
  unit.bytes += entry.bytes;
  unit.idle = std::min(unit.idle, idle);
  if (key->kind == BlobKind::kBlock) unit.parts.push_back(key->number);
  return {};
}

void Inventory::index_blocks() {
  const Range blocks = of_kind(BlobKind::kBlock);
  for (std::size_t i = blocks.first; i < blocks.end; ++i) {
    blocks_.emplace(hash_in(units_[i].name), static_cast<std::uint32_t>(i));
  }
}

Inventory::Range Inventory::of_kind(BlobKind kind) const {
  const auto first = std::ranges::find(units_, kind, &Unit::kind);
  const auto end = std::find_if(first, units_.end(), [&](const Unit& u) { return u.kind != kind; });
  return {static_cast<std::size_t>(first - units_.begin()),
          static_cast<std::size_t>(end - units_.begin())};
}

std::vector<std::string> Inventory::names(BlobKind kind) const {
  std::vector<std::string> names;
  const Range range = of_kind(kind);
  for (std::size_t i = range.first; i < range.end; ++i) names.push_back(units_[i].name);
  return names;
}

std::optional<std::uint32_t> Inventory::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(units_, name, {}, &Unit::name);
  if (found == units_.end() || found->name != name) return std::nullopt;
  return static_cast<std::uint32_t>(found - units_.begin());
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

}  // namespace tqcache::store
