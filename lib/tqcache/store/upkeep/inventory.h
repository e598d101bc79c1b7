#pragma once
// store/upkeep/inventory.h: what a store holds, by its keys alone: how much, and since when nobody
// used it.
//
// Memory: about 200 bytes for each block, state and record, however large they are.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/keys.h"

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

// the prompts that a store keeps under names, and what each cannot be had
// without.

// Names of the units (inventory.h) that a kept prompt cannot be had without, each once.
std::vector<std::string> needs_of(const Record& record);

struct KeptPrompt {
  std::uint32_t record = 0;          // among the inventory's units
  std::vector<std::uint32_t> needs;  // of these, those that are there
  std::string name;
  std::int64_t n_tokens = 0;
  // Since the last use of the prompt's end: of record, state and data. Where reading counts as use
  // the record alone would say when it was last looked through.
  std::chrono::seconds idle{0};
};

// Reads all records. Progress: in records.
//
// Errors: those of the backend. kCorrupt, kTruncated, kMismatch when a record is damaged, and
//         kUnsupported when a later version wrote it: what it needs is not known then. The message
//         names its key. kInterrupted.
Result<std::vector<KeptPrompt>> read_kept_prompts(Backend& backend, const Inventory& inventory,
                                                  const Progress& progress = {});

// Tells of each prompt that is kept under keys that begin with `prefix` (record_prefix(), keys.h;
// "n/": those of all tenants), in the order of their keys, and of each damaged one. `sink` must not
// call the backend.
// Errors: those of the backend and of `sink`.
using RecordSink = std::function<Result<void>(const Entry& entry, const Record& record)>;
Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnTrouble& on_trouble,
                          const RecordSink& sink);

// what a store holds, what sharing saves in it, and how often it was of use.
//
// Spec: docs/reference/store.md, "What a store holds".

// Bytes are as the engine counts them.
struct StoreStats {
  std::array<KindTotal, kBlobKinds> kinds{};  // by BlobKind
  KindTotal others;                           // under keys that are none of ours

  std::uint64_t prompts = 0;  // that are kept under names, of all tenants
  std::uint64_t prompt_tokens = 0;
  std::uint64_t bytes_alone = 0;   // that these would take if each had all of its blobs for itself
  std::uint64_t bytes_needed = 0;  // and that they take
  std::uint64_t bytes_unneeded =
      0;  // of what no kept prompt needs: found by its tokens, or by none

  // Of runs that looked for a prompt here, as their notes say.
  std::uint64_t runs = 0;
  std::uint64_t runs_that_found = 0;
  std::uint64_t wanted_tokens = 0, found_tokens = 0;
  std::uint64_t read_bytes = 0, stored_bytes = 0;

  std::uint64_t bytes_saved() const { return bytes_alone - bytes_needed; }
};

// Notes that are damaged count for nothing.
// Progress: in blobs read.
// Errors: those of the backend and of read_kept_prompts(); kInterrupted.
Result<StoreStats> read_stats(Backend& backend, const Progress& progress = {});

}  // namespace tqcache::store
