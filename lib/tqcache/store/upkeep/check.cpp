// The check of a store: BlobChecker reads blobs and reports or removes damaged ones; Checker
// compares the needs of prompts with the inventory.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/progress.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/upkeep.h"

namespace tqcache::store {
namespace {

class BlobChecker {
 public:
  // All references must outlive it. `n_total`: the number of blobs to read, for `progress`.
  BlobChecker(Backend& backend, const CheckOptions& options, const Progress& progress,
              std::uint64_t n_total, CheckReport& report)
      : backend_(backend),
        options_(options),
        progress_(progress),
        n_total_(n_total),
        report_(report) {}

  // Layers that blobs may belong to, for the comparison of their content.
  void add_layers(const std::vector<cache::LayerDesc>& layers) { digests_.add_layers(layers); }

  // Calls `sink` for each good blob. `sink` must not call the backend. With options.read_data the
  // content of blocks and data is compared with its SHA-256.
  using ContentSink = std::function<void(std::size_t i, const Content& content)>;
  Result<void> read(std::span<const std::string> keys, const ContentSink& sink);

  bool is_bad(const std::string& key) const { return bad_.contains(key); }

  // Reports a damaged or missing blob.
  void report(Finding finding);

  // Removes a block that lacks parts. Requires: options.repair.
  Result<void> remove_block(const InventoryItem& block);

 private:
  struct Bad {
    std::string key;
    Error error;
    Bytes bytes;  // for repair
  };
  Result<void> settle(const Bad& bad);

  Backend& backend_;
  const CheckOptions& options_;
  const Progress& progress_;
  std::uint64_t n_total_;
  CheckReport& report_;
  SectionDigests digests_;
  std::set<std::string> bad_;
};

// Number of blobs that are read before the backend may be called again.
constexpr std::size_t kCheckedAtOnce = 8;

Result<void> BlobChecker::read(std::span<const std::string> keys, const ContentSink& sink) {
  for (std::size_t first = 0; first < keys.size(); first += kCheckedAtOnce) {
    const auto some = keys.subspan(first, std::min(kCheckedAtOnce, keys.size() - first));
    std::vector<Bad> bad;
    TQC_TRY(read_blobs(backend_, some,
                       [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
                         TQC_TRY(report_progress(progress_, report_.read.blobs, n_total_));
                         if (!blob) return {};  // removed since the listing
                         report_.read.blobs += 1;
                         report_.read.bytes += blob->bytes.size();
                         if (blob->content && options_.read_data) {
                           auto same = digests_.compare(*blob->content, /*n_threads=*/0);
                           if (!same) blob->content = std::move(same).error();
                         }
                         if (blob->content) {
                           sink(first + i, *blob->content);
                         } else {
                           bad.push_back({some[i], blob->content.error(), {}});
                           if (options_.repair)
                             bad.back().bytes.assign(blob->bytes.begin(), blob->bytes.end());
                         }
                         return {};
                       }));
    for (const Bad& each : bad) TQC_TRY(settle(each));
  }
  return {};
}

Result<void> BlobChecker::settle(const Bad& bad) {
  if (bad.error.code == ErrorCode::kNoKey) return in_context(bad.key, bad.error);
  if (bad.error.code == ErrorCode::kUnsupported) {
    report_.later += 1;
    return {};
  }
  bad_.insert(bad.key);
  bool removed = false;
  if (options_.repair) {
    TQC_TRY_ASSIGN(removed, backend_.remove_if_same(bad.key, bad.bytes));
    report_.repaired += removed ? 1 : 0;
  }
  report_.damaged += 1;
  report({{}, bad.key, bad.error, removed});
  return {};
}

void BlobChecker::report(Finding finding) {
  if (options_.on_finding) options_.on_finding(finding);
}

Result<void> BlobChecker::remove_block(const InventoryItem& block) {
  for (const std::string& key : keys_of(block)) {
    TQC_TRY_ASSIGN(const bool removed, backend_.remove(key));
    report_.repaired += removed ? 1 : 0;
  }
  return {};
}

// Number of records in memory at a time.
constexpr std::size_t kRecordsAtOnce = 8;

std::uint64_t blobs_of(const InventoryItem& item) {
  return std::max<std::size_t>(1, item.parts.size());
}

// Missing parts below `n_parts`.
std::vector<std::string> missing_parts(const InventoryItem& block, int n_parts) {
  std::vector<std::string> keys;
  for (int part = 0; part < n_parts; ++part) {
    if (!has_part(block, part)) keys.push_back(part_key(block.name, part));
  }
  return keys;
}

class Checker {
 public:
  Checker(Backend& backend, const CheckOptions& options, const Progress& progress,
          const Inventory& inventory)
      : backend_(backend),
        options_(options),
        inventory_(inventory),
        blobs_(backend, options, progress, count_to_read(), report_) {}

