// codec/kernels/dense_lanes.h: scores and sums of dense keys and values, widened to f32 and
// multiplied with FMA. Included by dense_*.cpp, which define the tiling of sums first:
//
//   kMostQueries                the largest number of queries at once, 4 or 8
//   tile_tokens(n_queries)      tokens of a tile of scores, which has a multiple of kWidth sums
//   tokens_together(n_queries)  those of them that share the loads of the queries
//   chunks(n_queries)           registers of components of a tile of sums

namespace tqcache::codec {
namespace {

// Sums of the products of kQueries queries and kTokens tokens, not yet added across lanes. They are
// computed in kChains parts, because the additions of a single sum wait for each other.
template <Dtype kDtype, std::size_t kQueries, std::size_t kTokens, std::size_t kChains>
TQC_LANES void multiply_tokens(const std::byte* const* rows, const float* queries,
                               std::size_t query_stride, std::size_t head_dim,
                               Lanes (&sums)[kQueries][kTokens]) {
  constexpr std::size_t kChunkBytes = kWidth * dtype_size(kDtype);
  Lanes parts[kChains][kQueries][kTokens];
  TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) parts[i][q][t] = spread(0.0f);
    }
  }
  const std::size_t whole = head_dim / kWidth;
  std::size_t c = 0;
  for (; c + kChains <= whole; c += kChains) {
    TQC_UNROLL for (std::size_t i = 0; i < kChains; ++i) {
      TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
        const Lanes key = widen<kDtype>(rows[t] + (c + i) * kChunkBytes, 0);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const Lanes query = load(queries + q * query_stride + kWidth * (c + i));
          parts[i][q][t] = fused(key, query, parts[i][q][t]);
        }
      }
    }
  }
  for (; c * kWidth < head_dim; ++c) {
    const Part part = part_of(head_dim - c * kWidth);
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      const Lanes key = widen<kDtype>(rows[t] + c * kChunkBytes, 0, part);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const Lanes query = load(queries + q * query_stride + kWidth * c);
        parts[0][q][t] = fused(key, query, parts[0][q][t]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t t = 0; t < kTokens; ++t) {
      sums[q][t] = parts[0][q][t];
      TQC_UNROLL for (std::size_t i = 1; i < kChains; ++i) sums[q][t] = sums[q][t] + parts[i][q][t];
    }
  }
}

// Sums of kQueries queries and the tokens of a tile from kFirst on, kTogether at a time. Sum t of
// query q has index q * kTokens + t in `all`.
template <Dtype kDtype, std::size_t kQueries, std::size_t kTokens, std::size_t kTogether,
          std::size_t kFirst = 0>
TQC_LANES void multiply_tile(const std::byte* const* rows, const float* queries,
                             std::size_t query_stride, std::size_t head_dim,
                             Lanes (&all)[kQueries * kTokens / kWidth][kWidth]) {
  constexpr std::size_t kNow = kTokens - kFirst < kTogether ? kTokens - kFirst : kTogether;
  constexpr std::size_t kChains = kQueries * kTogether == 1 ? 4 : 1;
  Lanes sums[kQueries][kNow];
  multiply_tokens<kDtype, kQueries, kNow, kChains>(rows + kFirst, queries, query_stride, head_dim,
                                                   sums);
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t t = 0; t < kNow; ++t) {
      const std::size_t at = q * kTokens + kFirst + t;
      all[at / kWidth][at % kWidth] = sums[q][t];
    }
  }
  if constexpr (kFirst + kNow < kTokens) {
    multiply_tile<kDtype, kQueries, kTokens, kTogether, kFirst + kNow>(rows, queries, query_stride,
                                                                       head_dim, all);
  }
}

// The scores of the first n_tokens tokens of a tile: row q goes to out + q * stride.
template <Dtype kDtype, std::size_t kQueries>
TQC_LANES void score_tile(const std::byte* const* rows, std::size_t n_tokens, const float* queries,
                          std::size_t query_stride, std::size_t head_dim, float* out,
                          std::size_t stride) {
  constexpr std::size_t kTokens = tile_tokens(kQueries);
  constexpr std::size_t kGroups = kQueries * kTokens / kWidth;
  Lanes all[kGroups][kWidth];
  multiply_tile<kDtype, kQueries, kTokens, tokens_together(kQueries)>(rows, queries, query_stride,
                                                                      head_dim, all);
  const Part part = part_of(n_tokens < kTokens ? n_tokens : kTokens);
  if constexpr (kTokens == kWidth) {
    for (std::size_t q = 0; q < kQueries; ++q) put(out + q * stride, add_lanes(all[q]), part);
  } else {
    float sums[kGroups * kWidth];
    for (std::size_t g = 0; g < kGroups; ++g) store(sums + g * kWidth, add_lanes(all[g]));
    for (std::size_t q = 0; q < kQueries; ++q) {
      put(out + q * stride, load(sums + q * kTokens, part), part);
    }
  }
}

