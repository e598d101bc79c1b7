// Trellis codes and f64 loops for any CPU. The search is the definition, one vector at a time; the
// other loops use 16-byte registers, which nearly every CPU has.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "tqcache/codec/quantizer.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/codec/trellis/trellis_rows.h"
#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kStates = 8;
constexpr std::size_t kClasses = 4;

using Sums = std::array<float, kStates>;

float quarter(float y) { return std::clamp(y, -kTrellisFar, kTrellisFar) * 0.25f; }

// The distance of v from the level of a class at r = 0, and the nearest integer r; ties to even.
float offset(float v, std::size_t level_class) {
  return v - static_cast<float>(level_class) * 0.25f;
}
float nearest_period(float a) {
  return std::clamp(std::nearbyint(a), kTrellisFirstPeriod, kTrellisLastPeriod);
}

std::array<float, kClasses> class_costs(float y) {
  const float v = quarter(y);
  std::array<float, kClasses> costs;
  for (std::size_t u = 0; u < kClasses; ++u) {
    const float a = offset(v, u);
    const float error = a - nearest_period(a);
    costs[u] = error * error;
  }
  return costs;
}

// Processes one component: finds the least sum that ends in each state. Returns a bit for each
// state whose better source is the higher one.
std::uint8_t advance(float y, Sums& sums) {
  const std::array<float, kClasses> costs = class_costs(y);
  Sums next;
  unsigned higher = 0;
  for (std::size_t state = 0; state < kStates; ++state) {
    const std::size_t source = trellis_source(state), u = trellis_class(state);
    const float a = sums[source] + costs[u];
    const float b = sums[source + 4] + costs[u ^ 2];
    next[state] = b < a ? b : a;
    higher |= (b < a ? 1u : 0u) << state;
  }
  sums = next;
  return static_cast<std::uint8_t>(higher);
}

// Finds the levels of the path that ends in `state`, from the last to the first.
void trace(std::span<const float> y, std::span<const std::uint8_t> higher, std::size_t state,
           std::span<float> levels) {
  for (std::size_t i = y.size(); i-- > 0;) {
    const std::size_t is_higher = higher[i] >> state & 1u;
    const std::size_t u = trellis_class(state) ^ is_higher << 1;
    levels[i] = 4.0f * nearest_period(offset(quarter(y[i]), u)) + static_cast<float>(u);
    state = trellis_source(state) | is_higher << 2;
  }
}

void find_path(std::span<const float> y, std::span<float> levels) {
  std::array<std::uint8_t, kMaxTrellisDim> higher;
  Sums sums;
  sums.fill(std::numeric_limits<float>::infinity());
  sums[0] = 0.0f;
  for (std::size_t i = 0; i < y.size(); ++i) higher[i] = advance(y[i], sums);
  const auto end = std::min_element(sums.begin(), sums.end());
  trace(y, higher, static_cast<std::size_t>(end - sums.begin()), levels);
}

// Rotates a head vector and scales it to steps. Returns its scale.
std::uint16_t take_steps(const Quantizer& quantizer, std::span<const float> row,
                         std::span<float> y) {
  const float step = quantizer.spec().step;
  const std::uint16_t scale = step_scale(std::sqrt(lane_dot(row, row)), row.size(), step);
  const float levels = levels_of_step(scale, step);
  if (levels == 0.0f) {
    std::ranges::fill(y, 0.0f);
    return scale;
  }
  quantizer.rotation().rotate(row, y);
  for (float& value : y) value *= levels;
  return scale;
}

bool is_finite(std::span<const float> y) {
  return std::all_of(y.begin(), y.end(), [](float value) { return std::isfinite(value); });
}

std::size_t search(const TrellisTask& task) {
  const auto [dim, n] = task.shape;
  std::array<float, kMaxTrellisDim> memory, in_steps;
  const std::span<float> levels = std::span(memory).first(dim);
  for (std::size_t vector = 0; vector < n; ++vector) {
    std::span<const float> y(task.rows + vector * dim, dim);
    if (!is_finite(y)) return vector;
    if (task.tables != nullptr) {
      const std::span<float> steps = std::span(in_steps).first(dim);
      task.scales[vector] = take_steps(*task.tables->quantizer, y, steps);
      y = steps;
    }
    find_path(y, levels);
    for (std::size_t i = 0; i < dim; ++i) {
      const int level = static_cast<int>(levels[i]);
      task.symbols[i * n + vector] = static_cast<std::uint8_t>((level >> 1) + kTrellisSymbolOffset);
    }
    if (task.products != nullptr) task.products[vector] = lane_dot(y, levels);
    if (task.squares != nullptr) task.squares[vector] = lane_dot(levels, levels);
  }
  return n;
}

constexpr std::size_t kWalkBytes = 16;
constexpr unsigned kDoubles = 2;

}  // namespace
}  // namespace tqcache::codec

#define TQC_LANES inline
#define TQC_LANES_FUNCTION

#include "tqcache/codec/trellis/double_lanes.h"
#include "tqcache/codec/trellis/trellis_walk_lanes.h"

namespace tqcache::codec {

const TrellisKernels scalar::kTrellisKernels = {search, walk_to_codes, walk_to_symbols};
const DoubleLoops scalar::kDoubleLoops = kLoops;

#ifdef TQCACHE_NEON
const DoubleLoops neon::kDoubleLoops = kLoops;
#endif

}  // namespace tqcache::codec
