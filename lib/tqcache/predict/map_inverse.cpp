#include <algorithm>
#include <cmath>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::predict {
namespace {

// Inverts [n, n] by Gauss-Jordan elimination with pivots of columns. False if it has no inverse.
bool invert(std::size_t n, std::vector<double>& a, std::vector<double>& inverse) {
  const auto add_multiple = codec::best_kernels().doubles.add_multiple;
  inverse.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (std::size_t col = 0; col < n; ++col) {
    std::size_t pivot = col;
    for (std::size_t row = col + 1; row < n; ++row) {
      if (std::abs(a[row * n + col]) > std::abs(a[pivot * n + col])) pivot = row;
    }
    const double value = a[pivot * n + col];
    if (!(std::abs(value) > 1e-30)) return false;
    if (pivot != col) {
      std::swap_ranges(&a[pivot * n], &a[pivot * n] + n, &a[col * n]);
      std::swap_ranges(&inverse[pivot * n], &inverse[pivot * n] + n, &inverse[col * n]);
    }
    for (std::size_t j = 0; j < n; ++j) {
      a[col * n + j] /= value;
      inverse[col * n + j] /= value;
    }
    for (std::size_t row = 0; row < n; ++row) {
      const double factor = a[row * n + col];
      if (row == col || factor == 0) continue;
      // Columns up to this one are no longer read.
      add_multiple(&a[col * n + col], -factor, n - col, &a[row * n + col]);
      add_multiple(&inverse[col * n], -factor, n, &inverse[row * n]);
    }
  }
  return true;
}

}  // namespace

Result<void> Predictor::prepare_encoding(unsigned n_threads) const {
  const std::lock_guard lock(mutex_);
  if (!inverses_.empty()) return {};
  const std::size_t dim = to_size(profile_.channels());
  std::vector<AlignedFloats> inverses(sides_.size());
  TQC_TRY(parallel_try(sides_.size(), n_threads, [&](std::size_t i) -> Result<void> {
    const SideProfile& side = profile_.sides[i];
    std::vector<double> map(dim * dim), inverse;
    for (std::size_t j = 0; j < map.size(); ++j) {
      map[j] = double{side.map_scale[j % dim]} * side.map[j];
    }
    if (!invert(dim, map, inverse)) return corrupt("a map of the profile has no inverse");
    inverses[i].assign(inverse.begin(), inverse.end());
    return {};
  }));
  inverses_ = std::move(inverses);
  return {};
}

}  // namespace tqcache::predict
