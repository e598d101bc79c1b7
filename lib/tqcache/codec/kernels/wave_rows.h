#pragma once
// codec/kernels/wave_rows.h: what kernels that add up waves hold of up to four queries.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/kernels/wave_table.h"
#include "tqcache/codec/kernels/word_step.h"

namespace tqcache::codec {

inline constexpr std::size_t kWaveGroup = 4;  // queries that share the loads of a table

// Rows whose factors are rounded to words with one step. Products with so many rows leave a sum of
// 32 bits room enough that the step is seldom larger than 16 bits would need.
inline constexpr std::size_t kWordRows = 32;

static_assert(WaveTable::kUnit <= kMostTimesWord);

struct WaveRows {
  alignas(64) float factors[kWaveGroup][2 * kMaxWaveRows];  // of a row: even, odd
  // Of two neighbouring rows: both even factors, then both odd ones; the first row's in the low
  // half.
  alignas(64) std::int32_t words[kWaveGroup][kWordRows];
  float multipliers[kWaveGroup];
};

// Queries `first` and on, as many as the function is made for.
using AddWaveGroup = void (*)(const WaveTable&, const Waves&, std::size_t first, OutputRows);

inline void add_in_groups(const AddWaveGroup (&groups)[kWaveGroup], const WaveTable& table,
                          const Waves& waves, OutputRows scores) {
  for (std::size_t first = 0; first < waves.n_queries; first += kWaveGroup) {
    const std::size_t left = waves.n_queries - first;
    const std::size_t n = left < kWaveGroup ? left : kWaveGroup;
    groups[n - 1](table, waves, first,
                  {.values = scores.values + first * scores.stride, .stride = scores.stride});
  }
}

}  // namespace tqcache::codec
