#pragma once
// cache/rope_angles.h: the angles of RoPE, and their table for the positions of a token block.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"

namespace tqcache::cache {

// A point of the unit circle.
struct Phasor {
  double cos = 1;
  double sin = 0;
};

// The point at an angle in cycles (2 pi radians), accurate to about 1e-16.
Phasor phasor(double cycles);

// Cycles per token of every pair: base^(-2i / n_dims) / factors[i] / (2 pi).
// Shapes: [n_dims / 2]. Requires: can_rotate().
std::vector<double> rope_frequencies(const Rope& rope);

// R_p for all positions of a token block, from one table: R_(first + j) = R_j R_first, where j is
// below 256 in every block.
// Threads: any number may use one table at once.
class RopeTable {
 public:
  // Requires: can_rotate() for every head_dim used.
  explicit RopeTable(const Rope& rope);

  const Rope& rope() const { return rope_; }

  // x = R_position x for every row, computed in f64 and rounded once. Shapes: x [n, head_dim].
  void rotate_to(std::int64_t position, std::int64_t head_dim, std::span<float> x) const;

  // The same for every column. Shapes: x [head_dim, n].
  void rotate_columns_to(std::int64_t position, std::int64_t n, std::span<float> x) const;

  // x = R_position^T x. Shapes: x [head_dim].
  void rotate_back_from(std::int64_t position, std::span<double> x) const;

  // The cosine and sine of R_offset, offset in [0, 256). Shapes: [n_dims / 2].
  std::span<const float> cos(std::int64_t offset) const { return row(cos_, offset); }
  std::span<const float> sin(std::int64_t offset) const { return row(sin_, offset); }

 private:
  std::span<const float> row(const AlignedFloats& table, std::int64_t offset) const {
    return std::span(table).subspan(static_cast<std::size_t>(offset) * frequencies_.size(),
                                    frequencies_.size());
  }

  Rope rope_;
  std::vector<double> frequencies_;  // [n_dims / 2]
  AlignedFloats cos_;                // [kTokenBlock, n_dims / 2]
  AlignedFloats sin_;                // [kTokenBlock, n_dims / 2]
};

}  // namespace tqcache::cache
