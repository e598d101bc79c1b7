#include "tqcache/eval/distribution.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

namespace tqcache::eval {
namespace {

// Keeps the sign, the exponent and 7 bits of the fraction. Nonnegative numbers are ordered as their
// bits.
constexpr unsigned kBinShift = 16;
constexpr std::size_t kBins = std::size_t{1} << (31 - kBinShift);

double middle_of_bin(std::size_t bin) {
  const auto first = std::bit_cast<float>(static_cast<std::uint32_t>(bin) << kBinShift);
  const auto next = std::bit_cast<float>(static_cast<std::uint32_t>(bin + 1) << kBinShift);
  return bin == 0 ? 0 : (static_cast<double>(first) + static_cast<double>(next)) / 2;
}

}  // namespace

void Distribution::add(double value) {
  assert(value >= 0);
  ++count_;
  sum_ += value;
  sum_of_squares_ += value * value;
  max_ = std::max(max_, value);
  const auto kept = static_cast<float>(std::min(value, double{std::numeric_limits<float>::max()}));
  if (!bins_.empty()) return count_in_bins(kept);
  exact_.push_back(kept);
  if (exact_.size() <= max_exact_) return;
  bins_.resize(kBins);
  for (const float each : exact_) count_in_bins(each);
  exact_ = {};
}

void Distribution::count_in_bins(float value) {
  const std::size_t bin = std::bit_cast<std::uint32_t>(value) >> kBinShift;
  ++bins_[std::min(bin, kBins - 1)];
}

double Distribution::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double Distribution::standard_error() const {
  return standard_error_of_mean(sum_, sum_of_squares_, count_);
}

double standard_error_of_mean(double sum, double sum_of_squares, std::uint64_t count) {
  if (count < 2) return 0;
  const auto n = static_cast<double>(count);
  const double variance = (sum_of_squares - sum * sum / n) / (n - 1);
  return std::sqrt(std::max(variance, 0.0) / n);
}

double Distribution::quantile(double q) const {
  assert(q >= 0 && q <= 1);
  if (count_ == 0) return 0;
  const double place = q * static_cast<double>(count_ - 1);
  const auto below = static_cast<std::uint64_t>(place);
  const double low = at(below);
  const double high = below + 1 < count_ ? at(below + 1) : low;
  return low + (high - low) * (place - std::floor(place));
}

double Distribution::at(std::uint64_t place) const {
  if (bins_.empty()) {
    const auto found = exact_.begin() + static_cast<std::ptrdiff_t>(place);
    std::nth_element(exact_.begin(), found, exact_.end());
    return static_cast<double>(*found);
  }
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen > place) return std::min(middle_of_bin(bin), max_);
  }
  return max_;
}

}  // namespace tqcache::eval
