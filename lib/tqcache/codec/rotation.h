#pragma once
// codec/rotation.h: the randomized orthogonal transform that every head vector goes through.
//
// It spreads the energy of a head vector evenly, so that one codebook fits every component.
// head_dim = parts * part_size, parts odd and part_size a power of two:
//
//   R = (Hartley(parts) (x) WalshHadamard(part_size)) * diag(signs) / sqrt(head_dim)
//
// Both factors are symmetric and their own inverses, so R^T is the same transform with the
// signs last. A power of two has parts == 1, and R is the usual signed Hadamard rotation.
//
// Spec: docs/codec.md §2. Source: arXiv 2504.19874 takes any random rotation; the Hartley factor
// is ours, and keeps head_dim 80, 96, 112 or 192 without padding.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tqcache::codec {

class Rotation {
 public:
  // Requires: head_dim in [kMinHeadDim, kMaxHeadDim].
  Rotation(int head_dim, std::uint64_t sign_seed);

  std::size_t head_dim() const { return signs_.size(); }
  std::span<const float> signs() const { return signs_; }  // [head_dim], +1 or -1

  // y = R x and x = R^T y.
  //
  // Shapes:  x, y [head_dim]; may be the same memory, but must not overlap otherwise.
  // Units:   none. |y| = |x| up to rounding.
  // Threads: any number at once.
  // Bytes:   identical on every CPU; the order of operations is part of the format.
  void rotate(std::span<const float> x, std::span<float> y) const;
  void unrotate(std::span<const float> y, std::span<float> x) const;

 private:
  void transform(std::span<float> values) const;

  std::vector<float> signs_;
  std::vector<float> cas_;  // [parts]: cos + sin of 2 pi k / parts
  std::size_t part_size_;
  float scale_;  // 1 / sqrt(head_dim)
};

}  // namespace tqcache::codec
