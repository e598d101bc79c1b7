#include "draw.h"

#include <algorithm>
#include <cmath>

namespace tqcache::simulation {

double Random::uniform() {
  return (static_cast<double>(codec::splitmix64(state_) >> 11) + 0.5) * 0x1p-53;
}

double Random::exponential(double mean) { return -mean * std::log(uniform()); }

double Random::log_normal(double median, double sigma) {
  return median * std::exp(sigma * normal_.next());
}

std::int64_t Random::geometric(double mean) {
  if (mean <= 1) return 1;
  const double tries = std::log(uniform()) / std::log1p(-1 / mean);
  return 1 + static_cast<std::int64_t>(tries);
}

Zipf::Zipf(std::size_t n_ranks, double exponent) : up_to_(n_ranks) {
  double sum = 0;
  for (std::size_t i = 0; i < n_ranks; ++i) {
    sum += std::pow(static_cast<double>(i + 1), -exponent);
    up_to_[i] = sum;
  }
}

std::size_t Zipf::draw_among(Random& random, std::size_t n_ranks) const {
  const auto end = up_to_.begin() + static_cast<std::ptrdiff_t>(n_ranks);
  const double at = random.uniform() * up_to_[n_ranks - 1];
  const auto rank = std::upper_bound(up_to_.begin(), end, at) - up_to_.begin();
  return std::min(static_cast<std::size_t>(rank), n_ranks - 1);
}

double Zipf::probability(std::size_t rank) const {
  return (up_to_[rank] - (rank == 0 ? 0 : up_to_[rank - 1])) / up_to_.back();
}

}  // namespace tqcache::simulation
