#pragma once
// codec/kernels/sinusoid_rows.h: what kernels that add up sinusoids hold of up to four queries.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/int16_step.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/kernels/sinusoid_table.h"

namespace tqcache::codec {

inline constexpr std::size_t kSinusoidGroup = 4;  // queries that share the loads of a table

// Rows whose factors are rounded to words with one step. Products with so many rows leave a sum of
// 32 bits room enough that the step is seldom larger than 16 bits would need.
inline constexpr std::size_t kWordRows = 32;

static_assert(SinusoidTable::kUnit <= kMostTimesInt16);

struct SinusoidRows {
  alignas(64) float factors[kSinusoidGroup][2 * kMaxSinusoidRows];  // of a row: even, odd
  // Of two neighboring rows: both even factors, then both odd ones; the first row's in the low
  // half.
  alignas(64) std::int32_t words[kSinusoidGroup][kWordRows];
  float multipliers[kSinusoidGroup];
};

// Queries `first` and on, as many as the function is made for.
using AddSinusoidGroup = void (*)(const SinusoidTable&, const Sinusoids&, std::size_t first,
                                  OutputRows);

inline void add_in_groups(const AddSinusoidGroup (&groups)[kSinusoidGroup],
                          const SinusoidTable& table, const Sinusoids& sinusoids,
                          OutputRows scores) {
  for (std::size_t first = 0; first < sinusoids.n_queries; first += kSinusoidGroup) {
    const std::size_t left = sinusoids.n_queries - first;
    const std::size_t n = left < kSinusoidGroup ? left : kSinusoidGroup;
    groups[n - 1](table, sinusoids, first,
                  {.values = scores.values + first * scores.stride, .stride = scores.stride});
  }
}

}  // namespace tqcache::codec