  Result<CheckReport> run() {
    report_.others = inventory_.others();
    for (const BlobKind kind : kAllKinds) {
      report_.blobs.blobs += inventory_.total(kind).blobs;
      report_.blobs.bytes += inventory_.total(kind).bytes;
    }
    TQC_TRY_ASSIGN(report_.leftovers, backend_.leftovers(std::chrono::hours(1), options_.repair));
    if (options_.read_data) TQC_TRY(read_all());
    TQC_TRY(check_prompts());
    count_unfindable();
    return report_;
  }

 private:
  std::uint64_t count_to_read() const {
    std::uint64_t count = 2 * inventory_.total(BlobKind::kRecord).blobs;  // and their parameters
    if (!options_.read_data) return count;
    for (const BlobKind kind : kAllKinds) {
      if (kind != BlobKind::kRecord) count += inventory_.total(kind).blobs;
    }
    return count;
  }

  // Parameters are read first: the sections of other blobs can be compared only with their layers.
  // Records are read later, with the blobs that they need.
  Result<void> read_all() {
    for (const InventoryItem& item : inventory_.items()) {
      if (item.kind != BlobKind::kParameters) continue;
      TQC_TRY(blobs_.read(keys_of(item), [&](std::size_t, const Content& content) {
        if (const auto* found = std::get_if<Parameters>(&content)) blobs_.add_layers(found->layers);
      }));
    }
    for (const InventoryItem& item : inventory_.items()) {
      if (item.kind == BlobKind::kRecord || item.kind == BlobKind::kParameters) continue;
      std::optional<int> n_parts;
      const std::vector<std::string> keys = keys_of(item);
      TQC_TRY(blobs_.read(keys, [&](std::size_t, const Content& content) {
        if (const auto* snapshot = std::get_if<Snapshot>(&content)) note_data(snapshot->data_keys);
        const auto* block = std::get_if<Block>(&content);
        if (block == nullptr) return;
        n_parts = block->n_parts;
        if (block->part == 0) note_parent(item, *block);
      }));
      if (n_parts && has_part(item, 0)) TQC_TRY(check_parts(item, *n_parts));
    }
    return {};
  }

  void note_data(const std::vector<std::string>& keys) {
    named_data_.insert(keys.begin(), keys.end());
  }

  void note_parent(const InventoryItem& item, const Block& block) {
    if (block.index == 0) return;  // its parent is the root, not a block
    if (!inventory_.find_block(to_hex(block.parent))) cut_off_.insert(item.name);
  }

  // A backend may evict a single part. Part 0 would then prevent a new put of the block.
  Result<void> check_parts(const InventoryItem& block, int n_parts) {
    TQC_TRY_ASSIGN(const std::vector<std::string> missing,
                   still_missing(missing_parts(block, n_parts)));
    if (missing.empty()) return {};
    report_.missing += missing.size();
    torn_.insert(block.name);
    if (options_.repair) TQC_TRY(blobs_.remove_block(block));
    blobs_.report({{},
                   missing.front(),
                   {ErrorCode::kNotFound, "a part of a block is missing"},
                   options_.repair});
    return {};
  }

  // Blobs that were put since the listing are not missing.
  Result<std::vector<std::string>> still_missing(std::vector<std::string> keys) {
    if (keys.empty()) return keys;
    TQC_TRY_ASSIGN(const std::vector<bool> there, backend_.exists(keys));
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!there[i]) missing.push_back(std::move(keys[i]));
    }
    return missing;
  }

  Result<void> check_prompts() {
    const std::vector<std::string> keys = inventory_.names(BlobKind::kRecord);
    for (std::size_t first = 0; first < keys.size(); first += kRecordsAtOnce) {
      const auto some =
          std::span(keys).subspan(first, std::min(kRecordsAtOnce, keys.size() - first));
      std::vector<std::pair<std::string, PromptRecord>> records;
      TQC_TRY(blobs_.read(some, [&](std::size_t i, const Content& content) {
        if (const auto* record = std::get_if<PromptRecord>(&content))
          records.emplace_back(some[i], *record);
      }));
      for (const auto& [key, record] : records) TQC_TRY(check_prompt(key, record));
    }
    return {};
  }

  Result<void> check_prompt(const std::string& key, const PromptRecord& record) {
    report_.prompts += 1;
    note_data(record.snapshot.data_keys);
    TQC_TRY_ASSIGN(Needs needs, needs_that_fail(key, record));
    TQC_TRY_ASSIGN(const std::vector<std::string> missing,
                   still_missing(std::move(needs.not_listed)));
    if (missing.empty() && !needs.bad) return {};
    if (!missing.empty()) {
      // The prompt may have been removed meanwhile, and its blobs by gc.
      TQC_TRY_ASSIGN(const bool is_kept, backend_.exists(key));
      if (!is_kept) return {};
    }
    report_.prompts_damaged += 1;
    TQC_TRY(report_missing(record.name, missing));
    if (needs.bad) {
      blobs_.report({record.name, *needs.bad, {ErrorCode::kCorrupt, "needed and damaged"}});
    }
    return {};
  }

