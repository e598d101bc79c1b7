// Dense keys and values with AVX-512: widened to f32, FMA.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/kernels_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

using avx512::first_lanes;

// Sixteen components as f32; those beyond `lanes` are zero and not touched in memory.
template <Dtype kDtype>
TQC_AVX512 __m512 widen(const std::byte* p, __mmask16 lanes) {
  if constexpr (kDtype == Dtype::kF32) return _mm512_maskz_loadu_ps(lanes, p);
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes, p);
  if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

template <Dtype kDtype>
TQC_AVX512 __m512 widen(const std::byte* p) {
  if constexpr (kDtype == Dtype::kF32) return _mm512_loadu_ps(p);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Halves the lanes of a and b by adding, a's results below or between b's.
TQC_AVX512 __m512 add_words(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
TQC_AVX512 __m512 add_pairs(__m512 a, __m512 b) {
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}
TQC_AVX512 __m512 add_quads(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Lane i of the result is the sum of the lanes of sums[i].
TQC_AVX512 __m512 add_lanes(const __m512 (&sums)[16]) {
  __m512 fours[4];
  TQC_UNROLL for (std::size_t i = 0; i < 4; ++i) {
    // Each quad of lanes then holds sums 4i, 4i+1, 4i+2, 4i+3 of its own lanes.
    fours[i] = add_pairs(add_words(sums[4 * i], sums[4 * i + 1]),
                         add_words(sums[4 * i + 2], sums[4 * i + 3]));
  }
  return add_quads(add_quads(fours[0], fours[1]), add_quads(fours[2], fours[3]));
}

// Sums of the products of kQueries queries and kTokens tokens, still in lanes. They are made in
// kChains parts, as one sum alone would wait for its own latency.
template <Dtype kDtype, std::size_t kQueries, std::size_t kTokens, std::size_t kChains>
TQC_AVX512 void multiply_rows(const std::byte* const* rows, const float* queries,
                              std::size_t query_stride, std::size_t head_dim,
                              __m512 (&sums)[kQueries][kTokens]) {
  constexpr std::size_t kChunkBytes = 16 * dtype_size(kDtype);
  __m512 parts[kChains][kQueries][kTokens];
  TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) parts[i][q][t] = _mm512_setzero_ps();
    }
  }
  const std::size_t whole = head_dim / 16;
  std::size_t c = 0;
  for (; c + kChains <= whole; c += kChains) {
    TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
        const __m512 key = widen<kDtype>(rows[t] + (c + i) * kChunkBytes);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const __m512 query = _mm512_loadu_ps(queries + q * query_stride + 16 * (c + i));
          parts[i][q][t] = _mm512_fmadd_ps(key, query, parts[i][q][t]);
        }
      }
    }
  }
  for (; 16 * c < head_dim; ++c) {
    const std::size_t left = head_dim - c * 16;
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      const std::byte* const p = rows[t] + c * kChunkBytes;
      const __m512 key = widen<kDtype>(p, first_lanes(left));
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const __m512 query = _mm512_loadu_ps(queries + q * query_stride + 16 * c);
        parts[0][q][t] = _mm512_fmadd_ps(key, query, parts[0][q][t]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      sums[q][t] = parts[0][q][t];
      TQC_UNROLL for (std::size_t i = 1; i < kChains; ++i) {
        sums[q][t] = _mm512_add_ps(sums[q][t], parts[i][q][t]);
      }
    }
  }
}

// Scores of kQueries queries and 16 / kQueries tokens, which make sixteen sums. One query reads row
// after row: memory is fetched ahead best when it is walked along. Of several queries each value
// has more to do, and four rows share the loads of the queries.
template <Dtype kDtype, std::size_t kQueries>
TQC_AVX512 void score_tile(const std::byte* const* rows, const float* queries,
                           std::size_t query_stride, std::size_t head_dim, float* sixteen) {
  constexpr std::size_t kTokens = 16 / kQueries;
  constexpr std::size_t kTogether = kQueries == 1 ? 1 : kTokens < 4 ? kTokens : 4;
  constexpr std::size_t kChains = kQueries == 1 ? 4 : 1;
  __m512 all[16];
  TQC_UNROLL for (std::size_t first = 0; first < kTokens; first += kTogether) {
    __m512 sums[kQueries][kTogether];
    multiply_rows<kDtype, kQueries, kTogether, kChains>(rows + first, queries, query_stride,
                                                        head_dim, sums);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t t = 0; t < kTogether; ++t) {
        all[q * kTokens + first + t] = sums[q][t];
      }
    }
  }
  _mm512_storeu_ps(sixteen, add_lanes(all));
}

// Sixteen tokens: what rows hold is in the first cache when the next queries come.
template <Dtype kDtype, std::size_t kQueries>
TQC_AVX512_FUNCTION void score_queries(const std::byte* const (&rows)[16], std::size_t n_tokens,
                                       const QueryRows& queries, std::size_t first_query,
                                       std::size_t head_dim, float* scores, std::size_t stride) {
  constexpr std::size_t kTokens = 16 / kQueries;
  const float* const query = queries.values + first_query * queries.stride;
  for (std::size_t t = 0; t < n_tokens; t += kTokens) {
    float sixteen[16];
    score_tile<kDtype, kQueries>(rows + t, query, queries.stride, head_dim, sixteen);
    const std::size_t valid = n_tokens - t < kTokens ? n_tokens - t : kTokens;
    for (std::size_t q = 0; q < kQueries; ++q) {
      float* const row = scores + (first_query + q) * stride + t;
      const __mmask16 lanes = first_lanes(valid);
      _mm512_mask_storeu_ps(row, lanes, _mm512_maskz_loadu_ps(lanes, sixteen + q * kTokens));
    }
  }
}

