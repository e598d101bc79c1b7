#pragma once
// store/upkeep/inventory.h: what a store holds, by its keys alone: how much, and since when nobody used
// it.
//
// Memory: about 200 bytes for each block, state and record, however large they are.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/key_parts.h"

namespace tqcache::store {

// What comes and goes together: the parts of a token block, or one blob of another kind.
struct Unit {
  BlobKind kind = BlobKind::kBlock;
  std::string name;         // KeyParts::name
  std::int64_t index = 0;   // of a block
  std::vector<int> parts;   // of a block, those that are there
  std::uint64_t bytes = 0;  // as the engine counts
  // Since the last use of any part; 0 when the engine does not say.
  std::chrono::seconds idle{0};
};

// Of a block part 0 comes first, which stands for all: without it nobody finds the others.
std::vector<std::string> keys_of(const Unit& unit);
bool has_part(const Unit& unit, int part);

struct KindTotal {
  std::uint64_t blobs = 0;
  std::uint64_t bytes = 0;
};

class Inventory {
 public:
  // Progress: in blobs, of a total that is not known (0).
  // Errors: those of the backend; kCorrupt when it lists in no order; kTooLarge (2^32 units);
  //         kInterrupted.
  static Result<Inventory> take(Backend& backend, const Progress& progress = {});

  Inventory(Inventory&&) = default;
  Inventory& operator=(Inventory&&) = default;
  Inventory(const Inventory&) = delete;
  Inventory& operator=(const Inventory&) = delete;

  // In the order of their names, and so one kind after another.
  const std::vector<Unit>& units() const { return units_; }
  const Unit& unit(std::size_t i) const { return units_[i]; }
  // Those of one kind: [first, end).
  struct Range {
    std::size_t first = 0, end = 0;
  };
  Range of_kind(BlobKind kind) const;
  std::vector<std::string> names(BlobKind kind) const;

  std::optional<std::uint32_t> find(std::string_view name) const;
  // The block of that hash, at whatever index.
  std::optional<std::uint32_t> find_block(std::string_view hash) const;

  const KindTotal& total(BlobKind kind) const { return totals_[static_cast<std::size_t>(kind)]; }
  // Under keys that are none of ours. Nothing here touches them.
  const KindTotal& others() const { return others_; }
  std::uint64_t bytes() const;  // of all, others included

 private:
  Inventory() = default;
  Result<void> add(const Entry& entry);
  void index_blocks();

  std::vector<Unit> units_;
  std::array<KindTotal, kBlobKinds> totals_{};
  KindTotal others_;
  std::unordered_map<std::string_view, std::uint32_t> blocks_;  // by their hash, views of names
};

}  // namespace tqcache::store
