// Sums of values with AVX2: VPMADDUBSW multiplies weights as bytes (WeightBytes in line_pass.h) and
// centroids as signed bytes; for 5 bits and more, as int16. The few weights that do not fit a byte
// are added in f32.

#include "tqcache/codec/kernels/packed_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec {
namespace {

// Two products of such a byte and the byte of a centroid fit 16 bits.
constexpr float kMostSteps = CodeTables::kPairLimit;
static_assert(most_outliers(kMostSteps) < OutlierTokens::kMost);
constexpr std::size_t kVectors = kBlockTokens / kWidth;

// Weights times scales, zero beyond the tokens.
TQC_LANES_FUNCTION void scale_weights(const PackedBlock& block, const float* weights,
                                      float* scaled) {
  for (std::size_t t = 0; t < kBlockTokens; t += kWidth) {
    __m256 product = _mm256_setzero_ps();
    if (t + kWidth <= block.n_tokens) {
      product = _mm256_mul_ps(_mm256_loadu_ps(weights + t), load_scales(block.scales + t));
    } else if (t < block.n_tokens) {
      const __m256i lanes = first_lanes(block.n_tokens - t);
      const __m256 scales =
          _mm256_and_ps(load_scales(block.scales + t), _mm256_castsi256_ps(lanes));
      product = _mm256_mul_ps(_mm256_maskload_ps(weights + t, lanes), scales);
    }
    _mm256_store_ps(scaled + t, product);
  }
}

// The step for one query's weights; 0 if one is negative, NaN or infinite, or if all are too small
// or too large.
TQC_LANES_FUNCTION float find_step(const float* scaled) {
  __m256 energy[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, least = energy[0];
  TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const __m256 product = _mm256_load_ps(scaled + kWidth * v);
    energy[v % 2] = _mm256_fmadd_ps(product, product, energy[v % 2]);
    least = _mm256_min_ps(least, product);
  }
  const bool is_negative =
      _mm256_movemask_ps(_mm256_cmp_ps(least, _mm256_setzero_ps(), _CMP_LT_OQ)) != 0;
  return is_negative ? 0.0f : weight_step(sum_of(_mm256_add_ps(energy[0], energy[1])));
}

// Rounds eight weights to at most kMostSteps steps; `beyond` marks those that exceed it.
TQC_LANES __m256i round_eight(const float* scaled, __m256 inverse, std::size_t t, int& beyond) {
  const __m256 steps = _mm256_mul_ps(_mm256_load_ps(scaled + t), inverse);
  const __m256 most = _mm256_set1_ps(kMostSteps);
  beyond = _mm256_movemask_ps(_mm256_cmp_ps(steps, most, _CMP_GT_OQ));
  const __m256 up = _mm256_add_ps(steps, _mm256_loadu_ps(kWeightThresholds.data() + t));
  return _mm256_cvttps_epi32(_mm256_min_ps(up, most));
}

TQC_LANES_FUNCTION void round_to_bytes(const float* scaled, float step, std::uint8_t* bytes,
                                       std::uint32_t* outliers) {
  const __m256 inverse = _mm256_set1_ps(1.0f / step);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::size_t t = 0; t < kBlockTokens; t += 32) {
    __m256i eights[4];
    int beyond[4];
    TQC_UNROLL for (std::size_t i = 0; i < 4; ++i) {
      eights[i] = round_eight(scaled, inverse, t + kWidth * i, beyond[i]);
    }
    const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(eights[0], eights[1]),
                                               _mm256_packs_epi32(eights[2], eights[3]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + t),
                       _mm256_permutevar8x32_epi32(packed, in_order));
    outliers[t / 32] = static_cast<std::uint32_t>(beyond[0] | beyond[1] << 8 | beyond[2] << 16) |
                       static_cast<std::uint32_t>(beyond[3]) << 24;
  }
}

// Weights times scales of some queries.
struct ScaledWeights {
  alignas(32) float values[WeightBytes::kMaxQueries][kBlockTokens];

  FloatRows rows() const { return {values[0], kBlockTokens}; }
};

bool prepare(const ScaledWeights& scaled, std::size_t n, WeightBytes& prepared) {
  for (std::size_t q = 0; q < n; ++q) {
    prepared.steps[q] = find_step(scaled.values[q]);
    if (prepared.steps[q] == 0.0f) return false;
    round_to_bytes(scaled.values[q], prepared.steps[q], prepared.bytes[q], prepared.outliers[q]);
  }
  return true;
}

template <int kBits>
TQC_LANES ByteTable<kBits> load_signed_table(const std::uint8_t* bytes) {
  ByteTable<kBits> table = load_table<kBits>(bytes);
  for (__m256i& part : table.parts) {
    part = _mm256_sub_epi8(part, bytes_of(CodeTables::kNarrowOffset));
  }
  return table;
}