  struct Needs {
    std::vector<std::string> not_listed;
    std::optional<std::string> bad;  // the first damaged one
  };

  // Of all blobs that the record needs; only part 0 of a block with unknown parameters. Ends after
  // many that are not listed, because a hostile record can claim millions.
  Result<Needs> needs_that_fail(const std::string& key, const PromptRecord& record) {
    constexpr std::size_t kMaxNotListed = 1 << 16;
    TQC_TRY(read_counts(record.parameters_key));
    Needs needs;
    const auto look_at = [&](std::string wanted) {
      if (!is_listed(wanted)) {
        needs.not_listed.push_back(std::move(wanted));
      } else if (!needs.bad && blobs_.is_bad(wanted)) {
        needs.bad = std::move(wanted);
      }
    };
    if (counts_ && !check_blob_count(record, *counts_)) {
      needs.bad = key;
      report_.damaged += 1;
      return needs;
    }
    for (const std::string& name : needs_of(record)) {
      if (needs.not_listed.size() > kMaxNotListed) break;
      const auto parts = parse_key(name + "/0");
      if (!parts || parts->kind != BlobKind::kBlock) {
        look_at(name);
        continue;
      }
      const std::size_t n_parts = counts_ ? counts_->of(parts->index) : 1;
      for (std::size_t part = 0; part < n_parts; ++part) {
        look_at(part_key(name, static_cast<int>(part)));
      }
    }
    return needs;
  }

  // Reads the parameters to get the number of parts. Only the last parameters are kept: prompts
  // with a common prefix share them.
  Result<void> read_counts(const std::string& key) {
    if (key == counts_key_) return {};
    counts_key_ = key;
    counts_.reset();
    if (blobs_.is_bad(key)) return {};
    const KindTotal read = report_.read;
    TQC_TRY(blobs_.read(std::span(&key, 1), [&](std::size_t, const Content& content) {
      if (const auto* found = std::get_if<Parameters>(&content)) counts_.emplace(found->layers);
    }));
    if (options_.read_data) report_.read = read;  // they are counted once
    return {};
  }

  bool is_listed(const std::string& key) const {
    const auto parts = parse_key(key);
    const auto item = parts ? inventory_.find(parts->name) : std::nullopt;
    const bool is_block = parts && parts->kind == BlobKind::kBlock;
    return item && (!is_block || has_part(inventory_.item(*item), parts->number));
  }

  Result<void> report_missing(const std::string& prompt, const std::vector<std::string>& missing) {
    if (missing.empty()) return {};
    bool repaired = false;
    for (const std::string& key : missing) {
      const std::string name(parse_key(key) ? parse_key(key)->name : key);
      if (!missing_.insert(key).second || torn_.contains(name)) continue;
      report_.missing += 1;
      const auto item = inventory_.find(name);
      if (!item || !options_.repair) continue;
      torn_.insert(name);
      repaired = true;
      TQC_TRY(blobs_.remove_block(inventory_.item(*item)));
    }
    const std::string others =
        missing.size() == 1 ? "" : ", and " + std::to_string(missing.size() - 1) + " more";
    blobs_.report({prompt, missing.front(), {ErrorCode::kNotFound, "missing" + others}, repaired});
    return {};
  }

  bool is_unfindable(const InventoryItem& item) const {
    switch (item.kind) {
      case BlobKind::kBlock:
        return !has_part(item, 0) || cut_off_.contains(item.name);
      case BlobKind::kState:
      case BlobKind::kNext:
        return !inventory_.find_block(parse_key(item.name)->hash);
      case BlobKind::kData:
        return options_.read_data && !named_data_.contains(item.name);
      default:
        return false;
    }
  }

  void count_unfindable() {
    for (const InventoryItem& item : inventory_.items()) {
      if (!is_unfindable(item)) continue;
      report_.unfindable.blobs += blobs_of(item);
      report_.unfindable.bytes += item.bytes;
    }
  }

  Backend& backend_;
  const CheckOptions& options_;
  const Inventory& inventory_;
  CheckReport report_;
  BlobChecker blobs_;
  std::set<std::string> named_data_;  // by states and records
  std::set<std::string> cut_off_;     // blocks without their predecessor
  std::set<std::string> torn_;        // incomplete blocks
  std::set<std::string> missing_;     // keys that were reported already
  std::string counts_key_;
  std::optional<PartCounts> counts_;  // by the last parameters
};

}  // namespace

Result<CheckReport> check(Backend& backend, const CheckOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  return Checker(backend, options, progress, inventory).run();
}

}  // namespace tqcache::store
