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

}  // namespace tqcache::cache
