// codec/kernels/sinusoid_lanes.h: sums of sinusoids over the tokens of a block (sinusoid_table.h),
// with FMA and with int16 products. Included by dense_*.cpp, after the parts that differ between
// instruction sets:
//
//   float_tile(n_queries), int16_tile(n_queries)  registers of tokens at a time
//   kJoinChains                   sums into which slow sinusoids are joined
//   rotate(amplitudes, phasors)     kWidth / 2 sinusoids rotated to the middle of a block:
//                                 even and odd parts side by side
//   spread_pair(pair)             an even and an odd part, kWidth / 2 times
//   backwards(v)
//   load_pairs(int16), add_products(sum, pairs, factor), to_floats(ints)
//   round_pairs(factors, inverse, pairs): kWidth factors as int16, two rows interleaved

#include "tqcache/codec/kernels/sinusoid_table.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kSinusoidGroup = 4;  // queries that share the loads of a table

// Rows whose factors are rounded to int16 with one step. With this many rows a 32-bit sum has
// enough room: the step is seldom larger than 16 bits require.
constexpr std::size_t kInt16Rows = 32;

static_assert(SinusoidTable::kUnit <= kMostTimesInt16);

struct SinusoidRows {
  alignas(64) float factors[kSinusoidGroup][2 * kMaxSinusoidRows];  // per row: even, odd
  // For two neighboring rows: both even factors, then both odd ones; the first row's factor is in
  // the low half.
  alignas(64) std::int32_t int16[kSinusoidGroup][kInt16Rows];
  float multipliers[kSinusoidGroup];
};

constexpr std::size_t kVectors = kSinusoidHalf / kWidth;  // per half block

// make_sinusoid_factors() for kQueries queries, which share the loads of the phasors and joins.
template <std::size_t kQueries>
TQC_LANES_FUNCTION void make_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                                     std::size_t first, SinusoidRows& rows) {
  constexpr std::size_t kJoin = 16;  // values of a row of joins
  constexpr std::size_t kRegisters = kJoin / kWidth;
  const std::size_t n_values = 2 * table.n_padded();
  for (std::size_t i = 0; i < n_values; i += kWidth) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const float* const amplitudes = sinusoids.amplitudes + (first + q) * n_values;
      store(rows.factors[q] + i, rotate(amplitudes + i, sinusoids.phasors + i));
    }
  }
  Lanes sums[kQueries][kJoinChains][kRegisters];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    store(rows.factors[q] + n_values, spread(0.0f));
    TQC_UNROLL for (std::size_t k = 0; k < kJoinChains; ++k) {
      TQC_UNROLL for (std::size_t r = 0; r < kRegisters; ++r) sums[q][k][r] = spread(0.0f);
    }
  }
  const float* join = table.joins.data();
  for (std::size_t i = table.n_fast; i < table.n_fast + table.n_joined(); i += kJoinChains) {
    TQC_UNROLL for (std::size_t k = 0; k < kJoinChains; ++k, join += kJoin) {
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const Lanes pair = spread_pair(rows.factors[q] + 2 * (i + k));
        TQC_UNROLL for (std::size_t r = 0; r < kRegisters; ++r) {
          sums[q][k][r] = fused(pair, load(join + r * kWidth), sums[q][k][r]);
        }
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    float* const joined = rows.factors[q] + 2 * table.n_fast;
    TQC_UNROLL for (std::size_t r = 0; r < kRegisters; ++r) {
      Lanes sum = sums[q][0][r];
      TQC_UNROLL for (std::size_t k = 1; k < kJoinChains; ++k) sum = sum + sums[q][k][r];
      store(joined + r * kWidth, sum);
    }
    for (std::size_t i = kJoin; i < 3 * kJoin; i += kWidth) store(joined + i, spread(0.0f));
    joined[0] += sinusoids.constants[first + q];
  }
}

// Adds even and odd parts to kWidth tokens in each half of a block.
TQC_LANES void put_both_halves(float* scores, std::size_t vector, Lanes sum, Lanes difference) {
  float* const upper = scores + kSinusoidHalf + kWidth * vector;
  float* const lower = scores + kSinusoidHalf - kWidth * (vector + 1);
  store(upper, load(upper) + sum);
  store(lower, load(lower) + backwards(difference));
}

