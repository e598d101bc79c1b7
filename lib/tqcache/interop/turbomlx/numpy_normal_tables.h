#pragma once
// interop/turbomlx/numpy_normal_tables.h: the 256 layers of NumPy's ziggurat for normal numbers in f64.
//
// The values are NumPy's own, to the bit: they carry the rounding of how they were once computed,
// so that no formula gives them again.
//
// Source: numpy/random/src/distributions/ziggurat_constants.h (ki_double, wi_double, fi_double).

#include <array>
#include <cstdint>

namespace tqcache::interop {

inline constexpr double kNormalEnd = 3.6541528853610087963519472518;
inline constexpr double kNormalEndInverse = 0.27366123732975827203338247596;

extern const std::array<std::uint64_t, 256> kNormalInner;  // of 2^52: surely below the curve
extern const std::array<double, 256> kNormalWidths;        // over 2^52
extern const std::array<double, 256> kNormalHeights;       // exp(-x^2 / 2)

}  // namespace tqcache::interop
