// Dense keys and values with AVX2: widened to f32, FMA.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

using avx2::first_lanes;
using avx2::kWidth;

// Eight components as f32.
template <Dtype kDtype>
TQC_AVX2 __m256 widen(const std::byte* p) {
  if constexpr (kDtype == Dtype::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// The first n, fewer than eight; the others are zero and not touched in memory.
template <Dtype kDtype>
TQC_AVX2 __m256 widen_first(const std::byte* p, std::size_t n) {
  alignas(32) std::byte padded[kWidth * sizeof(float)] = {};
  __builtin_memcpy(padded, p, n * dtype_size(kDtype));
  return widen<kDtype>(padded);
}

// Lane i of the result is the sum of the lanes of sums[i].
TQC_AVX2 __m256 add_lanes(const __m256 (&sums)[8]) {
  const __m256 low =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
  const __m256 high =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[4], sums[5]), _mm256_hadd_ps(sums[6], sums[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31));
}

// Sums of the products of kQueries queries and kTokens tokens, still in lanes. They are made in
// kChains parts, as one sum alone would wait for its own latency.
template <Dtype kDtype, std::size_t kQueries, std::size_t kTokens, std::size_t kChains>
TQC_AVX2 void multiply_rows(const std::byte* const* rows, const float* queries,
                            std::size_t query_stride, std::size_t head_dim,
                            __m256 (&sums)[kQueries][kTokens]) {
  constexpr std::size_t kChunkBytes = kWidth * dtype_size(kDtype);
  __m256 parts[kChains][kQueries][kTokens];
  TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) parts[i][q][t] = _mm256_setzero_ps();
    }
  }
  const std::size_t whole = head_dim / kWidth;
  std::size_t c = 0;
  for (; c + kChains <= whole; c += kChains) {
    TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
        const __m256 key = widen<kDtype>(rows[t] + (c + i) * kChunkBytes);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const __m256 query = _mm256_loadu_ps(queries + q * query_stride + kWidth * (c + i));
          parts[i][q][t] = _mm256_fmadd_ps(key, query, parts[i][q][t]);
        }
      }
    }
  }
  for (; c * kWidth < head_dim; ++c) {
    const std::size_t left = head_dim - c * kWidth;
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      const std::byte* const p = rows[t] + c * kChunkBytes;
      const __m256 key = left < kWidth ? widen_first<kDtype>(p, left) : widen<kDtype>(p);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const __m256 query = _mm256_loadu_ps(queries + q * query_stride + kWidth * c);
        parts[0][q][t] = _mm256_fmadd_ps(key, query, parts[0][q][t]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      sums[q][t] = parts[0][q][t];
      TQC_UNROLL for (std::size_t i = 1; i < kChains; ++i) {
        sums[q][t] = _mm256_add_ps(sums[q][t], parts[i][q][t]);
      }
    }
  }
}

// Sums of kQueries queries and eight tokens from kFirst on, kTogether at a time.
template <Dtype kDtype, std::size_t kQueries, std::size_t kTogether, std::size_t kFirst = 0>
TQC_AVX2 void multiply_tile(const std::byte* const* rows, const float* queries,
                            std::size_t query_stride, std::size_t head_dim,
                            __m256 (&all)[kQueries][kWidth]) {
  constexpr std::size_t kTokens = kWidth - kFirst < kTogether ? kWidth - kFirst : kTogether;
  constexpr std::size_t kChains = kQueries * kTogether == 1 ? 4 : 1;
  __m256 sums[kQueries][kTokens];
  multiply_rows<kDtype, kQueries, kTokens, kChains>(rows + kFirst, queries, query_stride, head_dim,
                                                    sums);
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) all[q][kFirst + t] = sums[q][t];
  }
  if constexpr (kFirst + kTokens < kWidth) {
    multiply_tile<kDtype, kQueries, kTogether, kFirst + kTokens>(rows, queries, query_stride,
                                                                 head_dim, all);
  }
}

// One query reads row after row: memory is fetched ahead best when it is walked along. Of several
// queries each value has more to do, and rows share the loads of the queries, as many as there are
// registers for their sums.
constexpr std::size_t rows_together(std::size_t n_queries) {
  return n_queries == 1 ? 1 : n_queries == 2 ? 4 : 3;
}

