#pragma once
// research/simulation/draw.h: random numbers from the distributions of the traces.
//
// Source: Zipf, "Human Behavior and the Principle of Least Effort" (1949), for ranks; the others
// invert their distribution functions.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/codec/random.h"

namespace tqcache::simulation {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed), normal_(~seed) {}

  double uniform();  // in (0, 1), a multiple of 2^-54
  bool chance(double probability) { return uniform() < probability; }
  double exponential(double mean);
  // exp(log(median) + sigma * normal), so its mean is median * exp(sigma^2 / 2).
  double log_normal(double median, double sigma);
  // Number of trials up to the first success, at least 1. Requires: mean >= 1.
  std::int64_t geometric(double mean);

 private:
  std::uint64_t state_;
  codec::NormalSource normal_;
};

// Ranks from 0 on, rank i with a probability proportional to 1 / (i + 1)^exponent.
class Zipf {
 public:
  // Requires: n_ranks > 0.
  Zipf(std::size_t n_ranks, double exponent);

  std::size_t draw(Random& random) const { return draw_among(random, up_to_.size()); }
  // Among the first n_ranks only. Requires: 0 < n_ranks <= that of the constructor.
  std::size_t draw_among(Random& random, std::size_t n_ranks) const;
  double probability(std::size_t rank) const;

 private:
  std::vector<double> up_to_;  // sums of weights
};

}  // namespace tqcache::simulation
