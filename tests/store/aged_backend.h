#pragma once
// A store in memory whose clock the test sets, and in whose work it can take part.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "support/cache_builder.h"
#include "tqcache/cache.h"
#include "tqcache/hash.h"
#include "tqcache/store.h"

namespace tqcache::test {

class AgedBackend : public store::Backend {
 public:
  struct Value {
    Bytes bytes;
    std::chrono::seconds idle{0};
  };

  AgedBackend() : Backend("aged:", {}) {}

  std::map<std::string, Value> values;
  bool reading_is_use = false;                              // as in Redis
  std::function<void(const std::string& key)> on_remove{};  // before it goes

  void age_all(std::chrono::seconds by) {
    for (auto& [key, value] : values) value.idle += by;
  }
  void age(const std::string& prefix, std::chrono::seconds to) {
    for (auto& [key, value] : values) {
      if (key.starts_with(prefix)) value.idle = to;
    }
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [key, value] : values) sum += value.bytes.size();
    return sum;
  }
  std::size_t count(const std::string& prefix) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        values, [&](const auto& each) { return each.first.starts_with(prefix); }));
  }
  // One byte of it becomes another.
  void damage(const std::string& key) { values.at(key).bytes.back() ^= std::byte{1}; }
  // As a later version of this program might write it.
  void make_later(const std::string& key) {
    Bytes& blob = values.at(key).bytes;
    blob[8] = std::byte{2};
    const std::uint64_t checksum = xxh3_64(ByteView(blob).first(56));
    std::memcpy(blob.data() + 56, &checksum, sizeof checksum);
  }

 private:
  Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> blobs) override {
    const std::lock_guard lock(mutex_);
    std::vector<store::PutOutcome> outcomes;
    for (const store::Blob& blob : blobs) {
      const bool is_new =
          values.try_emplace(blob.key, Value{Bytes(blob.value.begin(), blob.value.end())}).second;
      outcomes.push_back(is_new ? store::PutOutcome::kStored : store::PutOutcome::kExisted);
    }
    return outcomes;
  }
  Result<void> do_get(std::span<const std::string> keys, const store::ValueSink& sink) override {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = values.find(keys[i]);
      const bool is_there = found != values.end();
      if (is_there && reading_is_use) found->second.idle = std::chrono::seconds(0);
      TQC_TRY(sink(i, is_there ? std::optional<ByteView>(found->second.bytes) : std::nullopt));
    }
    return {};
  }
  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    std::vector<bool> there;
    for (const std::string& key : keys) there.push_back(values.contains(key));
    return there;
  }
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    const std::lock_guard lock(mutex_);
    if (on_remove) on_remove(key);
    const auto found = values.find(key);
    if (found == values.end()) return false;
    if (only && !std::ranges::equal(found->second.bytes, *only)) return false;
    values.erase(found);
    return true;
  }
  Result<void> do_list(const std::string& prefix, const store::EntrySink& sink) override {
    std::vector<store::Entry> entries;
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : values) {
      if (key.starts_with(prefix)) entries.push_back({key, value.bytes.size(), value.idle});
    }
    for (const store::Entry& entry : entries) TQC_TRY(sink(entry));
    return {};
  }
  Result<void> do_touch(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
      const auto found = values.find(key);
      if (found != values.end()) found->second.idle = std::chrono::seconds(0);
    }
    return {};
  }

  std::recursive_mutex mutex_;  // a test's own part in the work may call again
};

// The first `n_tokens` tokens of a prompt that goes another way after `n_shared` of them: so many
// token blocks of the two are the same.
inline cache::Cache branch(const cache::Cache& trunk, std::int64_t n_tokens, std::int64_t n_shared,
                           std::int32_t way) {
  cache::Cache cache = must(cache::truncate(trunk, n_tokens));
  for (auto i = static_cast<std::size_t>(n_shared); i < cache.tokens.size(); ++i) {
    cache.tokens[i] = (cache.tokens[i] + way) % 150000;
  }
  return cache;
}

// Of two layers, so that a block has sections; small, so that tests are quick.
inline cache::Cache trunk_of(std::int64_t n_tokens, std::uint64_t seed = 1) {
  return CacheBuilder(n_tokens, seed).dense({1, 32}).dense({1, 32}).build();
}

// Of so large heads that each token block stands in more than one blob.
inline cache::Cache wide_trunk_of(std::int64_t n_tokens) {
  return CacheBuilder(n_tokens).dense({8, 256}).dense({8, 256}).dense({8, 256}).build();
}

}  // namespace tqcache::test
