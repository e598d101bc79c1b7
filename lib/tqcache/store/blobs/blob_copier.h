#pragma once
// store/blobs/blob_copier.h: blobs that stand under the same key in every store: token blocks and
// data.
//
// Only for the sources of store.

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
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/outbox.h"
#include "tqcache/store/blobs/read_blobs.h"
#include "tqcache/store/upkeep/copy.h"

namespace tqcache::store {

class BlobCopier {
 public:
  // All must outlive it.
  BlobCopier(Backend& from, Backend& to, const CopyOptions& options, const Progress& progress,
             CopyReport& report)
      : from_(from),
        to_(to),
        options_(options),
        progress_(progress),
        report_(report),
        outbox_(to) {}

  // Of how many bytes progress is told.
  void expect(std::uint64_t bytes) { n_expected_ = bytes; }

  // Each is copied once, however often it is asked for. All parts, or none: a block that lacks one
  // where it is, or holds a damaged one, is left out.
  Result<void> copy_block(const std::string& name, std::size_t n_parts);
  Result<void> copy_data(const std::vector<std::string>& keys);
  // Returns when all is acknowledged.
  Result<void> flush();

  // The content, if the blob is there and good; otherwise it is told, once. Nothing is told of what
  // `may_be_gone`: it was listed, and may have been removed since.
  template <class Kind>
  Result<std::optional<Kind>> judge(const std::string& key, std::optional<ReadBlob> blob,
                                    bool may_be_gone) {
    if (progress_ && !progress_(n_done_, n_expected_)) {
      return interrupted_error();
    }
    if (!blob) {
      if (!may_be_gone) fail(key, "missing");
      return std::optional<Kind>();
    }
    Result<Kind> content = content_of<Kind>(key, std::move(*blob));
    if (content) return std::optional(std::move(content).value());
    fail(key, content.error().message);
    return std::optional<Kind>();
  }

  // Tells that something could not be copied, once.
  void fail(const std::string& key, const std::string& why);
  void count_put(std::uint64_t bytes);
  void count_existing(std::uint64_t bytes);

 private:
  Result<std::vector<std::string>> missing_there(const std::vector<std::string>& keys);

  Backend& from_;
  Backend& to_;
  const CopyOptions& options_;
  const Progress& progress_;
  CopyReport& report_;
  Outbox outbox_;
  std::uint64_t n_done_ = 0, n_expected_ = 0;
  std::unordered_set<std::string> done_;  // names of blocks, keys of data
  std::set<std::string> failed_;
};

}  // namespace tqcache::store
