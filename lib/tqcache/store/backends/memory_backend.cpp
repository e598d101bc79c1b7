#include <algorithm>
#include <map>
#include <mutex>

#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {
namespace {

class MemoryBackend : public Backend {
 public:
  explicit MemoryBackend(const BackendOptions& options) : Backend("memory:", options) {}

 private:
  // Shared, so that readers may use a value that is being removed.
  struct Value {
    std::shared_ptr<const Bytes> bytes;
    std::int64_t last_use = 0;
  };

  Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) override {
    std::vector<PutOutcome> outcomes;
    for (const Blob& blob : blobs) {
      const std::lock_guard lock(mutex_);
      const bool existed = values_.contains(blob.key);
      if (!existed) values_.emplace(blob.key, Value{copy_of(blob.value), ++n_uses_});
      outcomes.push_back(existed ? PutOutcome::kExisted : PutOutcome::kStored);
    }
    return outcomes;
  }

  Result<void> do_replace(const Blob& blob) override {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(blob.key, Value{copy_of(blob.value), ++n_uses_});
    return {};
  }

  Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::shared_ptr<const Bytes> value = find(keys[i]);
      TQC_TRY(sink(i, value ? std::optional<ByteView>(*value) : std::nullopt));
    }
    return {};
  }

  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    std::vector<bool> found;
    for (const std::string& key : keys) found.push_back(find(key) != nullptr);
    return found;
  }

  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    if (only && !std::ranges::equal(*found->second.bytes, *only)) return false;
    values_.erase(found);
    return true;
  }

  Result<void> do_list(const std::string& prefix, const EntrySink& sink) override {
    for (const Entry& entry : entries(prefix)) TQC_TRY(sink(entry));
    return {};
  }

  Result<void> do_touch(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
      const auto found = values_.find(key);
      if (found != values_.end()) found->second.last_use = ++n_uses_;
    }
    return {};
  }

  static std::shared_ptr<const Bytes> copy_of(ByteView value) {
    return std::make_shared<const Bytes>(value.begin(), value.end());
  }

  std::shared_ptr<const Bytes> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : found->second.bytes;
  }

  std::vector<Entry> entries(const std::string& prefix) {
    const std::lock_guard lock(mutex_);
    std::vector<Entry> all;
    for (auto i = values_.lower_bound(prefix); i != values_.end() && i->first.starts_with(prefix);
         ++i) {
      all.push_back(
          {i->first, i->second.bytes->size(), std::chrono::seconds(n_uses_ - i->second.last_use)});
    }
    return all;
  }

  std::mutex mutex_;
  std::map<std::string, Value> values_;
  std::int64_t n_uses_ = 0;  // its clock: one second for every value put or touched
};

}  // namespace

std::unique_ptr<Backend> make_memory_backend(const BackendOptions& options) {
  return std::make_unique<MemoryBackend>(options);
}

}  // namespace tqcache::store
