#include "tqcache/store/upkeep/check_blobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/read_blobs.h"

namespace tqcache::store {
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

}  // namespace tqcache::store
