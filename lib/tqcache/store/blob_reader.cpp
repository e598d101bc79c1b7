#include "tqcache/store/blob_reader.h"

#include "tqcache/base/aligned.h"
#include "tqcache/base/shared_bytes.h"

namespace tqcache::store {
namespace {

SharedBytes copy_of(ByteView value) {
  return SharedBytes(AlignedBytes(value.begin(), value.end()));
}

Result<void> judge(const std::string& key, std::size_t i, const SharedBytes& value,
                   const ContentSink& take) {
  TQC_TRY_ASSIGN(Content content, decode_blob(key, value));
  return take(i, std::move(content));
}

// Of what is bad no more than this is held until it can be removed; the rest stays.
constexpr std::size_t kMaxBadBytes = std::size_t{64} << 20;

// What only a later version can read is no damage.
bool is_damage(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated ||
         code == ErrorCode::kMismatch;
}

}  // namespace

Result<std::vector<Found>> BlobReader::read(std::span<const std::string> keys,
                                            const ContentSink& take) {
  std::vector<Found> found(keys.size(), Found::kMissing);
  std::vector<Bad> bad;
  std::size_t bad_bytes = 0;
  TQC_TRY(backend_->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return {};
    bytes_ += value->size();
    const SharedBytes bytes = copy_of(*value);
    auto judged = judge(keys[i], i, bytes, take);
    found[i] = judged ? Found::kGood : Found::kBad;
    if (judged) return {};
    if (judged.error().code == ErrorCode::kInterrupted) return judged;
    bad_bytes += bytes.size();
    bad.push_back(
        {keys[i], bad_bytes <= kMaxBadBytes ? bytes : SharedBytes(), std::move(judged).error()});
    return {};
  }));
  TQC_TRY(drop(bad));
  return found;
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