// Adds the sums of kRows queries from `first` on.
template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void weight_pass(const LinePass& pass, const CodeTables& tables,
                                    const WeightBytes& weights, std::size_t first) {
  constexpr std::size_t kChains = byte_chains(kRows);
  const ByteTable<kBits> table = load_signed_table<kBits>(tables.narrow);
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = lines_of_half(pass, half);
    __m256i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm256_setzero_si256();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u, unit += kBits * kLineBytes) {
      prefetch_unit<kBits>(unit);
      add_unit<Unsigned::kFactors>(unit, table, weights.bytes[first] + u * kUnitLaneCodes,
                                   kBlockTokens, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m256i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm256_add_epi32(sum, sums[r][c]);
      const __m256 factor = _mm256_set1_ps(tables.narrow_step * weights.steps[first + r]);
      put_columns(pass, half * kWidth, first + r, /*add=*/true,
                  _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor));
    }
  }
}

template <int kBits>
void add_values(const LinePass& pass, const CodeTables& tables, const WeightBytes& weights,
                std::size_t n) {
  std::size_t q = 0;
  for (; q + 4 <= n; q += 4) weight_pass<kBits, 4>(pass, tables, weights, q);
  for (; q + 2 <= n; q += 2) weight_pass<kBits, 2>(pass, tables, weights, q);
  for (; q < n; ++q) weight_pass<kBits, 1>(pass, tables, weights, q);
}

// Adds the remainders of the outlier tokens to one query's sums.
template <int kBits>
TQC_LANES_FUNCTION void add_outliers(const LinePass& pass, const float* values,
                                     const OutlierTokens& outliers, std::size_t query) {
  const FloatTable<kBits> table = load_table<kBits>(values);
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* const lines = lines_of_half(pass, half);
    __m256 sum = _mm256_setzero_ps();
    for (std::size_t i = 0; i < outliers.n; ++i) {
      const std::size_t t = outliers.tokens[i];
      const std::uint8_t* const unit = lines + t / kUnitLaneCodes * kBits * kLineBytes;
      const __m256i line = load_line<kBits>(unit, t % kUnitLaneCodes / kLaneCodes);
      const __m128i at = _mm_cvtsi32_si128(8 * static_cast<int>(t % kLaneCodes));
      const __m256 centroids = look_up<kBits>(table, _mm256_srl_epi32(line, at));
      sum = _mm256_fmadd_ps(centroids, _mm256_set1_ps(outliers.rests[i]), sum);
    }
    put_columns(pass, half * kWidth, query, /*add=*/true, sum);
  }
}

struct ValueKernels {
  void (*add_values)(const LinePass&, const CodeTables&, const WeightBytes&, std::size_t n);
  void (*add_outliers)(const LinePass&, const float* values, const OutlierTokens&,
                       std::size_t query);
};

// Requires: at most CodeTables::kMaxNarrowBits bits.
void accumulate_bytes(const LinePass& pass, const CodeTables& tables, const ScaledWeights& scaled,
                      const WeightBytes& prepared, std::size_t n) {
  constexpr ValueKernels kOfBits[] = {{add_values<1>, add_outliers<1>},
                                      {add_values<2>, add_outliers<2>},
                                      {add_values<3>, add_outliers<3>},
                                      {add_values<4>, add_outliers<4>}};
  const ValueKernels& kernels = kOfBits[tables.bits - 1];
  kernels.add_values(pass, tables, prepared, n);
  OutlierTokens outliers;
  for (std::size_t q = 0; q < n; ++q) {
    find_outliers(prepared, q, kMostSteps, scaled.values[q], outliers);
    if (outliers.n > 0) kernels.add_outliers(pass, tables.values, outliers, q);
  }
}

void accumulate(const PackedBlock& block, const CodeTables& tables, const WeightRows& weights,
                OutputRows out, Precision precision) {
  constexpr std::size_t kMost = WeightBytes::kMaxQueries;
  const bool fast = precision == Precision::kFast;
  const bool as_bytes = fast && tables.bits <= CodeTables::kMaxNarrowBits;
  const bool as_int16 = fast && !as_bytes && tables.piece_step > 0.0f;
  ScaledWeights scaled;
  WeightBytes prepared;
  for (std::size_t first = 0; first < weights.n_queries; first += kMost) {
    const std::size_t left = weights.n_queries - first;
    const std::size_t n = left < kMost ? left : kMost;
    for (std::size_t q = 0; q < n; ++q) {
      scale_weights(block, weights.values + (first + q) * weights.stride, scaled.values[q]);
    }
    const LinePass pass =
        value_pass(block, {.values = out.values + first * out.stride, .stride = out.stride});
    if (as_bytes && prepare(scaled, n, prepared)) {
      accumulate_bytes(pass, tables, scaled, prepared, n);
    } else {
      (as_int16 ? avx2::run_int16 : avx2::run_floats)(pass, tables, scaled.rows(), n);
    }
  }
}

}  // namespace

void avx2::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                            const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, Precision::kExact);
}

void avx2::accumulate_fast(const PackedBlock& block, const CodeTables& tables,
                           const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, Precision::kFast);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
