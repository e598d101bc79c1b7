#pragma once
// support/gaussian.h: seeded random numbers that are the same with every standard library.
//
// std::normal_distribution may differ between libraries, so tests draw from here. Not for the
// codec: its signs have their own rule (docs/reference/codec.md §2).

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

namespace tqcache::test {

// splitmix64: passes through all 2^64 states, and every seed is a good one.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Uniform in the open interval (0, 1), 53 bits.
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

  // Uniform in [0, bound), with a bias below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

// Standard normal values by Box and Muller's method, two from each pair of uniform ones.
class GaussianSource {
 public:
  explicit GaussianSource(std::uint64_t seed) : random_(seed) {}

  float next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(random_.uniform()));
    const double angle = 2.0 * std::numbers::pi * random_.uniform();
    spare_ = static_cast<float>(radius * std::sin(angle));
    has_spare_ = true;
    return static_cast<float>(radius * std::cos(angle));
  }

  void fill(std::span<float> values, float sigma = 1.0f) {
    for (float& value : values) value = sigma * next();
  }

  std::vector<float> vector(std::size_t size, float sigma = 1.0f) {
    std::vector<float> values(size);
    fill(values, sigma);
    return values;
  }

 private:
  SplitMix64 random_;
  float spare_ = 0.0f;
  bool has_spare_ = false;
};

}  // namespace tqcache::test
