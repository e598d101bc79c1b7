#include "tqcache/codec/random.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

namespace tqcache::codec {

// s = m * 2^e with m within a factor sqrt(2) of 1, so that there is no cancellation for s near 1;
// then ln m = 2 atanh z = 2 (z + z^3 / 3 + z^5 / 5 + ...) with z = (m - 1) / (m + 1), |z| < 0.172.
double portable_log(double s) {
  assert(s >= std::numeric_limits<double>::min());
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  constexpr int kBias = 1023;
  constexpr double kLn2 = 0.6931471805599453;
  constexpr double kSqrt2 = 1.4142135623730951;
  constexpr int kLastPower = 21;  // z^23 / 23 is below 2^-60 of z

  const std::uint64_t bits = std::bit_cast<std::uint64_t>(s);
  int exponent = static_cast<int>(bits >> 52) - kBias;
  double m = std::bit_cast<double>((bits & kMantissa) | (std::uint64_t{kBias} << 52));
  if (m > kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double square = z * z;
  double series = 1.0 / kLastPower;
  for (int power = kLastPower - 2; power > 0; power -= 2) series = series * square + 1.0 / power;
  return exponent * kLn2 + 2.0 * z * series;
}

double NormalSource::next_coordinate() {
  return static_cast<double>(splitmix64(state_) >> 11) * 0x1p-52 - 1.0;
}

double NormalSource::next() {
  if (has_kept_) {
    has_kept_ = false;
    return kept_;
  }
  for (;;) {
    const double u = next_coordinate();
    const double v = next_coordinate();
    const double s = u * u + v * v;
    if (s >= 1.0 || s == 0.0) continue;
    const double factor = std::sqrt(-2.0 * portable_log(s) / s);
    kept_ = v * factor;
    has_kept_ = true;
    return u * factor;
  }
}

}  // namespace tqcache::codec
