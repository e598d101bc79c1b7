#pragma once
// store/library/background_put.h: a thread that puts the blocks of a cache while a model extends
// it.
//
// The caller shows the cache as it grows. Final blocks are copied or shared, and a thread puts
// them. The queue is bounded: while it is full, blocks stay in the cache and are taken later, so a
// slow store costs neither time nor memory. After the first error no more blobs are put.
//
// For a model with sliding windows or recurrent state, snapshots are put, too, because its prompts
// can only be resumed from snapshots: at every multiple of 4,096 tokens, at the last block boundary
// before the last token of a prompt, and at the last one before the end of the session. Snapshots
// are taken only at block boundaries. Prompts are read in chunks that end there, so a model that
// resumes from a snapshot computes the rest in the same chunks as a model that reads everything,
// and gets the same bits.
//
// Spec: docs/reference/store.md, "Generating from a store".

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/store.h"

namespace tqcache::store {

struct BackgroundPutOptions {
  std::string salt = {};
  std::uint64_t queue_bytes = std::uint64_t{64} << 20;  // may be exceeded by one token block
  std::int64_t checkpoint_tokens = 4096;                // a multiple of 256
};

// Threads: one at a time.
class BackgroundPut {
 public:
  // `backend` must outlive it.
  BackgroundPut(Backend& backend, BackgroundPutOptions options);
  // Drops queued blocks.
  ~BackgroundPut();
  BackgroundPut(const BackgroundPut&) = delete;
  BackgroundPut& operator=(const BackgroundPut&) = delete;

  // Announces that the cache will continue this prefix, which the store has.
  // Requires: called before watch().
  void begin(const LoadedPrefix& prefix);

  // Shows the cache, after every token or chunk or as often as wanted. Cheap unless a token block
  // has become final.
  //
  // Requires: the cache is consistent: no append is in progress.
  void watch(const cache::Cache& cache);

  // Marks the end of a prompt: the last snapshot will be put.
  void end_prompt(const cache::Cache& cache);

  // Waits until everything is put, for at most `limit` and while `goes_on` returns true, and then
  // for the current call to the backend. No call may follow.
  BackgroundPutReport finish(const cache::Cache& cache, std::chrono::milliseconds limit,
                             const std::function<bool()>& goes_on);

  // What the backend has acknowledged so far. left_blocks is not counted.
  BackgroundPutReport report() const;

 private:
  class Worker;
  struct Checkpoint;
  void take_checkpoint(const cache::Cache& cache);
  void collect(const cache::Cache& cache);
  void open_chain(const cache::Cache& cache);
  void collect_block(const cache::Cache& cache);
  std::int64_t n_ready(const cache::Cache& cache) const;

  BackgroundPutOptions options_;
  std::optional<Parameters> parameters_;  // once a block is final
  bool is_open_ = false;                  // the thread has opened the chain
  std::int64_t n_begun_ = 0;              // blocks of the prefix that the session started with
  std::int64_t next_block_ = 0;
  std::int64_t seen_tokens_ = 0;
  std::unique_ptr<Checkpoint> checkpoint_;  // the last snapshot, until it is put or replaced
  std::unique_ptr<Worker> worker_;
};

}  // namespace tqcache::store
