#pragma once
// server/tqcache/serve/hit_scores.h: how often blobs of a store were used, where old uses count
// less than new ones.
//
// A use counts half after each half-life. The score of a blob is kept as a time: that of the single
// use which would count as much. So scores need no update while time passes, and a blob that was
// used once has the time of that use, as a store orders blobs by itself.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tqcache/error.h"

namespace tqcache::serve {

// Threads: any number.
class HitScores {
 public:
  // The names with the lowest scores are dropped above this number.
  static constexpr std::size_t kMaxNames = 200'000;
  static constexpr double kHalfLife = 86'400;  // seconds

  // A use of these blobs: names as in store::CollectOptions::order_by. `now`: seconds since 1970.
  void hit(std::span<const std::string> names, double now);

  // Seconds since the single use that would count as much as all uses of the blob; below 0 for one
  // in the future. `idle`: since its last use, for blobs without a score.
  std::chrono::seconds idle(std::string_view name, std::chrono::seconds idle, double now) const;

  std::size_t size() const;
  // Whether there were hits since the last to_text().
  bool has_changed() const;

  // Lines "NAME TIME"; and back. Scores of before stay. Safe for untrusted input: what is no such
  // line is ignored.
  std::string to_text();
  void add_text(std::string_view text);

 private:
  void drop_lowest();

  mutable std::mutex mutex_;
  std::unordered_map<std::string, double> times_;
  bool has_changed_ = false;
};

// Scores in a file. A missing file is no error. Errors: those of files.
Result<void> load_scores(const std::string& path, HitScores& scores);
Result<void> save_scores(const std::string& path, HitScores& scores);

}  // namespace tqcache::serve
