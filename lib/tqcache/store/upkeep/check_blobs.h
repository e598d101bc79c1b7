#pragma once
// store/upkeep/check_blobs.h: reads blobs, tells those that are damaged, and takes them away if asked to.
//
// Only for the sources of store.

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "tqcache/base/progress.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/upkeep/check.h"

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

}  // namespace tqcache::store
