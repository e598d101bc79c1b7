#pragma once
// store/blobs/outbox.h: blobs on their way into a store, many at a time, in an order that readers can
// rely on, and no more of them in memory than a bound.
//
// Only for the sources of store.

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/store/backend.h"

namespace tqcache::store {

// Blobs are put when there are so many bytes of them, or half as many and the engine has nothing to
// do. While they are, so many more are gathered.
inline constexpr std::uint64_t kOutboxBytes = std::uint64_t{32} << 20;

// Threads: one at a time.
class Outbox {
 public:
  explicit Outbox(Backend& backend) : backend_(&backend) {}

  // The blobs of one block. The first one stands for all: it is put when the engine has
  // acknowledged the others.
  // Errors: those of the backend, for whatever was put since. Nothing may be added after one.
  struct Value {
    std::string key;
    SharedBytes bytes;
  };
  Result<void> add_block(std::vector<Value> parts);

  // One that nothing depends on.
  Result<void> add(Value value);

  // Returns when all are acknowledged.
  Result<void> flush();

  std::int64_t new_blocks() const { return new_blocks_; }  // whose first blob was not there before
  std::uint64_t bytes() const { return bytes_; }           // of all that were added
  std::uint64_t new_bytes() const { return new_bytes_; }   // of those that were not there before

 private:
  struct Waiting {
    Value value;
    bool is_first = false;
  };
  void push(std::vector<Waiting>& to, Value value, bool is_first);
  using Outcomes = Result<std::vector<PutOutcome>>;
  bool is_idle() const;
  Result<void> put_if_many();
  Result<void> begin_put();
  Result<void> end_put();

  Backend* backend_;
  std::vector<Waiting> ready_;  // to be put with the next ones
  std::vector<Waiting> after_;  // and these once `ready_` is there
  // On their way, by a thread of their own, which sees no more of this than their bytes.
  std::vector<Waiting> going_;
  std::future<Outcomes> put_;
  std::uint64_t waiting_bytes_ = 0;
  std::int64_t new_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0;
};

}  // namespace tqcache::store
