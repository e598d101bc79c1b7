// Removal of everything that one tenant has stored.
//
// Spec: docs/reference/store.md, "Forgetting a tenant".

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/upkeep.h"

namespace tqcache::store {
namespace {

// Keys tell a tenant's blobs only to those who have the salt: every hash begins with it. So the
// parameters come first, whose contents and the salt give their own keys and the roots of chains;
// then blocks by their index, each of which names the hash before it; then what stands behind them.
class Forgetting {
 public:
  Forgetting(Backend& backend, const Inventory& inventory, std::span<const std::string> salts,
             const Progress& progress)
      : backend_(backend), inventory_(inventory), salts_(salts), progress_(progress) {}

  // Indices of the tenant's items, in the order of removal: what was found last goes first, so that
  // the rest can be found again after an interruption.
  Result<std::vector<std::uint32_t>> run(ForgetReport& report) {
    TQC_TRY(find_parameters());
    TQC_TRY(find_blocks());
    TQC_TRY(find_behind_blocks());
    TQC_TRY(find_records(report));
    TQC_TRY(find_data());
    report.unread = unread_;
    std::ranges::reverse(mine_);
    return std::move(mine_);
  }

 private:
  // Calls use(item index, content) for one blob of each item of this kind that `wanted` accepts.
  template <class Kind, class Wanted, class Use>
  Result<void> read_each(BlobKind kind, const Wanted& wanted, const Use& use) {
    const Inventory::Range range = inventory_.of_kind(kind);
    std::vector<std::uint32_t> items;
    std::vector<std::string> keys;
    for (std::size_t i = range.first; i < range.end; ++i) {
      if (!wanted(inventory_.item(i))) continue;
      items.push_back(static_cast<std::uint32_t>(i));
      keys.push_back(keys_of(inventory_.item(i)).front());
    }
    return read_blobs(backend_, keys,
                      [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
                        if (progress_ && !progress_(++n_read_, 0)) return interrupted_error();
                        if (!blob) return {};  // removed meanwhile
                        auto content = content_of<Kind>(keys[i], std::move(*blob));
                        if (content) return use(items[i], *content);
                        if (content.error().code == ErrorCode::kNoKey)
                          return std::move(content).error();
                        ++unread_;
                        return {};
                      });
  }

  std::string_view hash_of(std::uint32_t item) const {
    return parse_key(inventory_.item(item).name)->hash;
  }

  Result<void> find_parameters() {
    const auto use = [&](std::uint32_t item, const Parameters& parameters) -> Result<void> {
      const Sha256 settings = hash_parameters(parameters);
      for (const std::string& salt : salts_) {
        const Sha256 name_space = hash_namespace({parameters.identity, salt});
        const Sha256 first = hash_first(name_space, parameters.tokens);
        const Sha256 root = hash_root(name_space, settings);
        const std::string own =
            to_hex(hash_own(to_hex(first), settings, parameters.identity.model_name));
        const bool is_mine = hash_of(item) == to_hex(first) || hash_of(item) == own;
        if (is_mine) mine_.push_back(item);
        // Equal parameters of another tenant do not tell whose they are, and those of older
        // versions can have keys that need more tokens. But a block that follows from them and the
        // salt does.
        const bool has_block =
            parameters.tokens.size() == kBlockTokens &&
            inventory_.find_block(to_hex(hash_chain(root, parameters.tokens).front()));
        if (!is_mine && !has_block) continue;
        name_spaces_.insert(name_space);
        hashes_.insert(to_hex(root));
      }
      return {};
    };
    return read_each<Parameters>(BlobKind::kParameters, kAll, use);
  }

  Result<void> find_blocks() {
    return read_each<Block>(BlobKind::kBlock, kAll,
                            [&](std::uint32_t item, const Block& block) -> Result<void> {
                              if (hashes_.count(to_hex(block.parent)) == 0) return {};
                              const std::string& name = inventory_.item(item).name;
                              hashes_.insert(name.substr(name.rfind('/') + 1));
                              mine_.push_back(item);
                              return {};
                            });
  }

