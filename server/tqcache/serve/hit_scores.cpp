#include "tqcache/serve/hit_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/file.h"
#include "tqcache/store.h"

namespace tqcache::serve {
namespace {

constexpr std::uint64_t kMaxScoreBytes = std::uint64_t{64} << 20;
constexpr double kMaxScoreTime = 253'402'300'799;  // the year 9999

}  // namespace

void HitScores::hit(std::span<const std::string> names, double now) {
  const std::lock_guard lock(mutex_);
  has_changed_ = has_changed_ || !names.empty();
  for (const std::string& name : names) {
    const auto [found, is_new] = times_.try_emplace(name, now);
    // 2^(time / half-life) of both uses is added.
    const double other = std::exp2(-std::abs(found->second - now) / kHalfLife);
    if (!is_new) found->second = std::max(found->second, now) + kHalfLife * std::log2(1 + other);
  }
  drop_lowest();
}

// A tenth more than necessary, so that this is rare.
void HitScores::drop_lowest() {
  if (times_.size() <= kMaxNames) return;
  std::vector<double> times;
  times.reserve(times_.size());
  for (const auto& [name, time] : times_) times.push_back(time);
  std::size_t n_over = times.size() - kMaxNames * 9 / 10;
  const auto limit = times.begin() + static_cast<std::ptrdiff_t>(n_over);
  std::nth_element(times.begin(), limit, times.end());
  // Many may have the same time.
  std::erase_if(times_, [&](const auto& each) {
    if (each.second > *limit || n_over == 0) return false;
    --n_over;
    return true;
  });
}

std::chrono::seconds HitScores::idle(std::string_view name, std::chrono::seconds idle,
                                     double now) const {
  const std::lock_guard lock(mutex_);
  const auto found = times_.find(std::string(name));
  if (found == times_.end()) return idle;
  const auto scored = static_cast<std::int64_t>(std::floor(now - found->second));
  return std::min(idle, std::chrono::seconds(scored));
}

std::size_t HitScores::size() const {
  const std::lock_guard lock(mutex_);
  return times_.size();
}

bool HitScores::has_changed() const {
  const std::lock_guard lock(mutex_);
  return has_changed_;
}

std::string HitScores::to_text() {
  const std::lock_guard lock(mutex_);
  has_changed_ = false;
  std::string text;
  for (const auto& [name, time] : times_) text += fmt::format("{} {:.0f}\n", name, time);
  return text;
}

void HitScores::add_text(std::string_view text) {
  const std::lock_guard lock(mutex_);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string name(line.substr(0, space));
    const std::string_view number = line.substr(space + 1);
    std::int64_t time = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), time);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size()) continue;
    if (time < 0 || static_cast<double>(time) > kMaxScoreTime || !store::check_key(name)) continue;
    const auto [found, is_new] = times_.try_emplace(name, static_cast<double>(time));
    if (!is_new) found->second = std::max(found->second, static_cast<double>(time));
    drop_lowest();
  }
}

Result<void> load_scores(const std::string& path, HitScores& scores) {
  auto bytes = read_file(path, kMaxScoreBytes);
  if (!bytes && bytes.error().code == ErrorCode::kNotFound) return {};
  if (!bytes) return in_file(path, std::move(bytes).error());
  scores.add_text({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  return {};
}

Result<void> save_scores(const std::string& path, HitScores& scores) {
  const std::string text = scores.to_text();
  TQC_TRY_ASSIGN(AtomicFile file, in_file(path, AtomicFile::create(path, Overwrite::kAllow)));
  Result<void> written = file.write(as_bytes(text));
  if (written) written = file.commit();
  return written ? Result<void>() : in_file(path, std::move(written).error());
}

}  // namespace tqcache::serve
