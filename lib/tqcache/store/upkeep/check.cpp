// store/upkeep/check_blobs.h: reads blobs, tells those that are damaged, and takes them away if
// asked to.
//
// Only for the sources of store.

#include "tqcache/store/upkeep/check.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::store {

class BlobChecker {
 public:
  // All must outlive it. `n_total`: blobs that will be read, for `progress`.
  BlobChecker(Backend& backend, const CheckOptions& options, const Progress& progress,
              std::uint64_t n_total, CheckReport& report)
      : backend_(backend),
        options_(options),
        progress_(progress),
        n_total_(n_total),
        report_(report) {}

  // Calls `sink` for each that is there and good; it must not call the backend.
  using ContentSink = std::function<void(std::size_t i, const Content& content)>;
  Result<void> read(std::span<const std::string> keys, const ContentSink& sink);

  bool is_bad(const std::string& key) const { return bad_.contains(key); }

  // Tells of damage, or of a blob that is missing.
  void tell(Finding finding);

  // Takes a block away that lacks parts. Requires: options.repair.
  Result<void> remove_block(const Unit& block);

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
  std::set<std::string> bad_;
};

namespace {

// The backend is free to be called again after so many.
constexpr std::size_t kKeysAtOnce = 8;

}  // namespace

Result<void> BlobChecker::read(std::span<const std::string> keys, const ContentSink& sink) {
  for (std::size_t first = 0; first < keys.size(); first += kKeysAtOnce) {
    const auto some = keys.subspan(first, std::min(kKeysAtOnce, keys.size() - first));
    std::vector<Bad> bad;
    TQC_TRY(read_blobs(backend_, some,
                       [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
                         if (progress_ && !progress_(report_.read.blobs, n_total_)) {
                           return interrupted_error();
                         }
                         if (!blob) return {};  // it went since it was listed
                         report_.read.blobs += 1;
                         report_.read.bytes += blob->bytes.size();
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
  tell({{}, bad.key, bad.error, removed});
  return {};
}

void BlobChecker::tell(Finding finding) {
  if (options_.on_finding) options_.on_finding(finding);
}

Result<void> BlobChecker::remove_block(const Unit& block) {
  for (const std::string& key : keys_of(block)) {
    TQC_TRY_ASSIGN(const bool removed, backend_.remove(key));
    report_.repaired += removed ? 1 : 0;
  }
  return {};
}

namespace {

// Records that are in memory at a time.
constexpr std::size_t kRecordsAtOnce = 8;

std::uint64_t blobs_of(const Unit& unit) { return std::max<std::size_t>(1, unit.parts.size()); }

// Parts below `n_parts` that are not there.
std::vector<std::string> missing_parts(const Unit& block, int n_parts) {
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

  // Records are read with what they need, later.
  Result<void> read_all() {
    for (const Unit& unit : inventory_.units()) {
      if (unit.kind == BlobKind::kRecord) continue;
      std::optional<int> n_parts;
      const std::vector<std::string> keys = keys_of(unit);
      TQC_TRY(blobs_.read(keys, [&](std::size_t, const Content& content) {
        if (const auto* state = std::get_if<State>(&content)) note_data(state->data_keys);
        const auto* block = std::get_if<Block>(&content);
        if (block == nullptr) return;
        n_parts = block->n_parts;
        if (block->part == 0) note_parent(unit, *block);
      }));
      if (n_parts && has_part(unit, 0)) TQC_TRY(check_parts(unit, *n_parts));
    }
    return {};
  }

  void note_data(const std::vector<std::string>& keys) {
    named_data_.insert(keys.begin(), keys.end());
  }

  void note_parent(const Unit& unit, const Block& block) {
    if (block.index == 0) return;  // its parent is no block
    if (!inventory_.find_block(to_hex(block.parent))) cut_off_.insert(unit.name);
  }

  // A part can go alone where the engine evicts; then part 0 keeps the block from being put again.
  Result<void> check_parts(const Unit& block, int n_parts) {
    TQC_TRY_ASSIGN(const std::vector<std::string> missing,
                   still_missing(missing_parts(block, n_parts)));
    if (missing.empty()) return {};
    report_.missing += missing.size();
    torn_.insert(block.name);
    if (options_.repair) TQC_TRY(blobs_.remove_block(block));
    blobs_.tell({{},
                 missing.front(),
                 {ErrorCode::kNotFound, "a part of a block is missing"},
                 options_.repair});
    return {};
  }

  // What came since it was listed is not missing.
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
      std::vector<std::pair<std::string, Record>> records;
      TQC_TRY(blobs_.read(some, [&](std::size_t i, const Content& content) {
        if (const auto* record = std::get_if<Record>(&content))
          records.emplace_back(some[i], *record);
      }));
      for (const auto& [key, record] : records) TQC_TRY(check_prompt(key, record));
    }
    return {};
  }

  Result<void> check_prompt(const std::string& key, const Record& record) {
    report_.prompts += 1;
    note_data(record.state.data_keys);
    TQC_TRY_ASSIGN(const std::vector<std::string> needs, keys_needed_by(record));
    TQC_TRY_ASSIGN(const std::vector<std::string> missing, still_missing(not_listed(needs)));
    const auto bad =
        std::ranges::find_if(needs, [&](const auto& each) { return blobs_.is_bad(each); });
    if (missing.empty() && bad == needs.end()) return {};
    if (!missing.empty()) {
      // Its prompt may have been removed meanwhile, and gc may have come.
      TQC_TRY_ASSIGN(const bool is_kept, backend_.exists(key));
      if (!is_kept) return {};
    }
    report_.prompts_damaged += 1;
    TQC_TRY(tell_missing(record.name, missing));
    if (bad != needs.end()) {
      blobs_.tell({record.name, *bad, {ErrorCode::kCorrupt, "it needs this, which is damaged"}});
    }
    return {};
  }

  // All blobs that the record needs. Of a block whose parameters are not known, part 0.
  Result<std::vector<std::string>> keys_needed_by(const Record& record) {
    TQC_TRY(read_counts(record.parameters_key));
    std::vector<std::string> keys;
    for (const std::string& name : needs_of(record)) {
      const auto parts = parse_key(name + "/0");
      if (!parts || parts->kind != BlobKind::kBlock) {
        keys.push_back(name);
        continue;
      }
      const std::size_t n_parts = counts_ ? counts_->of(parts->index) : 1;
      for (std::size_t part = 0; part < n_parts; ++part) {
        keys.push_back(part_key(name, static_cast<int>(part)));
      }
    }
    return keys;
  }

  // Prompts that share a beginning often stand one after another in nobody's order, so the last one
  // is all that is kept.
  Result<void> read_counts(const std::string& key) {
    if (key == counts_key_) return {};
    counts_key_ = key;
    counts_.reset();
    if (blobs_.is_bad(key)) return {};
    const KindTotal read = report_.read;
    TQC_TRY(blobs_.read(std::span(&key, 1), [&](std::size_t, const Content& content) {
      if (const auto* found = std::get_if<Parameters>(&content)) counts_.emplace(found->layers);
    }));
    if (options_.read_data) report_.read = read;  // they count once
    return {};
  }

  std::vector<std::string> not_listed(const std::vector<std::string>& keys) const {
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      const auto parts = parse_key(key);
      const auto unit = parts ? inventory_.find(parts->name) : std::nullopt;
      const bool is_block = parts && parts->kind == BlobKind::kBlock;
      if (!unit || (is_block && !has_part(inventory_.unit(*unit), parts->number))) {
        missing.push_back(key);
      }
    }
    return missing;
  }

  Result<void> tell_missing(const std::string& prompt, const std::vector<std::string>& missing) {
    if (missing.empty()) return {};
    bool repaired = false;
    for (const std::string& key : missing) {
      const std::string name(parse_key(key) ? parse_key(key)->name : key);
      if (!missing_.insert(key).second || torn_.contains(name)) continue;
      report_.missing += 1;
      const auto unit = inventory_.find(name);
      if (!unit || !options_.repair) continue;
      torn_.insert(name);
      repaired = true;
      TQC_TRY(blobs_.remove_block(inventory_.unit(*unit)));
    }
    const std::string others =
        missing.size() == 1 ? "" : ", and " + std::to_string(missing.size() - 1) + " more";
    blobs_.tell({prompt, missing.front(), {ErrorCode::kNotFound, "missing" + others}, repaired});
    return {};
  }

  bool nobody_finds(const Unit& unit) const {
    switch (unit.kind) {
      case BlobKind::kBlock:
        return !has_part(unit, 0) || cut_off_.contains(unit.name);
      case BlobKind::kState:
        return !inventory_.find_block(parse_key(unit.name)->hash);
      case BlobKind::kData:
        return options_.read_data && !named_data_.contains(unit.name);
      default:
        return false;
    }
  }

  void count_unfindable() {
    for (const Unit& unit : inventory_.units()) {
      if (!nobody_finds(unit)) continue;
      report_.unfindable.blobs += blobs_of(unit);
      report_.unfindable.bytes += unit.bytes;
    }
  }

  Backend& backend_;
  const CheckOptions& options_;
  const Inventory& inventory_;
  CheckReport report_;
  BlobChecker blobs_;
  std::unordered_set<std::string> named_data_;  // by states and records
  std::unordered_set<std::string> cut_off_;     // blocks without the one before
  std::unordered_set<std::string> torn_;        // blocks without all their parts
  std::unordered_set<std::string> missing_;     // keys that were told already
  std::string counts_key_;
  std::optional<PartCounts> counts_;  // as these parameters say
};

}  // namespace

Result<CheckReport> check(Backend& backend, const CheckOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend, progress));
  return Checker(backend, options, progress, inventory).run();
}

}  // namespace tqcache::store
