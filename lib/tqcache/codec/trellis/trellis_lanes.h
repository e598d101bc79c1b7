#pragma once
// codec/trellis/trellis_lanes.h: Viterbi search for kWidth vectors side by side, one per register
// lane.
//
// Each lane performs exactly the operations of trellis_scalar.cpp, in the same order, so the bytes
// are the same. Groups in which all |y| are small, as in nearly all, need no check for the limits
// of the levels.
//
// Included by trellis_*.cpp after registers_*.h and after a few operations on registers of integers
// (Ints) and floats (Lanes): load_square, larger, smaller, clamp_lanes, to_even, where_less,
// store_bytes and load_bytes.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tqcache/codec/kernels/lane_rotation.h"
#include "tqcache/codec/quantizer.h"
#include "tqcache/codec/trellis/trellis_rows.h"
#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kStates = 8;
constexpr std::size_t kClasses = 4;

static_assert(kMaxTrellisDim == kMaxHeadDim);

struct LaneSearch {
  LaneVectors vectors;  // y; later y times its level
  alignas(64) std::uint8_t higher[kMaxTrellisDim * kWidth];
};

TQC_LANES Ints all_ints(std::int32_t value) { return Ints{} + value; }
TQC_LANES Lanes as_floats(Ints v) { return __builtin_convertvector(v, Lanes); }
TQC_LANES Ints as_ints(Lanes v) { return __builtin_convertvector(v, Ints); }

// Loads up to kWidth rows; lanes without a row get the last row again. Returns the bits of the
// largest |y| of each.
TQC_LANES_FUNCTION Ints load_rows(const float* rows, std::size_t dim, std::size_t n,
                                  LaneSearch& search) {
  const float* starts[kWidth];
  for (std::size_t l = 0; l < kWidth; ++l) starts[l] = rows + (l < n ? l : n - 1) * dim;
  Ints most = {};
  for (std::size_t i = 0; i < dim; i += kWidth) {
    Lanes v[kWidth];
    load_square(starts, i, dim - i, v);
    TQC_UNROLL for (std::size_t k = 0; k < kWidth; ++k) {
      most = larger(most, reinterpret_cast<Ints>(v[k]) & 0x7fffffff);
      if (i + k < dim) search.vectors.values[i + k] = v[k];
    }
  }
  return most;
}

// The squared lengths of all vectors, summed in the order of docs/reference/codec.md §4.
TQC_LANES_FUNCTION Lanes squared_sums(std::size_t dim, const LaneVectors& x) {
  Lanes sums[16] = {};
  for (std::size_t i = 0; i < dim; ++i) sums[i % 16] += x.values[i] * x.values[i];
  return add_halves(sums);
}

// Computes the scales of the first n lanes. Returns the factors from rotated vectors to levels.
TQC_LANES_FUNCTION Lanes find_scales(const RotationTables& tables, Lanes squares, std::size_t n,
                                     std::uint16_t* scales) {
  const float step = tables.quantizer->spec().step;
  float values[kWidth];
  std::memcpy(values, &squares, sizeof(values));
  for (std::size_t l = 0; l < kWidth; ++l) {
    const std::uint16_t scale = step_scale(std::sqrt(values[l]), tables.head_dim, step);
    if (l < n) scales[l] = scale;
    values[l] = levels_of_step(scale, step);
  }
  Lanes levels;
  std::memcpy(&levels, values, sizeof(levels));
  return levels;
}

// Rotates head vectors and scales them to steps. Returns the bits of the largest |y| of each.
TQC_LANES_FUNCTION Ints take_steps(const RotationTables& tables, std::size_t n,
                                   std::uint16_t* scales, LaneVectors& x) {
  const Lanes levels = find_scales(tables, squared_sums(tables.head_dim, x), n, scales);
  for (std::size_t i = 0; i < tables.head_dim; ++i)
    x.values[i] = flip(x.values[i], tables.sign_bits[i]);
  rotate(tables, x, /*distance=*/1);
  Ints most = {};
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    x.values[i] = x.values[i] * tables.factor * levels;
    most = larger(most, reinterpret_cast<Ints>(x.values[i]) & 0x7fffffff);
  }
  return most;
}

template <bool kNear>
TQC_LANES Lanes quarter(Lanes y) {
  if constexpr (!kNear) y = clamp_lanes(y, -kTrellisFar, kTrellisFar);
  return y * 0.25f;
}

template <bool kNear>
TQC_LANES Lanes nearest_period(Lanes a) {
  const Lanes period = to_even(a);
  if constexpr (kNear) return period;
  return clamp_lanes(period, kTrellisFirstPeriod, kTrellisLastPeriod);
}

template <bool kNear>
TQC_LANES void class_costs(Lanes y, Lanes (&costs)[kClasses]) {
  const Lanes v = quarter<kNear>(y);
  TQC_UNROLL for (std::size_t u = 0; u < kClasses; ++u) {
    const Lanes a = v - static_cast<float>(u) * 0.25f;
    const Lanes error = a - nearest_period<kNear>(a);
    costs[u] = error * error;
  }
}

