#pragma once
// eval/distribution.h: mean, maximum and quantiles of many numbers in bounded memory.
//
// Up to a limit the numbers themselves are kept, and quantiles are exact. Beyond it they are
// counted in bins, each 1/128 of its value wide, so that a quantile has a relative error of at most
// .4%; mean and maximum stay exact.
// itself; mean and maximum stay exact.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tqcache::eval {

// Of the mean of independent numbers. 0 with fewer than two.
double standard_error_of_mean(double sum, double sum_of_squares, std::uint64_t count);

class Distribution {
 public:
  static constexpr std::size_t kMaxExact = std::size_t{1} << 22;  // numbers kept: 16 MiB

  explicit Distribution(std::size_t max_exact = kMaxExact) : max_exact_(max_exact) {}

  // Kept as f32. Requires: value >= 0, not NaN.
  void add(double value);

  std::uint64_t count() const { return count_; }
  double mean() const;  // 0 without numbers
  // Of the mean, if the numbers are independent. 0 with fewer than two.
  double standard_error() const;
  double max() const { return max_; }

  // The number at index q (count - 1) of the sorted numbers, linearly interpolated between two
  // indices. 0 without numbers.
  // Requires: 0 <= q <= 1.
  double quantile(double q) const;

 private:
  void count_in_bins(float value);
  double at(std::uint64_t place) const;

  std::size_t max_exact_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
  double sum_of_squares_ = 0;
  double max_ = 0;
  mutable std::vector<float> exact_;  // in any order; empty once there are bins
  std::vector<std::uint64_t> bins_;   // by the upper half of an f32
};

}  // namespace tqcache::eval
