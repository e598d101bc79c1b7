#pragma once
// codec/dense_matrix.h: random matrices of dense transforms, and orthogonalization.
//
// Spec: docs/reference/codec.md §2. Source: arXiv 2504.19874, algorithms 1 and 2.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tqcache/bytes.h"

namespace tqcache::codec {

// Independent standard normal entries.
//
// Shapes: [n, n], row by row. n at least 1.
// Bytes:  identical on every CPU, with every compiler and libm; also for the next function.
AlignedFloats gaussian_matrix(std::size_t n, std::uint64_t seed);

// The Q of G = Q R, where G is that matrix before rounding and the diagonal of R is positive: a
// uniformly distributed (Haar) random orthogonal matrix.
//
// Time: n^3 multiplications and as many additions: 1 ms for n = 128, 1 s for n = 1024.
AlignedFloats orthogonal_matrix(std::size_t n, std::uint64_t seed);

// The Q of any matrix, computed in the same way. nullopt if a column is shorter than `least` after
// subtracting its projections on the previous columns.
//
// Shapes: matrix [n, n], row by row; finite.
std::optional<AlignedFloats> orthogonal_columns(std::size_t n, std::span<const double> matrix,
                                                double least);

}  // namespace tqcache::codec
