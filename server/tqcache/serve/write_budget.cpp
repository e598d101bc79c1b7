#include "tqcache/serve/write_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/file.h"

namespace tqcache::serve {
namespace {

constexpr std::string_view kFirstLine = "tqcache-serve.written 1\n";
constexpr std::uint64_t kMaxFileBytes = 100;

// A number of digits alone, with one character behind it, which both are taken away. False if there
// is none.
bool take_number(std::string_view& text, char end, std::uint64_t& number) {
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto n_digits = static_cast<std::size_t>(stop - text.data());
  if (status != std::errc() || n_digits == text.size() || *stop != end) return false;
  text.remove_prefix(n_digits + 1);
  return true;
}

}  // namespace

double WriteBudget::written_at(double now) const {
  return std::max(0.0, written_ - std::max(0.0, now - time_) * bytes_per_second());
}

// Bytes that have to be forgotten before so many may be written.
double WriteBudget::missing(std::uint64_t bytes, double now) const {
  const auto at_once = static_cast<double>(std::min(bytes, limit_.bytes));
  return std::max(0.0, written_at(now) + at_once - static_cast<double>(limit_.bytes));
}

bool WriteBudget::try_spend(std::uint64_t bytes, double now) {
  const std::lock_guard lock(mutex_);
  if (missing(bytes, now) > 0) return false;
  written_ = written_at(now) + static_cast<double>(bytes);
  time_ = now;
  has_changed_ = has_changed_ || bytes > 0;
  return true;
}

void WriteBudget::spend(std::uint64_t bytes, double now) {
  const std::lock_guard lock(mutex_);
  written_ = written_at(now) + static_cast<double>(bytes);
  time_ = now;
  has_changed_ = has_changed_ || bytes > 0;
}

bool WriteBudget::is_exhausted(double now) const {
  const std::lock_guard lock(mutex_);
  return missing(1, now) > 0;
}

double WriteBudget::seconds_until(std::uint64_t bytes, double now) const {
  const std::lock_guard lock(mutex_);
  // A clock that is back first has to come to the time of the last write.
  const double n = missing(bytes, now);
  return n > 0 ? std::max(0.0, time_ - now) + n / bytes_per_second() : 0;
}

Result<void> WriteBudget::load(const std::string& path, double now) {
  auto bytes = read_file(path, kMaxFileBytes);
  if (!bytes && bytes.error().code == ErrorCode::kIo) {
    return in_file(path, std::move(bytes).error());
  }
  if (!bytes) return {};
  std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  std::uint64_t written = 0, time = 0;
  if (!text.starts_with(kFirstLine)) return {};
  text.remove_prefix(kFirstLine.size());
  if (!take_number(text, ' ', written) || !take_number(text, '\n', time) || !text.empty()) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  written_ = std::min(static_cast<double>(written), 2 * static_cast<double>(limit_.bytes));
  time_ = std::min(static_cast<double>(time), now);
  return {};
}

Result<void> WriteBudget::save(const std::string& path, double now) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(has_changed_, false)) return {};
    text = fmt::format("{}{:.0f} {:.0f}\n", kFirstLine, written_at(now), std::max(0.0, now));
  }
  auto saved = in_file(path, write_file_atomically(path, as_bytes(text), Overwrite::kAllow));
  if (saved) return {};
  const std::lock_guard lock(mutex_);
  has_changed_ = true;
  return saved;
}

}  // namespace tqcache::serve
