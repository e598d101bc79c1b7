// Copies of prompts: BlobCopier copies blocks and data, whose keys are the same in every store;
// Copier copies everything whose slot may change.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/progress.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/upkeep.h"

namespace tqcache::store {
namespace {

class BlobCopier {
 public:
  // All references must outlive it.
  BlobCopier(Backend& from, Backend& to, const CopyOptions& options, const Progress& progress,
             CopyReport& report)
      : from_(from),
        options_(options),
        progress_(progress),
        report_(report),
        there_(to, BadBlobs::kRemove, options.on_warning, /*n_threads=*/0),
        batcher_(to) {
    batcher_.accept_others([this](const std::string& key, ByteView value) {
      const auto content = decode_blob(key, SharedBytes(nullptr, value));
      return content && digests_.compare(*content);
    });
  }

  // Layers that blobs may belong to, for the comparison of their content with its SHA-256.
  void add_layers(const std::vector<cache::LayerDesc>& layers) { digests_.add_layers(layers); }

  // Sets the total for progress.
  void expect(std::uint64_t bytes) { n_expected_ = bytes; }

  // Copies each block once, with all parts or not at all: a block with a missing or damaged part is
  // left out. Returns whether the target has it, or gets it with the next flush().
  Result<bool> copy_block(const std::string& name, std::size_t n_parts);
  Result<void> copy_data(const std::vector<std::string>& keys);
  // Returns when all blobs are acknowledged.
  Result<void> flush();

  // The content of a good blob. Bad and missing ones are reported once. With `may_be_gone`, missing
  // ones are ignored, because they may have been removed since the listing.
  template <class Kind>
  Result<std::optional<Kind>> judge(const std::string& key, std::optional<ReadBlob> blob,
                                    bool may_be_gone) {
    TQC_TRY(report_progress(progress_, n_done_, n_expected_));
    if (!blob) {
      if (!may_be_gone) fail(key, "missing");
      return std::optional<Kind>();
    }
    Result<Kind> content = content_of<Kind>(key, std::move(*blob));
    if constexpr (std::is_same_v<Kind, Block> || std::is_same_v<Kind, Data>) {
      if (content) {
        auto same = digests_.compare(content->sections, /*n_threads=*/0);
        if (!same) content = in_context(key, std::move(same).error());
      }
    }
    if (content) return std::optional(std::move(content).value());
    fail(key, content.error().message);
    return std::optional<Kind>();
  }

  // Reports once that a blob could not be copied.
  void fail(const std::string& key, const std::string& why);
  void count_put(std::uint64_t bytes);
  void count_existing(std::uint64_t bytes);

 private:
  Result<std::vector<std::string>> missing_there(const std::vector<std::string>& keys);

  Backend& from_;
  const CopyOptions& options_;
  const Progress& progress_;
  CopyReport& report_;
  SectionDigests digests_;
  BlobReader there_;
  WriteBatcher batcher_;
  std::uint64_t n_done_ = 0, n_expected_ = 0;
  std::set<std::string> done_;  // names of blocks, keys of data
  std::set<std::string> failed_blocks_;
  std::set<std::string> failed_;
};

// Number of values in memory at a time, besides those that wait to be put.
constexpr std::size_t kValuesAtOnce = 8;

Result<std::vector<std::string>> BlobCopier::missing_there(const std::vector<std::string>& keys) {
  // What the target has is read and compared, and replaced where it is bad.
  const auto take = [](std::size_t, const Content&, std::uint64_t) { return Result<void>(); };
  const auto compare = [this](std::size_t, const Content& content) {
    return digests_.compare(content);
  };
  TQC_TRY_ASSIGN(const std::vector<Found> there, there_.read(keys, take, compare));
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (there[i] == Found::kGood) {
      count_existing(0);
    } else {
      missing.push_back(keys[i]);
    }
  }
  return missing;
}

Result<bool> BlobCopier::copy_block(const std::string& name, std::size_t n_parts) {
  if (done_.contains(name)) return !failed_blocks_.contains(name);
  std::vector<std::string> keys;
  for (std::size_t part = 0; part < n_parts; ++part) {
    keys.push_back(part_key(name, static_cast<int>(part)));
  }
  TQC_TRY_ASSIGN(const std::vector<std::string> missing, missing_there(keys));
  done_.insert(name);
  if (missing.empty()) return true;
  std::vector<WriteBatcher::Value> parts;
  TQC_TRY(
      read_blobs(from_, missing, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
        const ByteView bytes = blob ? blob->bytes : ByteView();
        TQC_TRY_ASSIGN(const auto block, judge<Block>(missing[i], std::move(blob), false));
        if (!block) return {};
        if (static_cast<std::size_t>(block->n_parts) != n_parts) {
          fail(missing[i], fmt::format("a block of {} parts", block->n_parts));
          return {};
        }
        parts.push_back({missing[i], SharedBytes(AlignedBytes(bytes.begin(), bytes.end()))});
        return {};
      }));
  if (parts.size() != missing.size()) {
    failed_blocks_.insert(name);
    return false;
  }
  for (const WriteBatcher::Value& part : parts) count_put(part.bytes.size());
  TQC_TRY(batcher_.add_block(std::move(parts)));
  return true;
}

