#pragma once
// interop/turbomlx/turbomlx_codebook.h: the codebooks of TurboMLX ("v1-lloyd-max-beta"), which its files
// name and do not hold.
//
// They are not those of codec/codebook.h: a grid of 32,769 points, 256 rounds at most and what
// falls between the grid's points make other digits.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: src/turbomlx/core_ref/codebooks.py, generate_lloyd_max_codebook().

#include <vector>

namespace tqcache::interop {

// 2^bits centroids, ascending, rounded to f32. Sums are taken in another order than NumPy's: they
// agree to about 1e-14, of which rounding leaves nothing. But for head_dim 3, whose density is
// flat: there boundaries fall onto points of the grid, and a last digit moves a centroid by up to
// 2e-4.
//
// Requires: head_dim of at least 2, bits 1 to 8.
std::vector<float> turbomlx_codebook(int head_dim, int bits);

}  // namespace tqcache::interop
