// Sums of values with AVX-512: VPDPBUSD multiplies weights as bytes (WeightBytes in line_pass.h)
// and centroids as signed bytes. The few weights that do not fit a byte are added in f32.

#include "tqcache/codec/kernels/packed_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec {
namespace {

constexpr float kMostSteps = 255.0f;  // the largest byte
static_assert(most_outliers(kMostSteps) < OutlierTokens::kMost);
constexpr std::size_t kVectors = kBlockTokens / kLanes;

// Weights times scales of some queries, zero beyond the tokens.
struct ScaledWeights {
  alignas(64) float values[WeightBytes::kMaxQueries][kBlockTokens];

  FloatRows rows() const { return {values[0], kBlockTokens}; }
};

// Queries `first` to first + n - 1.
TQC_LANES_FUNCTION void scale_weights(const PackedBlock& block, const WeightRows& weights,
                                      std::size_t first, std::size_t n, ScaledWeights& scaled) {
  const float* const rows = weights.values + first * weights.stride;
  for (std::size_t t = 0; t < kBlockTokens; t += kLanes) {
    const __mmask16 lanes = part_of(t < block.n_tokens ? block.n_tokens - t : 0);
    const __m512 scales = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, block.scales + t));
    for (std::size_t q = 0; q < n; ++q) {
      const __m512 row = _mm512_maskz_loadu_ps(lanes, rows + q * weights.stride + t);
      _mm512_store_ps(scaled.values[q] + t, _mm512_mul_ps(row, scales));
    }
  }
}

// The step for one query's weights; 0 if one is negative, NaN or infinite, or if all are too small
// or too large.
TQC_LANES_FUNCTION float find_step(const float* scaled) {
  __m512 energy[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, least = energy[0];
  TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const __m512 product = _mm512_load_ps(scaled + kLanes * v);
    energy[v % 2] = _mm512_fmadd_ps(product, product, energy[v % 2]);
    least = _mm512_min_ps(least, product);
  }
  const __mmask16 negative = _mm512_cmp_ps_mask(least, _mm512_setzero_ps(), _CMP_LT_OQ);
  if (negative != 0) return 0.0f;
  return weight_step(_mm512_reduce_add_ps(_mm512_add_ps(energy[0], energy[1])));
}

TQC_LANES_FUNCTION void round_to_bytes(const float* scaled, float step, std::uint8_t* bytes,
                                       std::uint32_t* outliers) {
  const __m512 inverse = _mm512_set1_ps(1.0f / step), most = _mm512_set1_ps(kMostSteps);
  TQC_UNROLL for (std::size_t v = 0; v < kVectors; v += 2) {
    std::uint32_t beyond[2];
    TQC_UNROLL for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t t = kLanes * (v + i);
      const __m512 steps = _mm512_mul_ps(_mm512_load_ps(scaled + t), inverse);
      const __m512 up = _mm512_add_ps(steps, _mm512_loadu_ps(kWeightThresholds.data() + t));
      const __m128i rounded = _mm512_cvtusepi32_epi8(_mm512_cvttps_epi32(up));
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes + t), rounded);
      beyond[i] = _mm512_cmp_ps_mask(steps, most, _CMP_GT_OQ);
    }
    outliers[v / 2] = beyond[0] | beyond[1] << 16;
  }
}

bool prepare(const ScaledWeights& scaled, std::size_t n, WeightBytes& prepared) {
  for (std::size_t q = 0; q < n; ++q) {
    prepared.steps[q] = find_step(scaled.values[q]);
    if (prepared.steps[q] == 0.0f) return false;
    round_to_bytes(scaled.values[q], prepared.steps[q], prepared.bytes[q], prepared.outliers[q]);
  }
  return true;
}

// Bytes of centroids minus 128.
TQC_LANES __m512i make_signed(__m512i bytes) { return _mm512_xor_si512(bytes, bytes_of(0x80)); }

template <int kBits>
TQC_LANES ByteTable<kBits> load_signed_table(const std::uint8_t* bytes) {
  ByteTable<kBits> table = load_table<kBits>(bytes);
  if constexpr (kBits != kPlain) {
    for (__m512i& part : table.parts) part = make_signed(part);
  }
  return table;
}

template <int kBits, std::size_t kRows>
TQC_LANES void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                        const std::uint8_t* weights, __m512i (&sums)[kRows][chains(kRows)]) {
  __m512i values[kUnit];
  look_up_unit<kBits>(unit, table, values);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    if constexpr (kBits == kPlain) values[k] = make_signed(values[k]);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      int four;
      __builtin_memcpy(&four, weights + r * kBlockTokens + 4 * k, 4);
      __m512i& sum = sums[r][k % chains(kRows)];
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(four), values[k]);
    }
  }
}

