#pragma once
// codec/dense_matrix.h: the random matrices of dense maps, from a seed, and orthogonal ones of any.
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
// Bytes:  identical on every CPU, with every compiler and libm. The same for the next one.
AlignedFloats gaussian_matrix(std::size_t n, std::uint64_t seed);

// The Q of G = Q R, with G that matrix before rounding and R's diagonal positive: a random
// orthogonal matrix without preference (Haar).
//
// Time: n^3 multiplications and as many additions: 1 ms for n = 128, 1 s for 1024.
AlignedFloats orthogonal_matrix(std::size_t n, std::uint64_t seed);

// The Q of any matrix, made in the same way. Nothing, if less than `least` is left of a column when
// those before are taken out.
//
// Shapes: matrix [n, n], row by row; finite.
std::optional<AlignedFloats> orthogonal_columns(std::size_t n, std::span<const double> matrix,
                                                double least);

}  // namespace tqcache::codec