// Scores of kWidth tokens: their rows are in the L1 cache for the next queries.
template <Dtype kDtype, std::size_t kQueries>
TQC_LANES_FUNCTION void score_queries(const std::byte* const (&rows)[kWidth], std::size_t n_tokens,
                                      const QueryRows& queries, std::size_t first_query,
                                      std::size_t head_dim, float* scores, std::size_t stride) {
  constexpr std::size_t kTokens = tile_tokens(kQueries);
  const float* const query = queries.values + first_query * queries.stride;
  float* const out = scores + first_query * stride;
  if constexpr (kTokens == kWidth) {
    score_tile<kDtype, kQueries>(rows, n_tokens, query, queries.stride, head_dim, out, stride);
  } else {
    for (std::size_t t = 0; t < n_tokens; t += kTokens) {
      score_tile<kDtype, kQueries>(rows + t, n_tokens - t, query, queries.stride, head_dim, out + t,
                                   stride);
    }
  }
}

template <Dtype kDtype>
TQC_LANES_FUNCTION void score_rows(const DenseBlock& block, const QueryRows& queries,
                                   OutputRows scores) {
  const std::size_t row_bytes = block.head_dim * dtype_size(kDtype);
  for (std::size_t first = 0; first < block.n_tokens; first += kWidth) {
    const std::size_t left = block.n_tokens - first;
    const std::size_t n_tokens = left < kWidth ? left : kWidth;
    const std::byte* rows[kWidth];
    for (std::size_t t = 0; t < kWidth; ++t) {
      rows[t] = block.rows + (first + (t < n_tokens ? t : n_tokens - 1)) * row_bytes;
    }
    float* const out = scores.values + first;
    std::size_t q = 0;
    const auto run = [&]<std::size_t kQueries>() {
      for (; q + kQueries <= queries.n_queries; q += kQueries) {
        score_queries<kDtype, kQueries>(rows, n_tokens, queries, q, block.head_dim, out,
                                        scores.stride);
      }
    };
    if constexpr (kMostQueries == 8) run.template operator()<8>();
    run.template operator()<4>();
    run.template operator()<2>();
    run.template operator()<1>();
  }
}

// Adds kQueries weighted sums of kWidth * kChunks components from `first` on.
template <Dtype kDtype, std::size_t kQueries, std::size_t kChunks>
TQC_LANES_FUNCTION void accumulate_tile(const DenseBlock& block, const float* weights,
                                        std::size_t weight_stride, std::size_t first, float* out,
                                        std::size_t out_stride) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const std::size_t row_bytes = block.head_dim * kSize;
  const std::byte* row = block.rows + first * kSize;
  Lanes sums[kQueries][kChunks];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      sums[q][c] = load(out + q * out_stride + first + kWidth * c);
    }
  }
  for (std::size_t t = 0; t < block.n_tokens; ++t, row += row_bytes) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      const Lanes value = widen<kDtype>(row + kWidth * c * kSize, 0);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        sums[q][c] = fused(value, spread(weights[q * weight_stride + t]), sums[q][c]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t c = 0; c < kChunks; ++c) {
      store(out + q * out_stride + first + kWidth * c, sums[q][c]);
    }
  }
}

// The last components, fewer than kWidth.
template <Dtype kDtype>
TQC_LANES_FUNCTION void accumulate_tail(const DenseBlock& block, const float* weights,
                                        std::size_t first, float* out) {
  constexpr std::size_t kSize = dtype_size(kDtype);
  const Part part = part_of(block.head_dim - first);
  Lanes sum = load(out + first, part);
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    const std::byte* const row = block.rows + (t * block.head_dim + first) * kSize;
    sum = fused(widen<kDtype>(row, 0, part), spread(weights[t]), sum);
  }
  put(out + first, sum, part);
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
  const float* weight = weights.values;
  float* sum = out.values;
  std::size_t q = 0;
  const auto run = [&]<std::size_t kQueries, std::size_t kChunks>() {
    for (; q + kQueries <= weights.n_queries; q += kQueries) {
      accumulate_queries<kDtype, kQueries, kChunks>(block, weight, weights.stride, sum, out.stride);
      weight += kQueries * weights.stride;
      sum += kQueries * out.stride;
    }
  };
  if constexpr (kMostQueries == 8) run.template operator()<8, chunks(8)>();
  run.template operator()<4, chunks(4)>();
  run.template operator()<2, chunks(2)>();
  run.template operator()<1, chunks(1)>();
}

}  // namespace

void TQC_SET::score_dense(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return score_rows<kDtype>(block, queries, scores); });
}

void TQC_SET::accumulate_dense(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  return by_dtype(block.dtype,
                  [&]<Dtype kDtype>() { return accumulate_rows<kDtype>(block, weights, out); });
}

}  // namespace tqcache::codec
