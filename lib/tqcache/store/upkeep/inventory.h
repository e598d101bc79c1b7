#pragma once
// store/upkeep/inventory.h: the content of a store: its items with sizes and last uses, and its
// named prompts.
//
// Memory: about 200 bytes for each block, snapshot and record.

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/progress.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::store {

// The unit of removal: the parts of a token block, or one blob of another kind.
struct InventoryItem {
  BlobKind kind = BlobKind::kBlock;
  std::string name;         // KeyParts::name
  std::int64_t index = 0;   // of a block
  std::vector<int> parts;   // the existing parts of a block
  std::uint64_t bytes = 0;  // as the backend counts
  // Since the last use of any part; 0 if unknown.
  std::chrono::seconds idle{0};
};

// Part 0 of a block comes first, because readers cannot find the other parts without it.
std::vector<std::string> keys_of(const InventoryItem& item);
bool has_part(const InventoryItem& item, int part);

class Inventory {
 public:
  // Progress: in blobs; the total is unknown (0).
  // Errors: those of the backend; kCorrupt if its list is not sorted; kTooLarge (2^32 items);
  //         kInterrupted.
  static Result<Inventory> take(Backend& backend, const Progress& progress = {});

  Inventory(Inventory&&) = default;
  Inventory& operator=(Inventory&&) = default;
  Inventory(const Inventory&) = delete;
  Inventory& operator=(const Inventory&) = delete;

  // Sorted by name, so grouped by kind.
  const std::vector<InventoryItem>& items() const { return items_; }
  const InventoryItem& item(std::size_t i) const { return items_[i]; }
  // The items of one kind: [first, end).
  struct Range {
    std::size_t first = 0, end = 0;
  };
  Range of_kind(BlobKind kind) const;
  std::vector<std::string> names(BlobKind kind) const;

  std::optional<std::uint32_t> find(std::string_view name) const;
  // The block with that hash, at any index.
  std::optional<std::uint32_t> find_block(std::string_view hash) const;

  const KindTotal& total(BlobKind kind) const { return totals_[static_cast<std::size_t>(kind)]; }
  // Blobs under foreign keys, which are never touched.
  const KindTotal& others() const { return others_; }
  std::uint64_t bytes() const;  // of all blobs, also foreign ones

 private:
  Inventory() = default;
  Result<void> add(const Entry& entry);
  void index_blocks();

  std::vector<InventoryItem> items_;
  std::array<KindTotal, kBlobKinds> totals_{};
  KindTotal others_;
  // By their hash, views of names. Ordered, because a server chooses the hashes.
  std::map<std::string_view, std::uint32_t> blocks_;
};

// --- named prompts

// The names of the items that a named prompt needs, without duplicates.
std::vector<std::string> needs_of(const PromptRecord& record);

struct NamedPrompt {
  std::uint32_t record = 0;          // index of the record among the items
  std::vector<std::uint32_t> needs;  // indices of the needed items that exist
  std::string name;
  std::int64_t n_tokens = 0;
  // Since the last use of the prompt's end: record, snapshot and data. (The age of the record alone
  // is no measure where reading counts as use.)
  std::chrono::seconds idle{0};
};

// Reads all records. Progress: in records.
//
// Errors: those of the backend. kCorrupt, kTruncated, kMismatch if a record is damaged, and
//         kUnsupported if a later version wrote it, because its needs are then unknown. The message
//         names its key. kInterrupted.
Result<std::vector<NamedPrompt>> read_named_prompts(Backend& backend, const Inventory& inventory,
                                                    const Progress& progress = {});

}  // namespace tqcache::store
