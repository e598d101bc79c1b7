#include "tqcache/codec/kernels/sinusoid_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace tqcache::codec {
namespace {

constexpr std::size_t kJoin = 2 * (kSinusoidPolynomials + 1);  // values of a row of `joins`

std::int16_t to_int16(float value) {
  return static_cast<std::int16_t>(std::lround(value * static_cast<float>(SinusoidTable::kUnit)));
}

}  // namespace

SinusoidTable make_sinusoid_table(std::size_t n_sinusoids, std::size_t n_fast, AlignedFloats values,
                                  AlignedFloats joins) {
  assert(n_fast <= n_sinusoids && n_sinusoids <= kMaxSinusoids);
  assert(values.size() == (n_fast + kSinusoidPolynomials) * kSinusoidRow);
  assert(joins.size() == (n_sinusoids - n_fast) * kJoin);
  SinusoidTable table;
  table.n_sinusoids = n_sinusoids;
  table.n_fast = n_fast;
  table.n_rows =
      (n_fast + kSinusoidPolynomials + kSinusoidStep - 1) / kSinusoidStep * kSinusoidStep;
  table.values = std::move(values);
  table.values.resize(table.n_rows * kSinusoidRow);
  table.int16.resize(table.values.size());
  for (std::size_t i = 0; i < table.values.size(); ++i) {
    const std::size_t row = i / kSinusoidRow, column = i % kSinusoidRow;
    table.int16[(row / 2 * kSinusoidRow + column) * 2 + row % 2] = to_int16(table.values[i]);
  }
  table.joins = std::move(joins);
  table.joins.resize(table.n_joined() * kJoin);
  return table;
}

void make_sinusoid_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                           std::size_t query, float* factors) {
  const float* const amplitudes = sinusoids.amplitudes + query * table.n_padded() * 2;
  float sums[kJoin] = {};
  for (std::size_t i = 0; i < table.n_sinusoids; ++i) {
    const float a = amplitudes[2 * i], b = amplitudes[2 * i + 1];
    const float cos = sinusoids.phasors[2 * i], sin = sinusoids.phasors[2 * i + 1];
    const float turned[2] = {a * cos + b * sin, b * cos - a * sin};
    if (i < table.n_fast) {
      std::copy_n(turned, 2, factors + 2 * i);
      continue;
    }
    const float* const join = table.joins.data() + (i - table.n_fast) * kJoin;
    for (std::size_t n = 0; n < kJoin; ++n) sums[n] += turned[n % 2] * join[n];
  }
  sums[0] += sinusoids.constants[query];
  float* const joined = factors + 2 * table.n_fast;
  std::copy_n(sums, 2 * kSinusoidPolynomials, joined);
  std::fill(joined + 2 * kSinusoidPolynomials, factors + 2 * table.n_rows, 0.0f);
}

}  // namespace tqcache::codec