// Adds the sums of kRows queries from `first` on.
template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void weight_pass(const LinePass& pass, const std::uint8_t* table_bytes,
                                    float step, const WeightBytes& weights, std::size_t first) {
  constexpr std::size_t kChains = chains(kRows);
  const ByteTable<kBits> table = load_signed_table<kBits>(table_bytes);
  for (std::size_t g = 0; g < pass.n_groups; ++g) {
    const std::uint8_t* unit = pass.lines + g * pass.group_bytes;
    __m512i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_si512();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u, unit += unit_lines(kBits) * kLineBytes) {
      prefetch_unit<kBits>(unit);
      add_unit<kBits, kRows>(unit, table, weights.bytes[first] + u * kUnitLaneCodes, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m512i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, sums[r][c]);
      const __m512 factor = _mm512_set1_ps(step * weights.steps[first + r]);
      put_columns(pass, g, first + r, /*add=*/true, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
    }
  }
}

// Processes all queries with one table.
template <int kBits>
void weight_passes(const LinePass& pass, const std::uint8_t* bytes, float step,
                   const WeightBytes& weights, std::size_t n) {
  std::size_t q = 0;
  if constexpr (is_common(kBits)) {
    for (; q + 8 <= n; q += 8) weight_pass<kBits, 8>(pass, bytes, step, weights, q);
  }
  for (; q + 4 <= n; q += 4) weight_pass<kBits, 4>(pass, bytes, step, weights, q);
  if constexpr (is_common(kBits)) {
    for (; q + 2 <= n; q += 2) weight_pass<kBits, 2>(pass, bytes, step, weights, q);
  }
  for (; q < n; ++q) weight_pass<kBits, 1>(pass, bytes, step, weights, q);
}

// Adds the remainders of the outlier tokens to one query's sums.
template <int kBits>
TQC_LANES_FUNCTION void add_outliers(const LinePass& pass, const float* values,
                                     const OutlierTokens& outliers, std::size_t query) {
  const FloatTable<kBits> table = load_table<kBits>(values);
  const std::uint8_t* lines = pass.lines;
  for (std::size_t g = 0; g < pass.n_groups; ++g, lines += pass.group_bytes) {
    __m512 sum = _mm512_setzero_ps();
    for (std::size_t i = 0; i < outliers.n; ++i) {
      const std::size_t t = outliers.tokens[i];
      const std::uint8_t* const unit = lines + t / kUnitLaneCodes * kBits * kLineBytes;
      const __m512i line = load_line<kBits>(unit, t % kUnitLaneCodes / kLaneCodes);
      const __m128i at = _mm_cvtsi32_si128(8 * static_cast<int>(t % kLaneCodes));
      const __m512 centroids = look_up<kBits>(table, _mm512_srl_epi32(line, at));
      sum = _mm512_fmadd_ps(centroids, _mm512_set1_ps(outliers.rests[i]), sum);
    }
    put_columns(pass, g, query, /*add=*/true, sum);
  }
}

template <int kBits>
void add_values(const LinePass& pass, const CodeTables& tables, const WeightBytes& weights,
                std::size_t n) {
  if constexpr (kBits == 8) {
    weight_passes<kPlain>(pass, nullptr, tables.linear_step, weights, n);
    weight_passes<8>(pass, tables.remainder, tables.remainder_step, weights, n);
  } else if (tables.n_levels == 1) {
    weight_passes<kBits>(pass, tables.bytes[0], tables.step, weights, n);
  } else {
    weight_passes<kBits>(pass, tables.bytes[0], 256.0f * tables.step, weights, n);
    weight_passes<kBits>(pass, tables.bytes[1], tables.step, weights, n);
  }
}

struct ValueKernels {
  void (*add_values)(const LinePass&, const CodeTables&, const WeightBytes&, std::size_t n);
  void (*add_outliers)(const LinePass&, const float* values, const OutlierTokens&,
                       std::size_t query);
};

void accumulate_bytes(const LinePass& pass, const CodeTables& tables, const ScaledWeights& scaled,
                      const WeightBytes& prepared, std::size_t n) {
  constexpr ValueKernels kOfBits[] = {
      {add_values<1>, add_outliers<1>}, {add_values<2>, add_outliers<2>},
      {add_values<3>, add_outliers<3>}, {add_values<4>, add_outliers<4>},
      {add_values<5>, add_outliers<5>}, {add_values<6>, add_outliers<6>},
      {add_values<7>, add_outliers<7>}, {add_values<8>, add_outliers<8>}};
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
  ScaledWeights scaled;
  WeightBytes prepared;
  for (std::size_t first = 0; first < weights.n_queries; first += kMost) {
    const std::size_t left = weights.n_queries - first;
    const std::size_t n = left < kMost ? left : kMost;
    scale_weights(block, weights, first, n, scaled);
    const LinePass pass =
        value_pass(block, {.values = out.values + first * out.stride, .stride = out.stride});
    if (precision == Precision::kFast && prepare(scaled, n, prepared)) {
      accumulate_bytes(pass, tables, scaled, prepared, n);
    } else {
      avx512::run_floats(pass, tables, scaled.rows(), n);
    }
  }
}

}  // namespace

void avx512::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                              const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, Precision::kExact);
}

void avx512::accumulate_fast(const PackedBlock& block, const CodeTables& tables,
                             const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, Precision::kFast);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
