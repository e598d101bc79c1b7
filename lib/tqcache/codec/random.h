#pragma once
// codec/random.h: the random numbers of transforms, the same with every CPU and libm.
//
// Files store seeds, not matrices, so every bit of a draw is part of the format: only + - * / and
// sqrt in f64 are used, in a fixed order.
//
// Spec: docs/reference/codec.md §2. Source: Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014; Marsaglia, Bray, "A convenient method for generating normal
// variables", SIAM Review 6 (1964).

#include <cstdint>

namespace tqcache::codec {

// The next 64 bits of a stream. The seed is the first state.
inline std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The natural logarithm, to 2 units in the last place.
//
// Requires: s normal and positive.
double portable_log(double s);

// Independent standard normal numbers: two from each point drawn in the unit disc.
class NormalSource {
 public:
  explicit NormalSource(std::uint64_t seed) : state_(seed) {}

  double next();

 private:
  double next_coordinate();  // uniform in [-1, 1), a multiple of 2^-52

  std::uint64_t state_;
  double kept_ = 0.0;  // the second number of the last point
  bool has_kept_ = false;
};

}  // namespace tqcache::codec
