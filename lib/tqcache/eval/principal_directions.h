#pragma once
// eval/principal_directions.h: the principal directions of many long vectors, without the matrix of
// their products.
//
// Source: Halko, Martinsson and Tropp, "Finding structure with randomness" (2011), 4.5: subspace
//         iteration from vectors by chance.

#include <cstddef>
#include <functional>
#include <span>

#include "tqcache/codec/trellis/symmetric_eigen.h"
#include "tqcache/error.h"

namespace tqcache::eval {

// Vectors [n, dim], a few at a time. Threads: called by one.
using LoadVector = std::function<void(std::size_t index, std::span<float> out)>;

// The largest eigenvalues of the sum of x x^T over all vectors, the largest first, and their
// directions; only a good approximation where eigenvalues lie close together. A direction beyond
// the rank of the sum is 0, as its eigenvalue.
//
// Shapes:   vectors of the result [n_wanted, dim].
// Requires: n_wanted <= dim. Memory: 20 (n_wanted + 16) dim bytes.
// Errors:   those of codec::symmetric_eigen().
Result<codec::SymmetricEigen> principal_directions(std::size_t dim, std::size_t n,
                                                   const LoadVector& load, std::size_t n_wanted);

}  // namespace tqcache::eval
