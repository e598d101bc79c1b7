#pragma once
// interop/turbomlx/numpy_linalg.h: the orthogonal factor that numpy.linalg.qr() gives, up to rounding.
//
// With a positive diagonal of R the factor is unique, so that any method gives it that loses no
// digits. This one is written out, and not LAPACK's, to give the same bits on every machine.

#include <cstddef>
#include <span>
#include <vector>

namespace tqcache::interop {

// The Q of A = Q R, with every diagonal value of R positive.
//
// Shapes: a [n, n], row by row, as the result.
// Time:   8/3 n^3 operations.
std::vector<double> orthogonal_factor(std::span<const double> a, std::size_t n);

}  // namespace tqcache::interop
