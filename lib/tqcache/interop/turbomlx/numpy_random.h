#pragma once
// interop/turbomlx/numpy_random.h: the random numbers of numpy.random.default_rng(seed), and the Q
// of numpy.linalg.qr(). TurboMLX draws its transforms from them and does not store these.
//
// Source: numpy/random/bit_generator.pyx (SeedSequence), src/pcg64/pcg64.h (XSL-RR 128/64),
//         src/distributions/distributions.c (random_standard_normal, bounded integers).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tqcache::interop {

// numpy.random.SeedSequence(seed).generate_state(4, uint64).
std::array<std::uint64_t, 4> numpy_seed_state(std::uint64_t seed);

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed);

  std::uint64_t next_u64();
  std::uint32_t next_u32();  // half of a u64; the lower half comes first
  double next_double();      // [0, 1)
  // One value of standard_normal(). Bytes: those of NumPy, except that the last digit of values
  // beyond 3.65 (one in 4,000) depends on the libm.
  double next_normal();
  // One index of choice(two values): 0 or 1.
  std::uint32_t next_of_two();

 private:
  // 128 bits in two halves.
  struct Wide {
    std::uint64_t low = 0, high = 0;
  };
  static Wide times(Wide a, Wide b);
  static Wide plus(Wide a, Wide b);
  void step();
  double tail(std::uint64_t bits);

  Wide state_, increment_;
  bool has_half_ = false;
  std::uint32_t half_ = 0;
};

// The Q of A = Q R, where every diagonal value of R is positive.
//
// Shapes: a and the result are [n, n], row by row.
// Time:   8/3 n^3 operations.
std::vector<double> orthogonal_factor(std::span<const double> a, std::size_t n);

}  // namespace tqcache::interop
