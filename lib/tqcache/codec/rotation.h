#pragma once
// codec/rotation.h: the random linear transform of the channels of a part.
//
// It spreads the energy of a head vector evenly, so that one codebook fits every component.
//
//   kHadamard  R = H D_rounds ... H D_1, with random signs D and, for head_dim = parts * part_size,
//              parts odd and part_size a power of two,
//              H = (Hartley(parts) (x) WalshHadamard(part_size)) / sqrt(head_dim).
//              H is symmetric and its own inverse, so R^T runs the same steps backwards.
//   kDenseQr   the orthogonal factor of a Gaussian matrix, as a matrix
//   kGaussian  a Gaussian matrix; "unrotate" is its transpose, not its inverse
//   kNone      the identity
//   kMatrix    any matrix, as given; "unrotate" is its transpose
//
// Spec: docs/reference/codec.md §2. Source: arXiv 2504.19874 uses a dense random rotation; the
//       Hartley factor is our addition, for head_dim 80, 96, 112, 192 or 576 without padding.

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec_spec.h"

namespace tqcache::codec {

// A value: copies share the same immutable tables.
class Rotation {
 public:
  // Uses head_dim, rotation, rounds, seed and matrix. Requires: validate(spec).
  explicit Rotation(const PartSpec& spec);

  std::size_t head_dim() const { return head_dim_; }
  TransformKind kind() const { return kind_; }

  // For kHadamard: [rounds, head_dim], +1 or -1, in the order in which rotate() uses them.
  std::span<const float> signs() const { return signs_; }
  // For kHadamard: [parts], cos + sin of 2 pi k / parts; a single 1 for a power of two.
  std::span<const float> cas() const { return cas_; }
  std::size_t part_size() const { return part_size_; }
  float factor() const { return factor_; }  // 1 / sqrt(head_dim)

  // For kDenseQr, kGaussian and kMatrix: [head_dim, head_dim], row i computes component i.
  // Otherwise empty.
  std::span<const float> matrix() const;

  // y = R x and x = R^T y.
  //
  // Shapes:  x, y [head_dim]; may be the same memory, but must not overlap otherwise.
  // Units:   none. |y| = |x| up to rounding, except for kGaussian and kMatrix.
  // Threads: any number at once.
  // Bytes:   identical on every CPU; the order of operations is part of the format.
  void rotate(std::span<const float> x, std::span<float> y) const;
  void unrotate(std::span<const float> y, std::span<float> x) const;

 private:
  void transform(std::span<float> values) const;

  TransformKind kind_;
  std::size_t head_dim_;
  std::vector<float> signs_;
  std::vector<float> cas_;
  std::size_t part_size_ = 0;
  float factor_ = 0.0f;
  std::shared_ptr<const AlignedFloats> matrix_;
};

// The inner product, in the only order of additions that the format allows: sixteen lanes,
// component i in lane i % 16, then the lanes pairwise by halves. Registers of 4, 8 or 16 floats can
// add in exactly this order, so encoded bytes do not depend on the CPU (docs/reference/codec.md
// §4).
//
// Shapes: a, b [n], any n.
// Bytes:  identical on every CPU (without fused multiply-add).
inline float lane_dot(std::span<const float> a, std::span<const float> b) {
  assert(a.size() == b.size());
  constexpr std::size_t kDotLanes = 16;
  std::array<float, kDotLanes> lanes{};
  std::size_t i = 0;
  for (; i + kDotLanes <= a.size(); i += kDotLanes) {
    for (std::size_t lane = 0; lane < kDotLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t lane = 0; i + lane < a.size(); ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace tqcache::codec
