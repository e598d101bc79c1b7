#pragma once
// A store in memory that can be made to lose things, to give other bytes, and to fail.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/library_fixture.h"
#include "tqcache/store.h"

namespace tqcache::test {

class AlteredBackend : public store::Backend {
 public:
  AlteredBackend() : Backend("memory:", {}), inner_(open_store()) {}

  // Replaces the value, as if the backend had damaged it.
  void give(const std::string& key, Bytes value) {
    (void)must(inner_->remove(key));
    must(inner_->put(key, value));
  }
  Bytes value(const std::string& key) { return must(inner_->get(key)).value(); }
  store::Backend& inner() { return *inner_; }

  // Called before each of these with its keys.
  std::function<void(const std::vector<std::string>&)> before_put, before_exists, before_get;
  Result<void> all_fail = {}, removals_fail = {};
  bool is_touched_cheaply = true;
  std::atomic<std::size_t> n_gets = 0, n_exists = 0;  // calls, of any thread
  std::size_t n_removals = 0;
  std::vector<std::vector<std::string>> puts;  // keys of each call
  std::vector<std::string> touched;

  bool touches_cheaply() const override { return is_touched_cheaply; }

 private:
  Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> blobs) override {
    TQC_TRY(all_fail);
    std::vector<std::string> keys;
    for (const store::Blob& blob : blobs) keys.push_back(blob.key);
    if (before_put) before_put(keys);
    puts.push_back(std::move(keys));
    return inner_->put(blobs);
  }
  Result<void> do_get(std::span<const std::string> keys, const store::ValueSink& sink) override {
    TQC_TRY(all_fail);
    ++n_gets;
    if (before_get) before_get({keys.begin(), keys.end()});
    return inner_->get(keys, sink);
  }
  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    TQC_TRY(all_fail);
    ++n_exists;
    if (before_exists) before_exists({keys.begin(), keys.end()});
    return inner_->exists(keys);
  }
  Result<void> do_replace(const store::Blob& blob) override {
    TQC_TRY(all_fail);
    if (before_put) before_put({blob.key});
    puts.push_back({blob.key});
    return inner_->replace(blob.key, blob.value);
  }
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    TQC_TRY(all_fail);
    ++n_removals;
    TQC_TRY(removals_fail);
    return only ? inner_->remove_if_same(key, *only) : inner_->remove(key);
  }
  Result<void> do_list(const std::string& prefix, const store::EntrySink& sink) override {
    TQC_TRY(all_fail);
    return inner_->list(prefix, sink);
  }
  Result<void> do_touch(std::span<const std::string> keys) override {
    TQC_TRY(all_fail);
    touched.insert(touched.end(), keys.begin(), keys.end());
    return inner_->touch(keys);
  }

  std::unique_ptr<store::Backend> inner_;
};

}  // namespace tqcache::test
