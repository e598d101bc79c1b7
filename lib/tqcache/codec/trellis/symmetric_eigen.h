#pragma once
// codec/trellis/symmetric_eigen.h: eigenvalues and eigenvectors of a symmetric matrix.
//
// What a transform that is made for its data comes from: along the eigenvectors of a covariance
// matrix, components do not depend on each other.
//
// Only + - * / and sqrt in f64 are used, in an order that is fixed, so the bits depend neither on
// the CPU nor on libm.
//
// Spec:   docs/reference/codec.md §10.
// Source: Householder's tridiagonal form and QR steps with Wilkinson's shift: Golub and Van Loan,
//         "Matrix Computations", 8.3.

#include <cstddef>
#include <span>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::codec {

inline constexpr std::size_t kMaxEigenSize = 1024;
inline constexpr double kMaxEigenEntry = 1e300;

struct SymmetricEigen {
  std::vector<double> values;   // [n], the largest first
  std::vector<double> vectors;  // [n, n]: row i has length 1 and belongs to values[i]
};

// Of every vector the component of the largest magnitude, the first of them if there are several,
// is positive. Vectors of one eigenvalue are orthogonal, and otherwise as the method has them.
//
// Shapes: matrix [n, n]; what is above the diagonal is not looked at.
// Bytes:  identical on every CPU.
// Time:   a few ms for n = 128; grows with n^3.
// Errors: kInvalidArgument for an n outside 1 to kMaxEigenSize, or a matrix of another size;
//         kCorrupt for an entry that is NaN or infinite; kUnsupported for one beyond
//         kMaxEigenEntry, and if the steps do not end, which no matrix is known to do.
Result<SymmetricEigen> symmetric_eigen(std::size_t n, std::span<const double> matrix);

}  // namespace tqcache::codec
