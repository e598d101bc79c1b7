// Dense keys and values with NEON: widened to f32, FMLA.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/kernels_neon.h"

#ifdef TQCACHE_NEON

namespace tqcache::codec {
namespace {

using neon::kWidth;

// Four components as f32.
template <Dtype kDtype>
float32x4_t widen(const std::byte* p) {
  if constexpr (kDtype == Dtype::kF32) {
    float32x4_t v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  } else {
    uint16x4_t halves;
    __builtin_memcpy(&halves, p, sizeof(halves));
    if constexpr (kDtype == Dtype::kF16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
  }
}

// The first n, fewer than four; the others are zero and not touched in memory.
template <Dtype kDtype>
float32x4_t widen_first(const std::byte* p, std::size_t n) {
  std::byte padded[kWidth * sizeof(float)] = {};
  __builtin_memcpy(padded, p, n * dtype_size(kDtype));
  return widen<kDtype>(padded);
}

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
      sums[c] = vfmaq_f32(sums[c], widen<kDtype>(row + at * kSize), vld1q_f32(query + at));
    }
  }
  for (; i < head_dim; i += kWidth) {
    const std::size_t left = head_dim - i;
    const std::byte* const p = row + i * kSize;
    const float32x4_t key = left < kWidth ? widen_first<kDtype>(p, left) : widen<kDtype>(p);
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
  float32x4_t sum = widen_first<Dtype::kF32>(reinterpret_cast<const std::byte*>(out), n);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const p = block.rows + (t * block.head_dim + first) * kSize;
    const float32x4_t value = n < kWidth ? widen_first<kDtype>(p, n) : widen<kDtype>(p);
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
      sums[c] = vfmaq_n_f32(sums[c], widen<kDtype>(p + c * kWidth * kSize), weights[t]);
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

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
