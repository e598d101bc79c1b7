// Dense keys and values, and sinusoids, with NEON: widened to f32, FMLA.

#include "tqcache/codec/kernels/registers_neon.h"

#ifdef TQCACHE_NEON

#include "tqcache/codec/kernels/sinusoid_table.h"

namespace tqcache::codec {
namespace {

template <Dtype kDtype>
float dot_row(const std::byte* row, const float* query, std::size_t head_dim) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  constexpr std::size_t kChains = 4;
  float32x4_t sums[kChains];
  TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[c] = vdupq_n_f32(0.0f);
  std::size_t i = 0;
  for (; i + kChains * kWidth <= head_dim; i += kChains * kWidth) {
    TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) {
      const std::size_t at = i + c * kWidth;
      sums[c] =
          vfmaq_f32(sums[c], widen<kDtype>(row + at * kSize, 0, kWhole), vld1q_f32(query + at));
    }
  }
  for (; i < head_dim; i += kWidth) {
    const std::size_t left = head_dim - i;
    const std::byte* const p = row + i * kSize;
    const float32x4_t key = widen<kDtype>(p, 0, left);
    sums[0] = vfmaq_f32(sums[0], key, vld1q_f32(query + i));
  }
  return vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3])));
}

template <Dtype kDtype>
void score_rows(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  const std::size_t row_bytes = block.head_dim * dtype_size(kDtype);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    for (std::size_t q = 0; q < queries.n_queries; ++q) {
      scores.values[q * scores.stride + t] = dot_row<kDtype>(
          block.rows + t * row_bytes, queries.values + q * queries.stride, block.head_dim);
    }
  }
}

// Adds the weighted sums of up to four components from `first` on.
template <Dtype kDtype>
void accumulate_columns(const DenseBlock& block, const float* weights, std::size_t first,
                        float* out) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const std::size_t left = block.head_dim - first;
  const std::size_t n = left < kWidth ? left : kWidth;
  float32x4_t sum = load(out, n);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const p = block.rows + (t * block.head_dim + first) * kSize;
    const float32x4_t value = widen<kDtype>(p, 0, n);
    sum = vfmaq_n_f32(sum, value, weights[t]);
  }
  __builtin_memcpy(out, &sum, n * sizeof(float));
}

// Adds the weighted sums of sixteen components from `first` on.
template <Dtype kDtype>
void accumulate_tile(const DenseBlock& block, const float* weights, std::size_t first, float* out) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  float32x4_t sums[4];
  TQC_UNROLL for (std::size_t c = 0; c < 4; ++c) sums[c] = vld1q_f32(out + kWidth * c);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const p = block.rows + (t * block.head_dim + first) * kSize;
    TQC_UNROLL for (std::size_t c = 0; c < 4; ++c) {
      sums[c] = vfmaq_n_f32(sums[c], widen<kDtype>(p + c * kWidth * kSize, 0, kWhole), weights[t]);
    }
  }
  TQC_UNROLL for (std::size_t c = 0; c < 4; ++c) vst1q_f32(out + kWidth * c, sums[c]);
}

template <Dtype kDtype>
void accumulate_rows(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  for (std::size_t q = 0; q < weights.n_queries; ++q) {
    const float* const weight = weights.values + q * weights.stride;
    float* const sum = out.values + q * out.stride;
    std::size_t i = 0;
    for (; i + 4 * kWidth <= block.head_dim; i += 4 * kWidth) {
      accumulate_tile<kDtype>(block, weight, i, sum + i);
    }
    for (; i < block.head_dim; i += kWidth) {
      accumulate_columns<kDtype>(block, weight, i, sum + i);
    }
  }
}

}  // namespace

void neon::score_dense(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return score_rows<kDtype>(block, queries, scores); });
}

void neon::accumulate_dense(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return accumulate_rows<kDtype>(block, weights, out); });
}

namespace {

constexpr std::size_t kVectors = kSinusoidHalf / kWidth;  // per half block

// The sums of row products for four tokens, and for their four mirror images.
struct Parts {
  float32x4_t even = vdupq_n_f32(0.0f);
  float32x4_t odd = vdupq_n_f32(0.0f);
};

float32x4_t backwards(float32x4_t v) {
  const float32x4_t pairs = vrev64q_f32(v);
  return vextq_f32(pairs, pairs, 2);
}

// Adds even and odd parts to four tokens in each half of a block.
void put_both_halves(float* scores, std::size_t vector, const Parts& parts) {
  float* const upper = scores + kSinusoidHalf + kWidth * vector;
  float* const lower = scores + kSinusoidHalf - kWidth * (vector + 1);
  vst1q_f32(upper, vaddq_f32(vld1q_f32(upper), vaddq_f32(parts.even, parts.odd)));
  vst1q_f32(lower, vaddq_f32(vld1q_f32(lower), backwards(vsubq_f32(parts.even, parts.odd))));
}

template <std::size_t kQueries>
void add_group(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
               OutputRows scores) {
  constexpr std::size_t kTile = 2;
  float factors[kQueries][2 * kMaxSinusoidRows];
  for (std::size_t q = 0; q < kQueries; ++q) {
    make_sinusoid_factors(table, sinusoids, first + q, factors[q]);
  }
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    Parts sums[kQueries][kTile];
    const float* row = table.values.data() + kWidth * v;
    for (std::size_t r = 0; r < table.n_rows; ++r, row += kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const float32x4_t even = vld1q_f32(row + kWidth * i);
        const float32x4_t odd = vld1q_f32(row + kSinusoidHalf + kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          Parts& sum = sums[q][i];
          sum.even = vfmaq_n_f32(sum.even, even, factors[q][2 * r]);
          sum.odd = vfmaq_n_f32(sum.odd, odd, factors[q][2 * r + 1]);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i, sums[q][i]);
      }
    }
  }
}

constexpr std::size_t kSinusoidGroup = 4;  // queries that share the loads of a table

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

void neon::add_sinusoids_exact(const SinusoidTable& table, const Sinusoids& sinusoids,
                               OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_group<1>, add_group<2>, add_group<3>, add_group<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