template <Dtype kDtype>
TQC_AVX512_FUNCTION void score_rows(const DenseBlock& block, const QueryRows& queries,
                                    OutputRows scores) {
  const std::size_t row_bytes = block.head_dim * dtype_size(kDtype);
  const std::size_t n = queries.n_queries;
  for (std::size_t first = 0; first < block.n_tokens; first += 16) {
    const std::size_t left = block.n_tokens - first;
    const std::size_t n_tokens = left < 16 ? left : 16;
    const std::byte* rows[16];
    for (std::size_t t = 0; t < 16; ++t) {
      rows[t] = block.rows + (first + (t < n_tokens ? t : n_tokens - 1)) * row_bytes;
    }
    float* const out = scores.values + first;
    std::size_t q = 0;
    for (; q + 8 <= n; q += 8) {
      score_queries<kDtype, 8>(rows, n_tokens, queries, q, block.head_dim, out, scores.stride);
    }
    for (; q + 4 <= n; q += 4) {
      score_queries<kDtype, 4>(rows, n_tokens, queries, q, block.head_dim, out, scores.stride);
    }
    for (; q + 2 <= n; q += 2) {
      score_queries<kDtype, 2>(rows, n_tokens, queries, q, block.head_dim, out, scores.stride);
    }
    for (; q < n; ++q) {
      score_queries<kDtype, 1>(rows, n_tokens, queries, q, block.head_dim, out, scores.stride);
    }
  }
}

// Adds kQueries weighted sums of 16 * kChunks components from `first` on.
template <Dtype kDtype, std::size_t kQueries, std::size_t kChunks>
TQC_AVX512_FUNCTION void accumulate_tile(const DenseBlock& block, const float* weights,
                                         std::size_t weight_stride, std::size_t first, float* out,
                                         std::size_t out_stride) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const std::size_t row_bytes = block.head_dim * kSize;
  const std::byte* row = block.rows + first * kSize;
  __m512 sums[kQueries][kChunks];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      sums[q][c] = _mm512_loadu_ps(out + q * out_stride + first + 16 * c);
    }
  }
  for (std::size_t t = 0; t < block.n_tokens; ++t, row += row_bytes) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      const __m512 value = widen<kDtype>(row + 16 * c * kSize);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const __m512 weight = _mm512_set1_ps(weights[q * weight_stride + t]);
        sums[q][c] = _mm512_fmadd_ps(value, weight, sums[q][c]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      _mm512_storeu_ps(out + q * out_stride + first + 16 * c, sums[q][c]);
    }
  }
}

// The last components, fewer than sixteen.
template <Dtype kDtype>
TQC_AVX512_FUNCTION void accumulate_tail(const DenseBlock& block, const float* weights,
                                         std::size_t first, float* out) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const __mmask16 lanes = first_lanes(block.head_dim - first);
  __m512 sum = _mm512_maskz_loadu_ps(lanes, out + first);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const row = block.rows + (t * block.head_dim + first) * kSize;
    sum = _mm512_fmadd_ps(widen<kDtype>(row, lanes), _mm512_set1_ps(weights[t]), sum);
  }
  _mm512_mask_storeu_ps(out + first, lanes, sum);
}

template <Dtype kDtype, std::size_t kQueries, std::size_t kChunks>
void accumulate_queries(const DenseBlock& block, const float* weights, std::size_t weight_stride,
                        float* out, std::size_t out_stride) {
  std::size_t first = 0;
  for (; first + 16 * kChunks <= block.head_dim; first += 16 * kChunks) {
    accumulate_tile<kDtype, kQueries, kChunks>(block, weights, weight_stride, first, out,
                                               out_stride);
  }
  for (; first + 16 <= block.head_dim; first += 16) {
    accumulate_tile<kDtype, kQueries, 1>(block, weights, weight_stride, first, out, out_stride);
  }
  if (first == block.head_dim) return;
  for (std::size_t q = 0; q < kQueries; ++q) {
    accumulate_tail<kDtype>(block, weights + q * weight_stride, first, out + q * out_stride);
  }
}

template <Dtype kDtype>
void accumulate_rows(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  const std::size_t n = weights.n_queries;
  const float* weight = weights.values;
  float* sum = out.values;
  std::size_t q = 0;
  const auto run = [&](auto tile, std::size_t rows) {
    for (; q + rows <= n; q += rows, weight += rows * weights.stride, sum += rows * out.stride) {
      tile(block, weight, weights.stride, sum, out.stride);
    }
  };
  run(accumulate_queries<kDtype, 8, 2>, 8);
  run(accumulate_queries<kDtype, 4, 4>, 4);
  run(accumulate_queries<kDtype, 2, 8>, 2);
  run(accumulate_queries<kDtype, 1, 8>, 1);
}

}  // namespace

void avx512::score_dense(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return score_rows<kDtype>(block, queries, scores); });
}

void avx512::accumulate_dense(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return accumulate_rows<kDtype>(block, weights, out); });
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