template <std::size_t kQueries, std::size_t kTile>
TQC_LANES_FUNCTION void add_floats(const SinusoidTable& table, const SinusoidRows& rows,
                                   OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    Lanes even[kQueries][kTile], odd[kQueries][kTile];
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) even[q][i] = odd[q][i] = spread(0.0f);
    }
    const float* row = table.values.data() + kWidth * v;
    for (std::size_t r = 0; r < table.n_rows; ++r, row += kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const Lanes even_row = load(row + kWidth * i);
        const Lanes odd_row = load(row + kSinusoidHalf + kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const float* const factor = rows.factors[q] + 2 * r;
          even[q][i] = fused(even_row, spread(factor[0]), even[q][i]);
          odd[q][i] = fused(odd_row, spread(factor[1]), odd[q][i]);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i, even[q][i] + odd[q][i],
                        even[q][i] - odd[q][i]);
      }
    }
  }
}

// n rows of one query's factors as int16. Requires: n is a multiple of kSinusoidStep.
TQC_LANES_FUNCTION void round_to_int16(const float* factors, std::size_t n, std::int32_t* pairs,
                                       float& multiplier) {
  Lanes sum = spread(0.0f), most = sum;
  for (std::size_t i = 0; i < 2 * n; i += kWidth) {
    const Lanes size = magnitude(load(factors + i));
    sum = sum + size;
    most = larger(most, size);
  }
  const float step = int16_step(largest_of(most), sum_of(sum));
  const Lanes inverse = spread(1.0f / step);
  for (std::size_t i = 0; i < 2 * n; i += kWidth) round_pairs(factors + i, inverse, pairs + i / 2);
  multiplier = step / static_cast<float>(SinusoidTable::kUnit);
}

// Processes rows first to first + n - 1 of the table, whose factors are in rows.int16.
template <std::size_t kQueries, std::size_t kTile>
TQC_LANES_FUNCTION void add_int16(const SinusoidTable& table, const SinusoidRows& rows,
                                  std::size_t first, std::size_t n, OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    Ints even[kQueries][kTile], odd[kQueries][kTile];
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) even[q][i] = odd[q][i] = Ints{};
    }
    const std::int16_t* row = table.int16.data() + first * kSinusoidRow + 2 * kWidth * v;
    for (std::size_t r = 0; r < n; r += 2, row += 2 * kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const Ints even_rows = load_pairs(row + 2 * kWidth * i);
        const Ints odd_rows = load_pairs(row + 2 * kSinusoidHalf + 2 * kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const std::int32_t* const factor = rows.int16[q] + r;
          even[q][i] = add_products(even[q][i], even_rows, factor[0]);
          odd[q][i] = add_products(odd[q][i], odd_rows, factor[1]);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const Lanes multiplier = spread(rows.multipliers[q]);
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i,
                        to_floats(even[q][i] + odd[q][i]) * multiplier,
                        to_floats(even[q][i] - odd[q][i]) * multiplier);
      }
    }
  }
}

template <std::size_t kQueries>
void add_exact(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
               OutputRows scores) {
  SinusoidRows rows;
  make_factors<kQueries>(table, sinusoids, first, rows);
  add_floats<kQueries, float_tile(kQueries)>(table, rows, scores);
}

template <std::size_t kQueries>
void add_fast(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
              OutputRows scores) {
  SinusoidRows rows;
  make_factors<kQueries>(table, sinusoids, first, rows);
  for (std::size_t r = 0; r < table.n_rows; r += kInt16Rows) {
    const std::size_t left = table.n_rows - r;
    const std::size_t n = left < kInt16Rows ? left : kInt16Rows;
    for (std::size_t q = 0; q < kQueries; ++q) {
      round_to_int16(rows.factors[q] + 2 * r, n, rows.int16[q], rows.multipliers[q]);
    }
    add_int16<kQueries, int16_tile(kQueries)>(table, rows, r, n, scores);
  }
}

// Handles queries from `first` on, a fixed number per function.
using AddSinusoidGroup = void (*)(const SinusoidTable&, const Sinusoids&, std::size_t first,
                                  OutputRows);

void add_in_groups(const AddSinusoidGroup (&groups)[kSinusoidGroup], const SinusoidTable& table,
                   const Sinusoids& sinusoids, OutputRows scores) {
  for (std::size_t first = 0; first < sinusoids.n_queries; first += kSinusoidGroup) {
    const std::size_t left = sinusoids.n_queries - first;
    const std::size_t n = left < kSinusoidGroup ? left : kSinusoidGroup;
    groups[n - 1](table, sinusoids, first,
                  {.values = scores.values + first * scores.stride, .stride = scores.stride});
  }
}

}  // namespace

void TQC_SET::add_sinusoids_exact(const SinusoidTable& table, const Sinusoids& sinusoids,
                                  OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_exact<1>, add_exact<2>, add_exact<3>, add_exact<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

void TQC_SET::add_sinusoids_fast(const SinusoidTable& table, const Sinusoids& sinusoids,
                                 OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_fast<1>, add_fast<2>, add_fast<3>, add_fast<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

}  // namespace tqcache::codec