Result<void> BlobCopier::copy_data(const std::vector<std::string>& all_keys) {
  std::vector<std::string> keys;
  for (const std::string& key : all_keys) {
    if (done_.insert(key).second) keys.push_back(key);
  }
  for (std::size_t first = 0; first < keys.size(); first += kValuesAtOnce) {
    const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
    const std::size_t n = std::min(kValuesAtOnce, keys.size() - first);
    TQC_TRY_ASSIGN(const std::vector<std::string> missing,
                   missing_there({begin, begin + static_cast<std::ptrdiff_t>(n)}));
    std::vector<WriteBatcher::Value> values;
    TQC_TRY(read_blobs(
        from_, missing, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
          const ByteView bytes = blob ? blob->bytes : ByteView();
          TQC_TRY_ASSIGN(const auto data, judge<Data>(missing[i], std::move(blob), false));
          if (data)
            values.push_back({missing[i], SharedBytes(AlignedBytes(bytes.begin(), bytes.end()))});
          return {};
        }));
    for (WriteBatcher::Value& value : values) {
      count_put(value.bytes.size());
      TQC_TRY(batcher_.add(std::move(value)));
    }
  }
  return {};
}

Result<void> BlobCopier::flush() { return batcher_.flush(); }

void BlobCopier::fail(const std::string& key, const std::string& why) {
  if (!failed_.insert(key).second) return;
  report_.blobs_failed += 1;
  const std::string message = why.starts_with(key) ? why : key + ": " + why;
  if (options_.on_warning) options_.on_warning(message);
}

void BlobCopier::count_put(std::uint64_t bytes) {
  report_.blobs += 1;
  report_.bytes += bytes;
  n_done_ += bytes;
}

void BlobCopier::count_existing(std::uint64_t bytes) {
  report_.blobs_existed += 1;
  n_done_ += bytes;
}

// Number of records and snapshots in memory at a time.
constexpr std::size_t kAtOnce = 8;

std::vector<std::string> slots_of(const std::string& key, int first) {
  std::vector<std::string> keys;
  for (int i = 0; i < kCandidateSlots; ++i) {
    keys.push_back(key.substr(0, key.rfind('/') + 1) + std::to_string(first + i));
  }
  return keys;
}

bool is_same(const PromptRecord& a, const PromptRecord& b) {
  return a.chain == b.chain && a.snapshot.content_name == b.snapshot.content_name;
}

class Copier {
 public:
  Copier(Backend& from, Backend& to, const CopyOptions& options, const Progress& progress)
      : from_(from),
        to_(to),
        options_(options),
        progress_(progress),
        // Bad blobs in the target are reported and removed, as in a put.
        reader_(to, BadBlobs::kRemove, options.on_warning),
        blobs_(from, to, options, progress, report_) {}

