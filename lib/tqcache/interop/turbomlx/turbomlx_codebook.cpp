#if defined(__APPLE__) && !defined(_REENTRANT)
#define _REENTRANT  // macOS declares lgamma_r() only then
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "tqcache/interop/turbomlx/turbomlx_artifacts.h"

#ifdef _WIN32
extern "C" double __lgamma_r(double x, int* sign);  // of mingw-w64, whose headers lack it
#endif

namespace tqcache::interop {
namespace {

constexpr std::size_t kGrid = 32769;
constexpr double kEdge = 1 - 1e-8;  // distance of the grid's ends from 0
constexpr int kMaxRounds = 256;
constexpr double kTolerance = 1e-12;

// A compensated sum (Neumaier).
class ExactSum {
 public:
  void add(double x) {
    const double sum = sum_ + x;
    lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - sum) + x : (x - sum) + sum_;
    sum_ = sum;
  }
  double high() const { return sum_; }
  double low() const { return lost_; }

 private:
  double sum_ = 0, lost_ = 0;
};

// The cumulative integral at every point by the trapezoid rule, in two parts because small
// differences are taken.
struct Integral {
  std::vector<double> high, low;

  double between(std::size_t first, std::size_t last) const {
    return (high[last] - high[first]) + (low[last] - low[first]);
  }
};

Integral integrate(const std::vector<double>& x, const std::vector<double>& y) {
  Integral integral;
  ExactSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i > 0) sum.add((x[i] - x[i - 1]) * (y[i] + y[i - 1]) / 2);
    integral.high.push_back(sum.high());
    integral.low.push_back(sum.low());
  }
  return integral;
}

std::vector<double> make_grid() {
  const double step = 2 * kEdge / static_cast<double>(kGrid - 1);
  std::vector<double> grid(kGrid);
  for (std::size_t i = 0; i < kGrid; ++i) grid[i] = static_cast<double>(i) * step - kEdge;
  grid.back() = kEdge;
  return grid;
}

// lgamma() is not thread-safe: it writes a global sign.
double log_gamma(double x) {
  int sign = 0;
#ifdef _WIN32
  return ::__lgamma_r(x, &sign);
#else
  return ::lgamma_r(x, &sign);
#endif
}

// The density of one component of a random unit vector, on the grid, normalized to an integral of
// 1.
std::vector<double> make_density(const std::vector<double>& grid, int head_dim) {
  const double d = head_dim;
  const double norm = log_gamma(d / 2) - 0.5 * std::log(std::numbers::pi) - log_gamma((d - 1) / 2);
  std::vector<double> density(kGrid);
  for (std::size_t i = 0; i < kGrid; ++i) {
    density[i] = std::exp(norm + (d - 3) / 2 * std::log1p(-(grid[i] * grid[i])));
  }
  const double all = integrate(grid, density).between(0, kGrid - 1);
  for (double& value : density) value /= all;
  return density;
}

class Lloyd {
 public:
  explicit Lloyd(int head_dim) : grid_(make_grid()), density_(make_density(grid_, head_dim)) {
    std::vector<double> moment(kGrid);
    for (std::size_t i = 0; i < kGrid; ++i) moment[i] = grid_[i] * density_[i];
    mass_ = integrate(grid_, density_);
    moment_ = integrate(grid_, moment);
  }

  // Quantiles i / (n + 1), i from 1 to n.
  std::vector<double> begin(std::size_t n) const {
    std::vector<double> centroids(n);
    for (std::size_t i = 0; i < n; ++i) {
      centroids[i] = quantile(static_cast<double>(i + 1) / static_cast<double>(n + 1));
    }
    return centroids;
  }

  std::vector<double> next(const std::vector<double>& centroids) const {
    std::vector<double> updated(centroids.size());
    double low = -1;
    std::size_t first = 0;
    for (std::size_t i = 0; i < updated.size(); ++i) {
      const bool is_last = i + 1 == updated.size();
      const double high = is_last ? 1 : (centroids[i] + centroids[i + 1]) * 0.5;
      const std::size_t end = is_last ? kGrid : first_from(high);
      updated[i] = center(first, end, low, high);
      low = high;
      first = end;
    }
    return updated;
  }

 private:
  // The cumulative sum from left to right, as in NumPy; its last value counts as 1.
  double quantile(double share) const {
    double sum = 0;
    for (std::size_t i = 1; i < kGrid; ++i) {
      double next = sum + (density_[i - 1] + density_[i]) * (grid_[i] - grid_[i - 1]) * 0.5;
      if (i == kGrid - 1) next = 1;
      if (share < next) {
        return (grid_[i] - grid_[i - 1]) / (next - sum) * (share - sum) + grid_[i - 1];
      }
      sum = next;
    }
    return grid_.back();
  }

  std::size_t first_from(double x) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(grid_, x) - grid_.begin());
  }

  // The center of the points [first, end); values between the grid points of two cells belong to
  // neither.
  double center(std::size_t first, std::size_t end, double low, double high) const {
    if (first >= end) return (low + high) * 0.5;
    const double mass = mass_.between(first, end - 1);
    if (mass <= 0) return (low + high) * 0.5;
    return moment_.between(first, end - 1) / mass;
  }

  std::vector<double> grid_, density_;
  Integral mass_, moment_;
};

double largest_step(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

std::vector<float> turbomlx_codebook(int head_dim, int bits) {
  const Lloyd lloyd(head_dim);
  std::vector<double> centroids = lloyd.begin(std::size_t{1} << bits);
  for (int round = 0; round < kMaxRounds; ++round) {
    std::vector<double> updated = lloyd.next(centroids);
    const bool is_done = largest_step(updated, centroids) <= kTolerance;
    centroids = std::move(updated);
    if (is_done) break;
  }
  return {centroids.begin(), centroids.end()};
}

}  // namespace tqcache::interop
