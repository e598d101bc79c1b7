#include "tqcache/store/blobs/blob_copier.h"

#include <algorithm>

#include "tqcache/store/blobs/key_parts.h"

namespace tqcache::store {
namespace {

// Values that are in memory at a time, beside those that wait to be put.
constexpr std::size_t kValuesAtOnce = 8;

}  // namespace

Result<std::vector<std::string>> BlobCopier::missing_there(const std::vector<std::string>& keys) {
  TQC_TRY_ASSIGN(const std::vector<bool> there, to_.exists(keys));
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (there[i]) {
      count_existing(0);
    } else {
      missing.push_back(keys[i]);
    }
  }
  return missing;
}

Result<void> BlobCopier::copy_block(const std::string& name, std::size_t n_parts) {
  if (done_.contains(name)) return {};
  std::vector<std::string> keys;
  for (std::size_t part = 0; part < n_parts; ++part) {
    keys.push_back(part_key(name, static_cast<int>(part)));
  }
  TQC_TRY_ASSIGN(const std::vector<std::string> missing, missing_there(keys));
  done_.insert(name);
  if (missing.empty()) return {};
  std::vector<Outbox::Value> parts;
  TQC_TRY(
      read_blobs(from_, missing, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
        const ByteView bytes = blob ? blob->bytes : ByteView();
        TQC_TRY_ASSIGN(const auto block, judge<Block>(missing[i], std::move(blob), false));
        if (!block) return {};
        if (static_cast<std::size_t>(block->n_parts) != n_parts) {
          fail(missing[i], "a block of " + std::to_string(block->n_parts) + " parts");
          return {};
        }
        parts.push_back({missing[i], SharedBytes(AlignedBytes(bytes.begin(), bytes.end()))});
        return {};
      }));
  if (parts.size() != missing.size()) return {};
  for (const Outbox::Value& part : parts) count_put(part.bytes.size());
  return outbox_.add_block(std::move(parts));
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
    std::vector<Outbox::Value> values;
    TQC_TRY(read_blobs(
        from_, missing, [&](std::size_t i, std::optional<ReadBlob> blob) -> Result<void> {
          const ByteView bytes = blob ? blob->bytes : ByteView();
          TQC_TRY_ASSIGN(const auto data, judge<Data>(missing[i], std::move(blob), false));
          if (data)
            values.push_back({missing[i], SharedBytes(AlignedBytes(bytes.begin(), bytes.end()))});
          return {};
        }));
    for (Outbox::Value& value : values) {
      count_put(value.bytes.size());
      TQC_TRY(outbox_.add(std::move(value)));
    }
  }
  return {};
}

Result<void> BlobCopier::flush() { return outbox_.flush(); }

void BlobCopier::fail(const std::string& key, const std::string& why) {
  if (!failed_.insert(key).second) return;
  report_.blobs_failed += 1;
  const std::string message = why.starts_with(key) ? why : key + ": " + why;
  if (options_.on_trouble) options_.on_trouble(message);
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

}  // namespace tqcache::store