  Result<CopyReport> copy_all() {
    TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(from_, progress_));
    blobs_.expect(inventory.bytes() - inventory.total(BlobKind::kUsage).bytes);
    TQC_TRY(each<Parameters>(inventory.names(BlobKind::kParameters), true,
                             [&](const std::string& key, const Parameters& parameters) {
                               return copy_parameters(key, parameters);
                             }));
    const Inventory::Range blocks = inventory.of_kind(BlobKind::kBlock);
    for (std::size_t i = blocks.first; i < blocks.end; ++i) {
      const InventoryItem& block = inventory.item(i);
      if (has_part(block, 0)) TQC_TRY(blobs_.copy_block(block.name, block.parts.size()));
    }
    TQC_TRY(blobs_.copy_data(inventory.names(BlobKind::kData)));
    TQC_TRY(each<Snapshot>(inventory.names(BlobKind::kState), true,
                           [&](const std::string& key, const Snapshot& snapshot) {
                             return copy_state(key, snapshot);
                           }));
    TQC_TRY(
        each<Next>(inventory.names(BlobKind::kNext), true,
                   [&](const std::string& key, const Next& next) { return copy_next(key, next); }));
    return copy_prompts(inventory.names(BlobKind::kRecord), true);
  }

  Result<CopyReport> copy_some(const std::vector<std::string>& records) {
    std::uint64_t bytes = 0;
    TQC_TRY(each<PromptRecord>(records, true, [&](const std::string&, const PromptRecord& record) {
      bytes += record.bytes;
      return Result<void>();
    }));
    blobs_.expect(bytes);
    return copy_prompts(records, false);
  }

 private:
  template <class Kind>
  using Work = std::function<Result<void>(const std::string& key, const Kind& content)>;

  // Calls `work` for each good blob. `work` may call the backend.
  template <class Kind>
  Result<void> each(const std::vector<std::string>& keys, bool may_be_gone,
                    const Work<Kind>& work) {
    for (std::size_t first = 0; first < keys.size(); first += kAtOnce) {
      const auto some = std::span(keys).subspan(first, std::min(kAtOnce, keys.size() - first));
      std::vector<std::pair<std::string, Kind>> found;
      TQC_TRY(read_blobs(from_, some, [&](std::size_t i, auto blob) -> Result<void> {
        TQC_TRY_ASSIGN(auto content, blobs_.judge<Kind>(some[i], std::move(blob), may_be_gone));
        if (content) found.emplace_back(some[i], std::move(*content));
        return {};
      }));
      for (const auto& [key, content] : found) TQC_TRY(work(key, content));
    }
    return {};
  }

  // Returns false if no slot is free.
  template <class Kind>
  Result<bool> place(const std::string& key, const Kind& content,
                     const std::function<bool(const Kind&)>& is_wanted) {
    constexpr int kSlots = std::is_same_v<Kind, Snapshot> ? kStateSlots : kCandidateSlots;
    std::optional<CandidateSlot> slot;
    for (int first = 0; !slot && first < kSlots; first += kCandidateSlots) {
      TQC_TRY_ASSIGN(slot, find_or_take_slot<Kind>(to_, reader_, slots_of(key, first), is_wanted,
                                                   Content(content)));
    }
    if constexpr (std::is_same_v<Kind, Parameters>) {
      // As in a put: only records find it there.
      if (!slot) {
        const Sha256 own =
            hash_own(parse_key(key)->hash, hash_parameters(content), content.identity.model_name);
        TQC_TRY_ASSIGN(slot, find_or_take_slot<Kind>(to_, reader_, parameters_slot_keys(own),
                                                     is_wanted, Content(content)));
      }
    }
    if (!slot && std::is_same_v<Kind, Next>) return false;  // as in a put
    if (!slot) {
      blobs_.fail(key, "other content takes all slots there");
      return false;
    }
    placed_[key] = slot->key;
    slot->is_new ? blobs_.count_put(slot->bytes) : blobs_.count_existing(0);
    return true;
  }

  Result<void> copy_parameters(const std::string& key, const Parameters& parameters) {
    n_parts_.emplace(key, PartCounts(parameters.layers));
    blobs_.add_layers(parameters.layers);
    const Sha256 hash = hash_parameters(parameters);
    TQC_TRY(place<Parameters>(key, parameters, [&](const Parameters& other) {
      return other.tokens == parameters.tokens && hash_parameters(other) == hash;
    }));
    return {};
  }

  Result<void> copy_state(const std::string& key, const Snapshot& snapshot) {
    TQC_TRY(blobs_.copy_data(snapshot.data_keys));
    TQC_TRY(blobs_.flush());
    TQC_TRY_ASSIGN(const bool has_data, all_there(snapshot.data_keys));
    if (!has_data) {
      blobs_.fail(key, "its data are missing");
      return {};
    }
    const auto is_same_state = [&](const Snapshot& other) {
      return other.tail == snapshot.tail && other.content_name == snapshot.content_name &&
             other.data_keys == snapshot.data_keys;
    };
    TQC_TRY_ASSIGN(const bool is_placed, place<Snapshot>(key, snapshot, is_same_state));
    // A record contains its snapshot, too. Without a slot, no prefix of other prompts ends with it.
    if (!is_placed) placed_[key] = "";
    return {};
  }

  Result<bool> all_there(const std::vector<std::string>& keys) {
    TQC_TRY_ASSIGN(const std::vector<bool> there, to_.exists(keys));
    return std::ranges::find(there, false) == there.end();
  }

  Result<CopyReport> copy_prompts(const std::vector<std::string>& keys, bool may_be_gone) {
    TQC_TRY(each<PromptRecord>(keys, may_be_gone,
                               [&](const std::string& key, const PromptRecord& record) {
                                 return copy_prompt(key, record);
                               }));
    return report_;
  }

  Result<void> copy_prompt(const std::string& key, const PromptRecord& record) {
    TQC_TRY_ASSIGN(const bool is_there, copy_needs(record));
    if (!is_there) return fail_prompt(record, "blobs that it needs could not be copied");
    PromptRecord copy = record;
    copy.parameters_key = placed_[record.parameters_key];
    if (!record.state_key.empty()) copy.state_key = placed_[record.state_key];
    return put_record(key, copy);
  }

  // Returns whether everything that the prompt needs exists in the target.
  Result<bool> copy_needs(const PromptRecord& record) {
    TQC_TRY(copy_slot<Parameters>(record.parameters_key, [&](const auto& key, const auto& content) {
      return copy_parameters(key, content);
    }));
    if (!placed_.contains(record.parameters_key)) return false;
    const PartCounts& n_parts = n_parts_.at(record.parameters_key);
    if (!check_blob_count(record, n_parts)) return false;
    // Ends with the first block that is lost: a hostile record can claim many.
    for (std::size_t i = 0; i < record.chain.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const std::string name = block_name(record.chain[i], index);
      TQC_TRY_ASSIGN(const bool is_copied, blobs_.copy_block(name, n_parts.of(index)));
      if (!is_copied) return false;
    }
    std::vector<std::string> keys = flatten(block_keys(n_parts, 0, record.chain));
    const std::vector<std::string>& data = record.snapshot.data_keys;
    keys.insert(keys.end(), data.begin(), data.end());
    TQC_TRY(blobs_.copy_data(record.snapshot.data_keys));
    if (!record.state_key.empty()) {
      TQC_TRY(copy_slot<Snapshot>(record.state_key, [&](const auto& key, const auto& content) {
        return copy_state(key, content);
      }));
      if (!placed_.contains(record.state_key)) return false;
      if (const std::string& key = placed_[record.state_key]; !key.empty()) keys.push_back(key);
    }
    keys.push_back(placed_[record.parameters_key]);
    TQC_TRY(blobs_.flush());
    for (std::size_t i = 1; i < record.chain.size(); ++i) {
      const Sha256 &before = record.chain[i - 1], &block = record.chain[i];
      TQC_TRY(each<Next>(next_slot_keys(before), true,
                         [&](const std::string& key, const Next& next) -> Result<void> {
                           const bool is_it = hash_chain(before, next.tokens).front() == block;
                           return is_it ? copy_next(key, next) : Result<void>();
                         }));
    }
    return all_there(keys);
  }

  // Where 16 others are known, this one is left out, as in a put.
  Result<void> copy_next(const std::string& key, const Next& next) {
    if (placed_.contains(key)) return {};
    TQC_TRY(place<Next>(key, next, [&](const Next& other) { return other.tokens == next.tokens; }));
    return {};
  }

  // Copies the content of a slot, unless already done.
  template <class Kind>
  Result<void> copy_slot(const std::string& key, const Work<Kind>& work) {
    if (placed_.contains(key)) return {};
    return each<Kind>({key}, false, work);
  }

  Result<void> fail_prompt(const PromptRecord& record, const std::string& why) {
    report_.prompts_failed += 1;
    if (options_.on_warning) options_.on_warning("prompt " + record.name + ": " + why);
    return {};
  }

  Result<void> put_record(const std::string& key, const PromptRecord& record) {
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(key, Content(record)));
    TQC_TRY_ASSIGN(const PutOutcome outcome, to_.put(key, blob));
    if (outcome == PutOutcome::kExisted) {
      TQC_TRY_ASSIGN(const std::optional<PromptRecord> other, reader_.read_one<PromptRecord>(key));
      if (other && is_same(*other, record)) {
        report_.prompts_existed += 1;
        return {};
      }
      if (other && !options_.replace)
        return fail_prompt(record, "another prompt has that name there");
      TQC_TRY(to_.replace(key, blob));
    }
    report_.prompts += 1;
    blobs_.count_put(blob.size());
    return {};
  }

  Backend& from_;
  Backend& to_;
  const CopyOptions& options_;
  const Progress& progress_;
  BlobReader reader_;
  CopyReport report_;
  BlobCopier blobs_;
  std::map<std::string, std::string> placed_;  // slot keys: source -> target
  std::map<std::string, PartCounts> n_parts_;  // by the key of parameters
};

}  // namespace

Result<CopyReport> copy_store(Backend& from, Backend& to, const CopyOptions& options,
                              const Progress& progress) {
  return Copier(from, to, options, progress).copy_all();
}

Result<CopyReport> copy_prompts(Backend& from, Backend& to,
                                const std::vector<std::string>& record_keys,
                                const CopyOptions& options, const Progress& progress) {
  return Copier(from, to, options, progress).copy_some(record_keys);
}

}  // namespace tqcache::store