// Eight tokens: what rows hold is in the first cache when the next queries come.
template <Dtype kDtype, std::size_t kQueries>
TQC_AVX2_FUNCTION void score_queries(const std::byte* const (&rows)[kWidth], std::size_t n_tokens,
                                     const QueryRows& queries, std::size_t first_query,
                                     std::size_t head_dim, float* scores, std::size_t stride) {
  const float* const query = queries.values + first_query * queries.stride;
  __m256 sums[kQueries][kWidth];
  multiply_tile<kDtype, kQueries, rows_together(kQueries)>(rows, query, queries.stride, head_dim,
                                                           sums);
  for (std::size_t q = 0; q < kQueries; ++q) {
    float* const row = scores + (first_query + q) * stride;
    const __m256 eight = add_lanes(sums[q]);
    if (n_tokens == kWidth) {
      _mm256_storeu_ps(row, eight);
    } else {
      _mm256_maskstore_ps(row, first_lanes(n_tokens), eight);
    }
  }
}

template <Dtype kDtype>
void score_rows(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  const std::size_t row_bytes = block.head_dim * dtype_size(kDtype);
  const std::size_t n = queries.n_queries;
  for (std::size_t first = 0; first < block.n_tokens; first += kWidth) {
    const std::size_t left = block.n_tokens - first;
    const std::size_t n_tokens = left < kWidth ? left : kWidth;
    const std::byte* rows[kWidth];
    for (std::size_t t = 0; t < kWidth; ++t) {
      rows[t] = block.rows + (first + (t < n_tokens ? t : n_tokens - 1)) * row_bytes;
    }
    float* const out = scores.values + first;
    std::size_t q = 0;
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

// Adds kQueries weighted sums of 8 * kChunks components from `first` on.
template <Dtype kDtype, std::size_t kQueries, std::size_t kChunks>
TQC_AVX2_FUNCTION void accumulate_tile(const DenseBlock& block, const float* weights,
                                       std::size_t weight_stride, std::size_t first, float* out,
                                       std::size_t out_stride) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const std::size_t row_bytes = block.head_dim * kSize;
  const std::byte* row = block.rows + first * kSize;
  __m256 sums[kQueries][kChunks];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      sums[q][c] = _mm256_loadu_ps(out + q * out_stride + first + kWidth * c);
    }
  }
  for (std::size_t t = 0; t < block.n_tokens; ++t, row += row_bytes) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      const __m256 value = widen<kDtype>(row + kWidth * c * kSize);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const __m256 weight = _mm256_set1_ps(weights[q * weight_stride + t]);
        sums[q][c] = _mm256_fmadd_ps(value, weight, sums[q][c]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      _mm256_storeu_ps(out + q * out_stride + first + kWidth * c, sums[q][c]);
    }
  }
}

// The last components, fewer than eight.
template <Dtype kDtype>
TQC_AVX2_FUNCTION void accumulate_tail(const DenseBlock& block, const float* weights,
                                       std::size_t first, float* out) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const std::size_t n = block.head_dim - first;
  const __m256i lanes = first_lanes(n);
  __m256 sum = _mm256_maskload_ps(out + first, lanes);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const row = block.rows + (t * block.head_dim + first) * kSize;
    sum = _mm256_fmadd_ps(widen_first<kDtype>(row, n), _mm256_set1_ps(weights[t]), sum);
  }
  _mm256_maskstore_ps(out + first, lanes, sum);
}

template <Dtype kDtype, std::size_t kQueries, std::size_t kChunks>
void accumulate_queries(const DenseBlock& block, const float* weights, std::size_t weight_stride,
                        float* out, std::size_t out_stride) {
  constexpr std::size_t kTile = kWidth * kChunks;
  std::size_t first = 0;
  for (; first + kTile <= block.head_dim; first += kTile) {
    accumulate_tile<kDtype, kQueries, kChunks>(block, weights, weight_stride, first, out,
                                               out_stride);
  }
  for (; first + kWidth <= block.head_dim; first += kWidth) {
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
  run(accumulate_queries<kDtype, 4, 2>, 4);
  run(accumulate_queries<kDtype, 2, 4>, 2);
  run(accumulate_queries<kDtype, 1, 8>, 1);
}

}  // namespace

void avx2::score_dense(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return score_rows<kDtype>(block, queries, scores); });
}

void avx2::accumulate_dense(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return accumulate_rows<kDtype>(block, weights, out); });
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
