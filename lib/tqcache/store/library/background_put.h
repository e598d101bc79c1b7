#pragma once
// store/library/background_put.h: puts the token blocks of a cache while a model works on it.
//
// Whoever runs the model shows the cache as it grows; what has become final is taken from it, and a
// thread of its own puts it. The queue between the two is bounded: while it is full, blocks stay in
// the cache and are taken later, so a slow store costs neither time nor memory. After the first
// error nothing more is put.
//
// Of a model that keeps windows or state without attention, states are put, too, for a prompt can
// only go on where there is one: at every multiple of 4,096 tokens, and at the last token block's
// end before a prompt's last token and before the end of everything. They are taken at ends of
// token blocks alone: a prompt is read in chunks that end there, so who goes on from such a state
// computes the rest in the same chunks as who reads all of it, and has the same bits.
//
// Spec: docs/reference/store.md, "Generating from a store".

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/library/library.h"

namespace tqcache::store {

struct BackgroundPutOptions {
  std::string salt = {};
  std::uint64_t queue_bytes = std::uint64_t{64} << 20;  // one token block more may be queued
  std::int64_t checkpoint_tokens = 4096;                // a multiple of 256
};

struct BackgroundPutReport {
  std::int64_t new_blocks = 0;      // token blocks that the store did not have
  std::int64_t states = 0;          // that were put, or were there
  std::uint64_t new_bytes = 0;      // of blobs
  std::int64_t left_blocks = 0;     // final ones that were not put, since it ended before
  std::optional<Error> error = {};  // after which nothing was put
};

// Threads: one calls.
class BackgroundPut {
 public:
  // `backend` must outlive it.
  BackgroundPut(Backend& backend, BackgroundPutOptions options);
  // Ends it: what is queued is not put.
  ~BackgroundPut();
  BackgroundPut(const BackgroundPut&) = delete;
  BackgroundPut& operator=(const BackgroundPut&) = delete;

  // The cache that will be shown goes on from this, which the store has.
  // Requires: nothing was shown yet.
  void begin(const Beginning& beginning);

  // Shows the cache: after every token or chunk, and as often as one likes. It costs nothing unless
  // a token block has become final.
  // Requires: the cache is whole: nothing is half appended.
  void watch(const cache::Cache& cache);

  // A prompt ends here: the last state that was taken is worth being kept.
  void end_prompt(const cache::Cache& cache);

  // Waits until all is put, for `limit` at most, and as long as `goes_on` says true; then for the
  // one call to the engine that is on its way. Nothing can be shown any more.
  BackgroundPutReport finish(const cache::Cache& cache, std::chrono::milliseconds limit,
                             const std::function<bool()>& goes_on);

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
  bool is_open_ = false;                  // the thread knows the chain
  std::int64_t n_begun_ = 0;              // blocks that the session began with
  std::int64_t next_block_ = 0;
  std::int64_t seen_tokens_ = 0;
  std::unique_ptr<Checkpoint> checkpoint_;  // the last state taken, until it is put or replaced
  std::unique_ptr<Worker> worker_;
};

}  // namespace tqcache::store
