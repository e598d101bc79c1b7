#include "tqcache/codec/kernels/wave_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace tqcache::codec {
namespace {

constexpr std::size_t kJoin = 2 * (kWavePolynomials + 1);  // values of a row of `joins`

std::int16_t to_word(float value) {
  return static_cast<std::int16_t>(std::lround(value * static_cast<float>(WaveTable::kUnit)));
}

}  // namespace

WaveTable make_wave_table(std::size_t n_waves, std::size_t n_fast, AlignedFloats values,
                          AlignedFloats joins) {
  assert(n_fast <= n_waves && n_waves <= kMaxWaves);
  assert(values.size() == (n_fast + kWavePolynomials) * kWaveRow);
  assert(joins.size() == (n_waves - n_fast) * kJoin);
  WaveTable table;
  table.n_waves = n_waves;
  table.n_fast = n_fast;
  table.n_rows = (n_fast + kWavePolynomials + kWaveStep - 1) / kWaveStep * kWaveStep;
  table.values = std::move(values);
  table.values.resize(table.n_rows * kWaveRow);
  table.words.resize(table.values.size());
  for (std::size_t i = 0; i < table.values.size(); ++i) {
    const std::size_t row = i / kWaveRow, column = i % kWaveRow;
    table.words[(row / 2 * kWaveRow + column) * 2 + row % 2] = to_word(table.values[i]);
  }
  table.joins = std::move(joins);
  table.joins.resize(table.n_joined() * kJoin);
  return table;
}

void make_wave_factors(const WaveTable& table, const Waves& waves, std::size_t query,
                       float* factors) {
  const float* const amplitudes = waves.amplitudes + query * table.n_padded() * 2;
  float sums[kJoin] = {};
  for (std::size_t i = 0; i < table.n_waves; ++i) {
    const float a = amplitudes[2 * i], b = amplitudes[2 * i + 1];
    const float cos = waves.phasors[2 * i], sin = waves.phasors[2 * i + 1];
    const float turned[2] = {a * cos + b * sin, b * cos - a * sin};
    if (i < table.n_fast) {
      std::copy_n(turned, 2, factors + 2 * i);
      continue;
    }
    const float* const join = table.joins.data() + (i - table.n_fast) * kJoin;
    for (std::size_t n = 0; n < kJoin; ++n) sums[n] += turned[n % 2] * join[n];
  }
  sums[0] += waves.constants[query];
  float* const joined = factors + 2 * table.n_fast;
  std::copy_n(sums, 2 * kWavePolynomials, joined);
  std::fill(joined + 2 * kWavePolynomials, factors + 2 * table.n_rows, 0.0f);
}

}  // namespace tqcache::codec
