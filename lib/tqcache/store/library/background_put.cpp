#include "tqcache/store/library/background_put.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <variant>

#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/library/chain_writer.h"
#include "tqcache/store/library/put_source.h"

namespace tqcache::store {
namespace {

using cache::kTokenBlock;
using Ids = std::vector<std::int32_t>;

// Opens the chain after the token blocks that the store has.
struct OpenJob {
  Parameters parameters;
  Ids tokens;
};

struct BlockJob {
  Ids tokens;
  std::vector<RawSection> sections;
  std::vector<cache::MediaSpan> media;
};

using Job = std::variant<OpenJob, BlockJob, StatePieces>;

std::uint64_t byte_count(const Job& job) {
  if (const auto* block = std::get_if<BlockJob>(&job)) return total_bytes(block->sections);
  if (const auto* snapshot = std::get_if<StatePieces>(&job)) return total_bytes(snapshot->sections);
  return 0;
}

// Executes the jobs in order.
class BackgroundPutter {
 public:
  BackgroundPutter(Backend& backend, std::string salt)
      : backend_(backend), salt_(std::move(salt)) {}

  Result<void> run(Job job) {
    return std::visit([this](auto& each) { return put(std::move(each)); }, job);
  }

  // The number of blocks that the backend has acknowledged or already had.
  std::int64_t n_blocks() const { return n_blocks_; }
  std::int64_t new_blocks() const { return writer_ ? writer_->new_blocks() : 0; }
  std::uint64_t new_bytes() const { return writer_ ? writer_->new_bytes() : 0; }
  std::int64_t states() const { return states_; }

 private:
  Result<void> put(OpenJob job) {
    TQC_TRY_ASSIGN(SectionStorer storer, SectionStorer::make());
    storer_.emplace(std::move(storer));
    identity_ = job.parameters.identity;
    layers_ = job.parameters.layers;
    hash_ = hash_parameters(job.parameters);
    const std::span<const std::int32_t> tokens(job.tokens);
    TQC_TRY_ASSIGN(writer_, ChainWriter::open(backend_, salt_, std::move(job.parameters)));
    for (std::size_t at = 0; at < tokens.size(); at += kTokenBlock) {
      TQC_TRY(writer_->skip_block(tokens.subspan(at, kTokenBlock)));
    }
    return {};
  }

  // Flushes each block immediately, so that the end of a session waits for at most one block.
  Result<void> put(BlockJob job) {
    TQC_TRY(
        writer_->put_block(job.tokens, store_all(std::move(job.sections)), std::move(job.media)));
    TQC_TRY(writer_->flush());
    n_blocks_ = writer_->n_blocks();
    return {};
  }

  Result<void> put(StatePieces pieces) {
    if (!is_of_chain(pieces.snapshot)) return {};
    TQC_TRY(writer_->put_snapshot(pieces.snapshot, store_all(std::move(pieces.sections))));
    ++states_;
    return {};
  }

  // A window may be quantized for the first time after the prefix of the session. It then has a
  // mean that the parameters of the chain lack.
  bool is_of_chain(const Snapshot& snapshot) const {
    return hash_parameters({identity_, {}, snapshot.layers}) == hash_;
  }

  std::vector<StoredSection> store_all(std::vector<RawSection> sections) const {
    std::vector<StoredSection> stored;
    for (RawSection& section : sections) {
      const auto layer = static_cast<std::size_t>(section.info.layer);
      stored.push_back(storer_->store(layers_[layer], section.info, std::move(section.raw)));
    }
    return stored;
  }

  Backend& backend_;
  std::string salt_;
  std::optional<SectionStorer> storer_;
  std::optional<ChainWriter> writer_;
  cache::Identity identity_;  // of the parameters of the chain, like the next two
  std::vector<cache::LayerDesc> layers_;
  Sha256 hash_{};
  std::int64_t n_blocks_ = 0;
  std::int64_t states_ = 0;
};

}  // namespace

struct BackgroundPut::Checkpoint {
  StatePieces pieces;
  bool wanted = false;  // to be put when the queue has room
};

// The thread and its queue.
class BackgroundPut::Worker {
 public:
  Worker(Backend& backend, std::string salt, std::uint64_t queue_bytes)
      : queue_bytes_(queue_bytes), putter_(backend, std::move(salt)), thread_([this] { work(); }) {}
  ~Worker() { stop(); }

  // Whether a job may be added. After a failure no jobs are accepted.
  bool has_room() const {
    const std::lock_guard lock(mutex_);
    return !report_.error && queued_bytes_ < queue_bytes_;
  }

  void give(Job job) {
    const std::lock_guard lock(mutex_);
    queued_bytes_ += byte_count(job);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return report_.error.has_value();
  }

  // Waits for at most `limit`. Returns whether all jobs are done.
  bool wait_idle(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit,
                             [this] { return report_.error || (jobs_.empty() && !working_); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  BackgroundPutReport report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  std::int64_t n_blocks() const {
    const std::lock_guard lock(mutex_);
    return n_blocks_;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || (!report_.error && !jobs_.empty()); });
      if (stopping_) return;
      do_next(lock);
      changed_.notify_all();
    }
  }

