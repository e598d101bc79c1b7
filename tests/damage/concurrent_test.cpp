// Many writers and many readers of one file: what a reader gets is one of the caches that were
// written, whole, whatever goes on meanwhile.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "damage.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace concurrent_test {

constexpr int kWriters = 16;
constexpr int kReaders = 16;

#ifdef TQCACHE_TEST_SANITIZED
constexpr int kFewerReads = 10;
#else
constexpr int kFewerReads = 1;
#endif

void add_token(cache::Cache& cache, Random& random) {
  const std::int64_t held = cache.n_tokens();
  for (cache::Layer& layer : cache.layers) {
    auto& attention = std::get<cache::AttentionLayer>(layer);
    std::vector<float> row(
        static_cast<std::size_t>(attention.shape.n_kv_heads * attention.shape.head_dim));
    for (cache::Tensor* tensor : {&attention.k, &attention.v}) {
      for (float& value : row) value = random.bell();
      must(cache::pack_full_tail(*tensor, held, 1));
      cache::append(*tensor, attention.shape, held, row);
    }
  }
  cache.tokens.push_back(static_cast<std::int32_t>(random.below(1000)));
}

// A cache as it was at every number of tokens, from some number on.
class Conversation {
 public:
  Conversation(cache::Cache start, std::size_t n_more) : first_(start.n_tokens()) {
    Random random(7);
    states_.push_back(std::move(start));
    for (std::size_t i = 0; i < n_more; ++i) {
      cache::Cache next = states_.back();
      add_token(next, random);
      states_.push_back(std::move(next));
    }
  }

  // Any state of at least so many tokens.
  const cache::Cache& any(Random& random, std::int64_t at_least) const {
    const auto from = static_cast<std::size_t>(at_least - first_);
    return states_[from + random.below(states_.size() - from)];
  }
  const cache::Cache& any(Random& random) const { return any(random, first_); }

  bool has(const cache::Cache& cache) const {
    const std::int64_t i = cache.n_tokens() - first_;
    return i >= 0 && i < std::ssize(states_) &&
           difference(cache, states_[static_cast<std::size_t>(i)]).empty();
  }

 private:
  std::int64_t first_;
  std::vector<cache::Cache> states_;
};

// All that goes on at one file.
class Crowd {
 public:
  Crowd(const Conversation& conversation, std::int64_t n_reads)
      : conversation_(conversation), n_reads_(n_reads) {}

  void run() {
    Random random(1);
    must(save(conversation_.any(random)));
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < kWriters; ++i) threads.emplace_back([this, i] { write(i); });
    for (std::uint64_t i = 0; i < kReaders; ++i) threads.emplace_back([this, i] { read(i); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(complaint_, "");
    EXPECT_GE(reads_, n_reads_);
    for (const std::atomic<std::int64_t>& n : writes_) EXPECT_GT(n, 0);
    EXPECT_EQ(dir_.entry_count(), 1u);
  }

 private:
  Result<void> save(const cache::Cache& cache) const {
    return format::write_cache_file(
        cache, path_,
        {.compression = Compression::kNone, .n_threads = 1, .overwrite = Overwrite::kAllow});
  }

  Result<void> append(Random& random) const {
    TQC_TRY_ASSIGN(format::CacheAppender appender, format::CacheAppender::open(path_));
    if (random.below(4) == 0) {
      TQC_TRY_ASSIGN(const cache::Cache held, appender.read({.n_threads = 1}));
      if (!conversation_.has(held)) return Error{ErrorCode::kCorrupt, "the appender read another"};
    }
    const cache::Cache& next = conversation_.any(random, appender.info().n_tokens());
    const auto report = appender.append(next, {.compression = Compression::kNone, .n_threads = 1});
    if (!report) return report.error();
    return {};
  }

  Result<void> compact() const {
    const auto report = format::compact_file(path_, {.n_threads = 1});
    if (!report) return report.error();
    return {};
  }

  void write(std::uint64_t seed) {
    Random random(seed + 100);
    while (!is_over()) {
      // Few are written anew, so that others can grow.
      const std::uint64_t roll = random.below(16);
      const std::size_t kind = roll == 0 ? 0 : roll == 1 ? 1 : 2;
      const auto written = kind == 0   ? save(conversation_.any(random))
                           : kind == 1 ? compact()
                                       : append(random);
      if (written) ++writes_[kind];
      if (!written && written.error().code != ErrorCode::kBusy) {
        complain("write: " + written.error().message);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // leaves the others a turn
    }
  }

  Result<cache::Cache> load(std::uint64_t turn) const {
    if (turn % 8 == 0) return format::map_cache(path_, {.n_threads = 1});
    TQC_TRY_ASSIGN(const auto source, open_file(path_));
    return format::read_cache(*source, {.n_threads = 1});
  }

  Result<void> verify() const {
    TQC_TRY_ASSIGN(const auto source, open_file(path_));
    TQC_TRY_ASSIGN(const auto report, format::verify_cache(*source, {.n_threads = 1}));
    if (report.damage.empty()) return {};
    return Error{ErrorCode::kCorrupt, report.damage.front()};
  }

  void read(std::uint64_t turn) {
    for (; !is_over(); ++turn, ++reads_) {
      if (turn % 32 == 1) {
        if (const auto whole = verify(); !whole) complain("verify: " + whole.error().message);
        continue;
      }
      const auto loaded = load(turn);
      if (!loaded) {
        complain("read: " + loaded.error().message);
      } else if (!conversation_.has(*loaded)) {
        complain("torn: " + std::to_string(loaded->n_tokens()) + " tokens");
      }
    }
  }

  // Every kind of writing has had its turn by then: a lock is got by chance.
  bool is_over() const {
    const auto happened = [](const auto& n) { return n > 0; };
    return failed_ || (reads_ >= n_reads_ && std::ranges::all_of(writes_, happened));
  }

  void complain(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (complaint_.empty()) complaint_ = what;
    failed_ = true;
  }

  const Conversation& conversation_;
  const std::int64_t n_reads_;
  const TempDir dir_;
  const std::filesystem::path path_ = dir_ / "a.tqkv";
  std::atomic<std::int64_t> reads_ = 0;
  std::array<std::atomic<std::int64_t>, 3> writes_{};  // saved, compacted, appended
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::string complaint_;
};

TEST(ManyWritersAndReaders, OfOneFileNeverTearIt) {
  const Conversation conversation(CacheBuilder(3).dense({1, 4}).build(), 12);
  Crowd(conversation, 100'000 / kFewerReads).run();
}

TEST(ManyWritersAndReaders, OfAFileWhoseTokenBlocksArePackedNeverTearIt) {
  const Conversation conversation(CacheBuilder(250).preset({1, 32}, "turbo4").build(), 12);
  Crowd(conversation, 10'000 / kFewerReads).run();
}

}  // namespace concurrent_test
}  // namespace tqcache::test
