#pragma once
// codec/kernels/row_transform.h: products of small matrices, in the one order of additions that the
// format knows.
//
// Each number of a result is a sum of its own, so vector units of any width add alike.
//
// Spec: docs/reference/codec.md §10.

#include <cstddef>
#include <span>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// out[t][i] = sum over j of in[t][j] * matrix[j][i], j ascending from +0, each product and each sum
// rounded to f32.
//
// Shapes: in, out [n, dim], not the same memory; matrix [dim, dim].
// Bytes:  identical on every CPU.
void multiply_rows(std::span<const float> in, std::span<const float> matrix, std::size_t dim,
                   std::span<float> out, const Kernels& kernels = best_kernels());

// out[i][j] = sum over t of a[t][i] * b[t][j], likewise, for j up to i; what is above the diagonal
// is left undefined.
//
// Shapes: a, b [n, dim]; out [dim, dim].
// Bytes:  identical on every CPU, on and below the diagonal.
void multiply_columns(std::span<const float> a, std::span<const float> b, std::size_t dim,
                      std::span<float> out, const Kernels& kernels = best_kernels());

}  // namespace tqcache::codec
