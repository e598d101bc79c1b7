#pragma once
// cache/rope.h: rotary position embedding, as the keys in a cache carry it.
//
// R_p turns component i and component i + n_dims / 2 of a key at position p as the point of a
// plane, by p * base^(-2i / n_dims) / factors[i] radians; components from n_dims on stay (partial
// rotary). Factors are how models stretch their context: one for all pairs (linear scaling), or one
// a pair (llama3, longrope, YaRN). What YaRN does to the length of keys needs no word here: it does
// it to all of them, so that their mean has it too. A cache keeps keys in this half-split order
// whatever the model's own order is, so the style only says whether there is RoPE at all.
//
// Encoding depends on these values, so they are the same on every CPU: sine, cosine and powers come
// from + - * / alone and not from the C library, whose last bit varies.
//
// Source: arXiv 2104.09864, section 3.2.2.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"

namespace tqcache::cache {

enum class RopeStyle : std::uint8_t { kNone = 0, kHalfSplit = 1, kInterleaved = 2 };

// How the model turned its keys. Needed to go on, and to take keys back to before RoPE.
struct Rope {
  RopeStyle style = RopeStyle::kHalfSplit;
  std::int64_t n_dims = 0;  // components that turn, from the first on
  double base = 0;
  std::vector<float> factors = {};  // [n_dims / 2]; empty: all 1
  bool operator==(const Rope&) const = default;
};

// Whether R_p is known for head vectors of `head_dim` components, and not the identity: there is a
// style, n_dims is even and in [2, head_dim], the base is finite and at least 1, and factors are
// none or one a pair, each within 2^-20 and 2^20.
bool can_turn(const Rope& rope, std::int64_t head_dim);

// x = R_position x, and its inverse x = R_position^T x; the identity where can_turn() is false.
// Angles in f64, their cosine and sine rounded to f32.
//
// Shapes: x [head_dim].
void turn(const Rope& rope, std::int64_t position, std::span<float> x);
void turn_back(const Rope& rope, std::int64_t position, std::span<float> x);

// A point of the unit circle.
struct Phasor {
  double cos = 1;
  double sin = 0;
};

// The point at an angle given in full turns (2 pi radians), to about 1e-16 for the angle given.
Phasor phasor(double turns);

// Full turns a token of every pair: base^(-2i / n_dims) / factors[i] / (2 pi). Shapes: [n_dims /
// 2]. Requires: can_turn().
std::vector<double> rope_frequencies(const Rope& rope);

// R_p for all positions of a token block, from one table: R_(first + j) = R_j R_first, and j is
// below 256 in every block.
// Threads: any number may use one table at once.
class RopeTable {
 public:
  // Requires: can_turn() for every head_dim that is to be turned.
  explicit RopeTable(const Rope& rope);

  const Rope& rope() const { return rope_; }

  // x = R_position x of every row, computed in f64 and rounded once. Shapes: x [n, head_dim].
  void turn_to(std::int64_t position, std::int64_t head_dim, std::span<float> x) const;

  // The same of every column. Shapes: x [head_dim, n].
  void turn_columns_to(std::int64_t position, std::int64_t n, std::span<float> x) const;

  // x = R_position^T x. Shapes: x [head_dim].
  void turn_back_from(std::int64_t position, std::span<double> x) const;

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
