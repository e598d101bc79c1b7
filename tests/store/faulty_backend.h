#pragma once
// store/faulty_backend.h: a store in memory that fails as real backends do.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/store.h"

namespace tqcache::test {

class FaultyBackend : public store::Backend {
 public:
  FaultyBackend() : Backend("faulty:", {}), memory_(must(store::open_backend("memory:", {}))) {}

  // Every call fails with this from now on; nullopt: none does.
  void fail(std::optional<Error> error) {
    set([&] { error_ = std::move(error); });
  }
  // The same of put() alone, after so many more blobs.
  void fail_puts_after(int n_blobs, Error error) {
    set([&] { puts_left_ = n_blobs, put_error_ = std::move(error); });
  }
  // put() throws from now on.
  void run_out_of_memory() {
    set([&] { out_of_memory_ = true; });
  }
  // What get() brings from now on under keys that begin so has a byte changed.
  void spoil(std::string prefix) {
    set([&] { spoiled_ = std::move(prefix); });
  }
  // put() waits until open_gate().
  void close_gate() {
    set([&] { gate_ = false; });
  }
  void open_gate() {
    set([&] { gate_ = true; });
  }

  std::vector<std::string> keys(const std::string& prefix) {
    std::vector<std::string> keys;
    must(memory_->list(prefix, [&](const store::Entry& entry) -> Result<void> {
      keys.push_back(entry.key);
      return {};
    }));
    return keys;
  }
  void lose(const std::string& key) { must(memory_->remove(key)); }

 private:
  template <class Change>
  void set(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  Result<void> check() const {
    const std::lock_guard lock(mutex_);
    if (error_) return *error_;
    return {};
  }
  Result<void> check_put(int n_blobs) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return gate_; });
    if (out_of_memory_) throw std::bad_alloc();
    if (!put_error_) return {};
    puts_left_ -= n_blobs;
    if (puts_left_ < 0) return *put_error_;
    return {};
  }

  Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> blobs) override {
    TQC_TRY(check());
    TQC_TRY(check_put(static_cast<int>(blobs.size())));
    return memory_->put(blobs);
  }
  Result<void> do_get(std::span<const std::string> keys, const store::ValueSink& sink) override {
    TQC_TRY(check());
    return memory_->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
      if (!value || spoiled_.empty() || !keys[i].starts_with(spoiled_)) return sink(i, value);
      Bytes other(value->begin(), value->end());
      other[other.size() / 2] ^= std::byte{1};
      return sink(i, other);
    });
  }
  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    TQC_TRY(check());
    return memory_->exists(keys);
  }
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    TQC_TRY(check());
    return only ? memory_->remove_if_same(key, *only) : memory_->remove(key);
  }
  Result<void> do_list(const std::string& prefix, const store::EntrySink& sink) override {
    TQC_TRY(check());
    return memory_->list(prefix, sink);
  }
  Result<void> do_touch(std::span<const std::string> keys) override {
    TQC_TRY(check());
    return memory_->touch(keys);
  }

  std::unique_ptr<store::Backend> memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> error_, put_error_;
  int puts_left_ = 0;
  std::string spoiled_;
  bool gate_ = true, out_of_memory_ = false;
};

}  // namespace tqcache::test
