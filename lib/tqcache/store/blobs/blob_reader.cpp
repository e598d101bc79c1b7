#include "tqcache/store/blobs/blob_reader.h"

#include <algorithm>
#include <mutex>

#include "tqcache/base/shared_bytes.h"
#include "tqcache/base/threads.h"
#include "tqcache/store/blobs/blob_memory.h"

namespace tqcache::store {
namespace {

// Of what is bad no more than this is held until it can be removed; the rest stays.
constexpr std::size_t kMaxBadBytes = std::size_t{64} << 20;

// As many as a backend has in memory at once. Each thread brings so many and looks at them, while
// the others do the same.
constexpr std::size_t kKeysAtOnce = 8;

// What only a later version can read is no damage.
bool is_damage(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated ||
         code == ErrorCode::kMismatch;
}

}  // namespace

struct BlobReader::Reading {
  const ContentSink& take;
  std::vector<Found> found;
  std::mutex mutex = {};  // of all that follows, and of `take`
  std::vector<Bad> bad = {};
  std::size_t bad_bytes = 0;

  void add_bad(const std::string& key, const SharedBytes& value, Error error) {
    bad_bytes += value.size();
    bad.push_back({key, bad_bytes <= kMaxBadBytes ? value : SharedBytes(), std::move(error)});
  }
};

Result<std::vector<Found>> BlobReader::read(std::span<const std::string> keys,
                                            const ContentSink& take) {
  Reading reading{take, std::vector<Found>(keys.size(), Found::kMissing)};
  const bool is_alone = thread_count(n_threads_) == 1;
  const std::size_t step = is_alone ? std::max(keys.size(), kKeysAtOnce) : kKeysAtOnce;
  const std::size_t n_steps = (keys.size() + step - 1) / step;
  TQC_TRY(parallel_try(n_steps, n_threads_, [&](std::size_t i) {
    const std::size_t first = i * step;
    return read_some(keys.subspan(first, std::min(step, keys.size() - first)), first, reading);
  }));
  TQC_TRY(drop(reading.bad));
  return std::move(reading.found);
}

Result<void> BlobReader::read_some(std::span<const std::string> keys, std::size_t first,
                                   Reading& reading) {
  return backend_->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return {};
    const SharedBytes bytes = memory_.copy(*value);
    auto content = decode_blob(keys[i], bytes);
    const std::lock_guard lock(reading.mutex);
    bytes_ += bytes.size();
    Result<void> judged;
    if (content) {
      judged = reading.take(first + i, *std::move(content), bytes.size());
    } else {
      judged = std::move(content).error();
    }
    reading.found[first + i] = judged ? Found::kGood : Found::kBad;
    if (judged) return {};
    if (judged.error().code == ErrorCode::kInterrupted) return judged;
    reading.add_bad(keys[i], bytes, std::move(judged).error());
    return {};
  });
}

Result<void> BlobReader::drop(const std::vector<Bad>& all) {
  for (const Bad& bad : all) {
    tell(bad.key + ": " + bad.error.message);
    if (!is_damage(bad.error.code) || bad.value.size() == 0) continue;
    TQC_TRY(backend_->remove_if_same(bad.key, bad.value.view()));
  }
  return {};
}

}  // namespace tqcache::store
