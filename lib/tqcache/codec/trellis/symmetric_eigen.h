#pragma once
// codec/trellis/symmetric_eigen.h: eigenvalues and eigenvectors of a symmetric matrix.
//
// Transforms that are fitted to data are made from these: along the eigenvectors of a covariance
// matrix, components are uncorrelated.
//
// Only + - * / and sqrt in f64 are used, in a fixed order, so the bits depend neither on the CPU
// nor on libm.
//
// Spec:   docs/reference/codec.md §10.
// Source: Householder's tridiagonal form and QR steps with Wilkinson's shift: Golub and Van Loan,
//         "Matrix Computations", 8.3.

#include <cstddef>
#include <span>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::codec {

inline constexpr std::size_t kMaxEigenSize = 2048;
inline constexpr double kMaxEigenEntry = 1e300;

struct SymmetricEigen {
  std::vector<double> values;   // [n], the largest first
  std::vector<double> vectors;  // [n, n]: row i has length 1 and belongs to values[i]
};

// The component of the largest magnitude in each vector (the first, if there are several) is
// positive. Vectors of one eigenvalue are orthogonal; otherwise the method decides which they are.
//
// Shapes: matrix [n, n]; entries above the diagonal are not read.
// Bytes:  identical on every CPU.
// Time:   a few ms for n = 128; grows with n^3.
// Errors: kInvalidArgument for an n outside 1 to kMaxEigenSize, or a matrix of another size;
//         kCorrupt for an entry that is NaN or infinite; kUnsupported for an entry beyond
//         kMaxEigenEntry, and if the iteration does not converge, for which no matrix is known.
Result<SymmetricEigen> symmetric_eigen(std::size_t n, std::span<const double> matrix);

}  // namespace tqcache::codec
