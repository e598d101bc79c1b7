#pragma once
// server/tqcache/serve/write_budget.h: a limit for the bytes that the proxy writes to a disk,
// because an SSD wears: so many a day, or an hour.
//
//   WriteBudget budget({.bytes = 40'000'000'000, .period = std::chrono::hours(24)});
//   TQC_TRY(budget.load(".tqcache-serve.written", now));
//   if (!budget.try_spend(n_bytes, now)) {}  // wait budget.seconds_until(n_bytes, now)
//
// A token bucket: what was written is forgotten evenly, a period's bytes in a period. So a whole
// period's bytes may be written at once, and in n periods n + 1 times as many at most.
//
// Times are seconds since 1970, so that they hold over restarts. A clock that goes back forgets
// nothing, for as long as it is back.
//
// Threads: any number.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "tqcache/error.h"

namespace tqcache::serve {

struct WriteLimit {
  std::uint64_t bytes = 0;  // above 0
  std::chrono::seconds period = std::chrono::hours(24);
};

class WriteBudget {
 public:
  explicit WriteBudget(const WriteLimit& limit) : limit_(limit) {}

  // Counts the bytes and returns true, if they may be written now. More than a period's bytes may
  // be written when nothing else was.
  bool try_spend(std::uint64_t bytes, double now);
  // Counts bytes that were written already, also above the limit. Then nothing more may be written
  // until they are forgotten.
  void spend(std::uint64_t bytes, double now);
  // Whether not a single byte may be written now.
  bool is_exhausted(double now) const;
  // Time until try_spend(bytes) succeeds, if nothing is spent meanwhile; 0: now.
  double seconds_until(std::uint64_t bytes, double now) const;

  // What was written, over restarts. A file that is missing, or that this class did not write, is
  // like an empty one; whatever a file says, everything is forgotten after two periods.
  // Errors: kIo.
  Result<void> load(const std::string& path, double now);
  // Replaces the file at once, and does nothing if nothing was spent since the last time.
  // Errors: those of AtomicFile.
  Result<void> save(const std::string& path, double now);

 private:
  double written_at(double now) const;
  double missing(std::uint64_t bytes, double now) const;
  double bytes_per_second() const {
    return static_cast<double>(limit_.bytes) / static_cast<double>(limit_.period.count());
  }

  WriteLimit limit_;
  mutable std::mutex mutex_;
  double written_ = 0;  // bytes that are not forgotten
  double time_ = 0;     // when there were so many
  bool has_changed_ = false;
};

}  // namespace tqcache::serve
