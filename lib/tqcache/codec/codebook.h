#pragma once
// codec/codebook.h: optimal centroids for one component of a random unit vector.
//
// After the rotation every component of a unit vector of n components has the density
// f(x) ~ (1 - x^2)^((n - 3) / 2) on [-1, 1], for every model. So the codebook depends only on
// head_dim and bits: 2^bits values with the least mean squared error (Lloyd, Max).
//
// Parts of other modes have other centroids: signs of a residual, and evenly spaced values.
//
// Only + - * / and sqrt are used, so the bits are the same with every CPU and libm.
//
// Spec: docs/reference/codec.md §3. Source: arXiv 2504.19874, equation 4.

#include <span>
#include <vector>

#include "tqcache/codec_spec.h"

namespace tqcache::codec {

// The positive half of the codebook, ascending: 2^(bits - 1) values. The error of a centroid is
// below 1e-12. Takes well under a millisecond.
//
// Requires: head_dim and bits as in validate(PartSpec). The same for all functions below.
std::vector<double> solve_lloyd_max(int head_dim, int bits);

// The codebook of the format: these values and their negatives, rounded to f32, ascending.
std::vector<float> lloyd_max_centroids(int head_dim, int bits);

// The two centroids for the signs of a transformed residual of length 1, chosen so that inner
// products are right on average: +-sqrt(pi / 2) / n for kGaussian, whose rows have length sqrt(n),
// and +-1 / (n e) for an orthogonal transform, where e is the mean magnitude of a component of a
// random unit vector, which is the 1-bit centroid.
//
// Source: arXiv 2504.19874, algorithm 2. Implementations with an orthogonal transform use sqrt(pi /
//         (2 n)), which takes e from a normal distribution and makes r^ too long by a factor of 1 +
//         1 / (4 n).
std::vector<float> residual_centroids(int head_dim, TransformKind rotation);

// 2^bits evenly spaced values from -1 to 1.
std::vector<float> linear_centroids(int bits);

// The points between neighbors at which the code changes: (c[i] + c[i+1]) * 0.5, in f32. There is
// one fewer than there are centroids.
std::vector<float> decision_boundaries(std::span<const float> centroids);

// The paper's D_mse: the expected |y - c[codes of y]|^2 of a random unit vector y.
//
// Requires: centroids ascending, within [-1, 1].
double expected_distortion(int head_dim, std::span<const float> centroids);

}  // namespace tqcache::codec