  // Snapshots, and the tokens of blocks that follow.
  Result<void> find_behind_blocks() {
    const auto is_behind = [&](const InventoryItem& item) {
      return hashes_.count(std::string(parse_key(item.name)->hash)) > 0;
    };
    const Inventory::Range next = inventory_.of_kind(BlobKind::kNext);
    for (std::size_t i = next.first; i < next.end; ++i) {
      if (is_behind(inventory_.item(i))) mine_.push_back(static_cast<std::uint32_t>(i));
    }
    const Inventory::Range states = inventory_.of_kind(BlobKind::kState);
    for (std::size_t i = states.first; i < states.end; ++i) {
      if (is_behind(inventory_.item(i))) mine_.push_back(static_cast<std::uint32_t>(i));
    }
    return read_each<Snapshot>(BlobKind::kState, is_behind,
                               [&](std::uint32_t, const Snapshot& snapshot) -> Result<void> {
                                 data_.insert(snapshot.data_keys.begin(), snapshot.data_keys.end());
                                 return {};
                               });
  }

  Result<void> find_records(ForgetReport& report) {
    const auto is_mine = [&](const InventoryItem& item) {
      return std::ranges::any_of(salts_, [&](const std::string& salt) {
        return item.name.starts_with(record_prefix(salt));
      });
    };
    const Inventory::Range records = inventory_.of_kind(BlobKind::kRecord);
    for (std::size_t i = records.first; i < records.end; ++i) {
      if (!is_mine(inventory_.item(i))) continue;
      mine_.push_back(static_cast<std::uint32_t>(i));
      ++report.prompts;
    }
    return read_each<PromptRecord>(
        BlobKind::kRecord, is_mine, [&](std::uint32_t, const PromptRecord& record) -> Result<void> {
          const std::vector<std::string>& keys = record.snapshot.data_keys;
          data_.insert(keys.begin(), keys.end());
          return {};
        });
  }

  // Also data that no snapshot names, as a killed put leaves them.
  Result<void> find_data() {
    const Inventory::Range range = inventory_.of_kind(BlobKind::kData);
    for (std::size_t i = range.first; i < range.end; ++i) {
      if (data_.count(inventory_.item(i).name) > 0) mine_.push_back(static_cast<std::uint32_t>(i));
    }
    const auto is_unknown = [&](const InventoryItem& item) { return data_.count(item.name) == 0; };
    return read_each<Data>(BlobKind::kData, is_unknown,
                           [&](std::uint32_t item, const Data& data) -> Result<void> {
                             const Bytes content = data_content(data.sections);
                             for (const Sha256& name_space : name_spaces_) {
                               if (data_key(name_space, content) != inventory_.item(item).name)
                                 continue;
                               mine_.push_back(item);
                               break;
                             }
                             return {};
                           });
  }

  static constexpr auto kAll = [](const InventoryItem&) { return true; };

  Backend& backend_;
  const Inventory& inventory_;
  std::span<const std::string> salts_;
  const Progress& progress_;
  std::uint64_t n_read_ = 0;
  std::uint64_t unread_ = 0;
  std::vector<std::uint32_t> mine_;
  std::set<Sha256> name_spaces_;
  std::set<std::string> hashes_;  // of roots and blocks, in hexadecimal
  std::set<std::string> data_;    // keys of data blobs
};

}  // namespace

Result<ForgetReport> forget(Backend& backend, std::span<const std::string> salts, bool dry_run,
                            const Progress& progress) {
  ForgetReport report;
  const std::set<std::string> different(salts.begin(), salts.end());
  const std::vector<std::string> each(different.begin(), different.end());
  TQC_TRY_ASSIGN(const Inventory inventory, Inventory::take(backend));
  TQC_TRY_ASSIGN(const std::vector<std::uint32_t> items,
                 Forgetting(backend, inventory, each, progress).run(report));
  for (const std::uint32_t i : items) {
    const InventoryItem& item = inventory.item(i);
    KindTotal& removed = report.removed[static_cast<std::size_t>(item.kind)];
    removed.bytes += item.bytes;
    for (const std::string& key : keys_of(item)) {
      ++removed.blobs;
      if (!dry_run) TQC_TRY(backend.remove(key));
    }
  }
  return report;
}

}  // namespace tqcache::store
