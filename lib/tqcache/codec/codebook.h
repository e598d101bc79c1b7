#pragma once
// codec/codebook.h: the best centroids for one component of a random unit vector.
//
// After the rotation every component of a unit vector of n components is distributed as
// f(x) ~ (1 - x^2)^((n - 3) / 2) on [-1, 1], whatever the model. So the codebook depends on
// head_dim and bits alone: 2^bits values that make the mean squared error the least (Lloyd, Max).
//
// Parts of other modes have other centroids: signs of a residual, and even steps.
//
// Only + - * / and sqrt are used, so every CPU and every libm give the same bits.
//
// Spec: docs/reference/codec.md §3. Source: arXiv 2504.19874, equation 4.

#include <span>
#include <vector>

#include "tqcache/codec_spec.h"

namespace tqcache::codec {

// The positive half of the codebook, ascending: 2^(bits - 1) values. The error of a centroid is
// below 1e-12. Takes well under a millisecond.
//
// Requires: head_dim and bits as validate(QuantizerSpec) has them. The same for all below.
std::vector<double> solve_lloyd_max(int head_dim, int bits);

// The codebook of the format: the same values rounded to f32, both halves, ascending.
std::vector<float> lloyd_max_centroids(int head_dim, int bits);

// The two values that a sign of the residual's map stands for, of a residual of length 1: what
// makes inner products right on average. +-sqrt(pi / 2) / n for kGaussian, whose rows have length
// sqrt(n), and +-1 / (n e) for an orthogonal map, e being the mean magnitude of a component of a
// random unit vector, which is the centroid of 1 bit.
//
// Source: arXiv 2504.19874, algorithm 2. Implementations with an orthogonal map use sqrt(pi / (2
// n)), which takes e from a normal distribution, and gives r^ a length that is 1 / (4 n) too much.
std::vector<float> residual_centroids(int head_dim, TransformKind rotation);

// 2^bits values from -1 to 1 in even steps.
std::vector<float> linear_centroids(int bits);

// The points between neighbors at which the code changes: (c[i] + c[i+1]) * 0.5, in f32.
// One fewer than there are centroids.
std::vector<float> decision_boundaries(std::span<const float> centroids);

// The paper's D_mse: the expected |y - c[codes of y]|^2 of a random unit vector y.
//
// Requires: centroids ascending, within [-1, 1].
double expected_distortion(int head_dim, std::span<const float> centroids);

}  // namespace tqcache::codec