  void do_next(std::unique_lock<std::mutex>& lock) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    const std::uint64_t bytes = byte_count(job);
    working_ = true;
    lock.unlock();
    const Result<void> done = run(std::move(job));
    lock.lock();
    working_ = false;
    queued_bytes_ -= bytes;
    n_blocks_ = putter_.n_blocks();
    report_.new_blocks = putter_.new_blocks();
    report_.new_bytes = putter_.new_bytes();
    report_.states = putter_.states();
    if (!done) report_.error = done.error();
  }

  // Exceptions must not leave the thread.
  Result<void> run(Job job) {
    try {
      return putter_.run(std::move(job));
    } catch (const std::bad_alloc&) {
      return too_large("out of memory");
    } catch (const std::exception& error) {
      return Error{ErrorCode::kIo, error.what()};
    }
  }

  const std::uint64_t queue_bytes_;
  BackgroundPutter putter_;  // used only by the thread
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::uint64_t queued_bytes_ = 0;  // including the job in progress
  bool working_ = false;
  bool stopping_ = false;
  std::int64_t n_blocks_ = 0;
  BackgroundPutReport report_;
  std::thread thread_;  // last, because it uses all other members
};

BackgroundPut::BackgroundPut(Backend& backend, BackgroundPutOptions options)
    : options_(std::move(options)),
      worker_(std::make_unique<Worker>(backend, options_.salt, options_.queue_bytes)) {}

BackgroundPut::~BackgroundPut() = default;

void BackgroundPut::begin(const LoadedPrefix& prefix) {
  parameters_ = prefix.parameters;
  n_begun_ = prefix.n_blocks;
  next_block_ = prefix.n_blocks;
  seen_tokens_ = prefix.cache.n_tokens();
}

void BackgroundPut::watch(const cache::Cache& cache) {
  if (cache.n_tokens() == seen_tokens_) return;
  if (cache.n_tokens() < seen_tokens_) checkpoint_.reset();  // the cache was truncated
  seen_tokens_ = cache.n_tokens();
  if (worker_->has_failed()) return;
  take_checkpoint(cache);
  collect(cache);
}

// A newer snapshot replaces one that will not be put.
void BackgroundPut::take_checkpoint(const cache::Cache& cache) {
  const std::int64_t n_tokens = cache.n_tokens();
  if (n_tokens % kTokenBlock != 0 || final_blocks(n_tokens) == 0 || !keeps_state(cache)) return;
  if (checkpoint_ && checkpoint_->wanted) return;
  const bool wanted = n_tokens % options_.checkpoint_tokens == 0;
  checkpoint_ = std::make_unique<Checkpoint>(Checkpoint{state_pieces(cache), wanted});
}

// A snapshot is put directly after the blocks before it. While it may still be put, later blocks
// wait.
std::int64_t BackgroundPut::n_ready(const cache::Cache& cache) const {
  const std::int64_t n_final = final_blocks(cache.n_tokens());
  if (!checkpoint_) return n_final;
  return std::min(n_final, final_blocks(checkpoint_->pieces.snapshot.n_tokens));
}

void BackgroundPut::collect(const cache::Cache& cache) {
  for (;;) {
    while (next_block_ < n_ready(cache) && worker_->has_room()) collect_block(cache);
    if (!checkpoint_ || !checkpoint_->wanted || next_block_ != n_ready(cache)) return;
    if (!worker_->has_room()) return;
    open_chain(cache);
    worker_->give(std::move(checkpoint_->pieces));
    checkpoint_.reset();
  }
}

// Opens the chain after the blocks of the prefix.
void BackgroundPut::open_chain(const cache::Cache& cache) {
  if (is_open_) return;
  if (!parameters_) parameters_ = parameters_of(cache);
  const auto begin = cache.tokens.begin();
  worker_->give(OpenJob{*parameters_, Ids(begin, begin + next_block_ * kTokenBlock)});
  is_open_ = true;
}

void BackgroundPut::collect_block(const cache::Cache& cache) {
  open_chain(cache);
  const auto first = cache.tokens.begin() + next_block_ * kTokenBlock;
  worker_->give(BlockJob{
      Ids(first, first + kTokenBlock), block_pieces(cache, parameters_->layers, next_block_),
      cache::media_in(cache.media, next_block_ * kTokenBlock, (next_block_ + 1) * kTokenBlock)});
  ++next_block_;
}

void BackgroundPut::end_prompt(const cache::Cache& cache) {
  watch(cache);
  if (checkpoint_) checkpoint_->wanted = true;
  collect(cache);
}

BackgroundPutReport BackgroundPut::report() const { return worker_->report(); }

BackgroundPutReport BackgroundPut::finish(const cache::Cache& cache,
                                          std::chrono::milliseconds limit,
                                          const std::function<bool()>& goes_on) {
  constexpr std::chrono::milliseconds kLook{50};
  end_prompt(cache);
  const auto end = std::chrono::steady_clock::now() + limit;
  bool done = false;
  while (!done && goes_on() && std::chrono::steady_clock::now() < end) {
    const bool idle = worker_->wait_idle(kLook);
    done = worker_->has_failed() || (idle && next_block_ >= n_ready(cache) && !checkpoint_);
    if (!done) collect(cache);
  }
  worker_->stop();
  BackgroundPutReport report = worker_->report();
  const std::int64_t n_there = std::max(n_begun_, worker_->n_blocks());
  report.left_blocks = std::max<std::int64_t>(final_blocks(cache.n_tokens()) - n_there, 0);
  return report;
}

}  // namespace tqcache::store