// Returns the state with the least sum at the end.
template <bool kNear>
TQC_LANES_FUNCTION Ints find_paths(std::size_t dim, LaneSearch& search) {
  Lanes sums[kStates];
  TQC_UNROLL for (std::size_t state = 0; state < kStates; ++state) {
    sums[state] = spread(state == 0 ? 0.0f : std::numeric_limits<float>::infinity());
  }
  for (std::size_t i = 0; i < dim; ++i) {
    Lanes costs[kClasses], next[kStates];
    class_costs<kNear>(search.vectors.values[i], costs);
    Ints higher = {};
    TQC_UNROLL for (std::size_t state = 0; state < kStates; ++state) {
      const std::size_t source = trellis_source(state), u = trellis_class(state);
      const Lanes a = sums[source] + costs[u];
      const Lanes b = sums[source + 4] + costs[u ^ 2];
      next[state] = smaller(a, b);
      higher = where_less(b, a, higher | static_cast<int>(1u << state), higher);
    }
    TQC_UNROLL for (std::size_t state = 0; state < kStates; ++state) sums[state] = next[state];
    store_bytes(higher, search.higher + i * kWidth);
  }
  Ints end = {};
  Lanes least = sums[0];
  TQC_UNROLL for (std::size_t state = 1; state < kStates; ++state) {
    end = where_less(sums[state], least, all_ints(static_cast<int>(state)), end);
    least = smaller(least, sums[state]);
  }
  return end;
}

TQC_LANES void put_symbols(Ints symbols, std::size_t n, std::uint8_t* to) {
  if (n == kWidth) return store_bytes(symbols, to);
  std::uint8_t bytes[kWidth];
  store_bytes(symbols, bytes);
  std::memcpy(to, bytes, n);
}

// Follows the paths back, and replaces y by y * level. Returns the sums of squares of the levels:
// integers up to 2^24, exact in any order.
template <bool kNear>
TQC_LANES_FUNCTION Lanes trace(std::size_t dim, Ints state, LaneSearch& search,
                               std::uint8_t* symbols, std::size_t stride, std::size_t n) {
  Lanes squares = {};
  for (std::size_t i = dim; i-- > 0;) {
    const Ints higher = load_bytes(search.higher + i * kWidth) >> state & 1;
    const Ints odd = state >> 2;
    const Ints driver = (state >> 1 & 1) ^ higher;  // the lowest bit of k
    const Lanes u = as_floats(driver + driver + odd);
    const Lanes period =
        nearest_period<kNear>(quarter<kNear>(search.vectors.values[i]) - u * 0.25f);
    put_symbols(2 * as_ints(period) + driver + kTrellisSymbolOffset, n, symbols + i * stride);
    const Lanes level = period * 4.0f + u;
    search.vectors.values[i] = search.vectors.values[i] * level;
    squares = squares + level * level;
    state = odd | ((state & 1) ^ odd) << 1 | higher << 2;
  }
  return squares;
}

// The sums of the products from trace(), in the order of docs/reference/codec.md §4.
TQC_LANES_FUNCTION Lanes add_products(std::size_t dim, const LaneSearch& search) {
  Lanes sums[16] = {};
  for (std::size_t i = 0; i < dim; ++i) sums[i % 16] += search.vectors.values[i];
  return add_halves(sums);
}

TQC_LANES_FUNCTION void put_sums(Lanes sums, std::size_t n, float* to) {
  if (to != nullptr) std::memcpy(to, &sums, n * sizeof(float));
}

// The first of n lanes whose largest |y| has bits at or above those of `bound`, or n.
TQC_LANES_FUNCTION std::size_t first_beyond(Ints most, std::size_t n, float bound) {
  std::int32_t bits[kWidth];
  std::memcpy(bits, &most, sizeof(bits));
  std::size_t lane = 0;
  while (lane < n && bits[lane] < std::bit_cast<std::int32_t>(bound)) ++lane;
  return lane;
}

template <bool kNear>
TQC_LANES_FUNCTION void search_group(const TrellisTask& task, std::size_t first, std::size_t n,
                                     LaneSearch& search) {
  const auto [dim, stride] = task.shape;
  const Ints end = find_paths<kNear>(dim, search);
  const Lanes squares = trace<kNear>(dim, end, search, task.symbols + first, stride, n);
  if (task.products != nullptr) put_sums(add_products(dim, search), n, task.products + first);
  if (task.squares != nullptr) put_sums(squares, n, task.squares + first);
}

TQC_LANES_FUNCTION std::size_t search_all(const TrellisTask& task) {
  const auto [dim, n_vectors] = task.shape;
  LaneSearch search;
  for (std::size_t first = 0; first < n_vectors; first += kWidth) {
    const std::size_t n = n_vectors - first < kWidth ? n_vectors - first : kWidth;
    Ints most = load_rows(task.rows + first * dim, dim, n, search);
    const std::size_t bad = first_beyond(most, n, std::numeric_limits<float>::infinity());
    if (bad < n) return first + bad;
    if (task.tables != nullptr) {
      most = take_steps(*task.tables, n, task.scales + first, search.vectors);
    }
    if (first_beyond(most, n, kTrellisNear) == n) {
      search_group<true>(task, first, n, search);
    } else {
      search_group<false>(task, first, n, search);
    }
  }
  return n_vectors;
}

}  // namespace
}  // namespace tqcache::codec
