// Encoding and decoding with AVX-512: sixteen head vectors at once, one a lane.
//
// Every lane goes through just the operations of Quantizer, in its order, so the bytes are the
// same. Component i of sixteen vectors is one register: no operation crosses lanes but the
// transposition on the way in and out.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/codebook_avx512.h"
#include "tqcache/codec/kernels/rows_avx512.h"

#ifdef TQCACHE_X86

#include <limits>

#define TQC_LANES_FUNCTION TQC_AVX512_FUNCTION
#define TQC_LANES TQC_AVX512

namespace tqcache::codec {
namespace {
using Lanes = __m512;
constexpr std::size_t kPassStages = 4;  // half of the registers
}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/lane_rotation.h"

namespace tqcache::codec {
namespace {

using namespace avx512;

// Where sixteen rows begin. Lanes without one get the last again; what comes of them is dropped.
struct RowStarts {
  const std::byte* rows[16];
};

RowStarts row_starts(const VectorRows& x, std::size_t n) {
  RowStarts starts;
  for (std::size_t t = 0; t < 16; ++t) starts.rows[t] = x.rows + (t < n ? t : n - 1) * x.stride;
  return starts;
}

// <x, x> of every row. Along a row, the lanes of a register are those of the format's inner
// product.
template <Dtype kDtype>
TQC_AVX512 __m512 squared_lengths(const RowStarts& starts, std::size_t head_dim) {
  __m512 sums[16];
  for (std::size_t t = 0; t < 16; ++t) {
    __m512 sum = _mm512_setzero_ps();
    for (std::size_t i = 0; i < head_dim; i += 16) {
      const __m512 v = widen<kDtype>(starts.rows[t], i, first_lanes(head_dim - i));
      sum = _mm512_add_ps(sum, _mm512_mul_ps(v, v));
    }
    sums[t] = sum;
  }
  transpose(sums);
  return add_halves(sums);
}

// Takes vectors in, sets the first signs, and does the first stages up to `distance`, 1 or 16.
// Returns their lengths.
template <Dtype kDtype>
TQC_AVX512_FUNCTION __m512 load_vectors(const RotationTables& tables, const VectorRows& x,
                                        std::size_t n, std::size_t distance, LaneVectors& vectors) {
  const RowStarts starts = row_starts(x, n);
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    const __mmask16 lanes = first_lanes(tables.head_dim - i);
    __m512 v[16];
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) v[t] = widen<kDtype>(starts.rows[t], i, lanes);
    transpose(v);
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) v[t] = flip(v[t], tables.sign_bits[i + t]);
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) vectors.values[i + t] = v[t];
  }
  return _mm512_sqrt_ps(squared_lengths<kDtype>(starts, tables.head_dim));
}

// The last steps of the inverse rotation, and out.
template <Dtype kDtype>
TQC_AVX512_FUNCTION void store_vectors(const RotationTables& tables, const LaneVectors& vectors,
                                       std::size_t n, const MutableVectorRows& x) {
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m512 v[16];
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      v[t] = flip(vectors.values[i + t] * tables.factor, tables.sign_bits[i + t]);
    }
    transpose(v);
    const __mmask16 lanes = first_lanes(tables.head_dim - i);
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      if (t < n) narrow<kDtype>(v[t], x.rows + t * x.stride, i, lanes);
    }
  }
}

// <x, x> of every vector.
TQC_AVX512_FUNCTION __m512 squares(const LaneVectors& x, std::size_t head_dim) {
  LaneVectors sums;
  for (std::size_t l = 0; l < 16; ++l) sums.values[l] = _mm512_setzero_ps();
  for (std::size_t i = 0; i < head_dim; ++i) sums.values[i % 16] += x.values[i] * x.values[i];
  __m512 lanes[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) lanes[l] = sums.values[l];
  return add_halves(lanes);
}

// The largest |y[i]| of every vector.
TQC_AVX512_FUNCTION __m512 peaks(const RotationTables& tables, const LaneVectors& x) {
  __m512 most = _mm512_setzero_ps();
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    most = _mm512_max_ps(_mm512_abs_ps(x.values[i] * tables.factor), most);
  }
  return most;
}

// `count` components from x on, to four lines of bytes. `count` is 16, but for the last ones.
template <int kBits, class Boundaries>
TQC_AVX512 void quantize_some(const Boundaries& boundaries, const Centroids<kBits>& centroids,
                              const Lanes* x, std::size_t count, __m512 factor, __m512 inverse_size,
                              std::uint8_t* lines, __m512 (&sums)[16]) {
  __m512i line = _mm512_setzero_si512();
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
    if (l < count) {
      const __m512 y = _mm512_mul_ps(_mm512_mul_ps(x[l], factor), inverse_size);
      const __m512i codes = find_codes(boundaries, y);
      sums[l] = _mm512_add_ps(sums[l], _mm512_mul_ps(y, look_up(centroids, codes)));
      const __m512i placed = _mm512_slli_epi32(codes, 8 * (l % 4));
      line = l % 4 == 0 ? placed : _mm512_or_si512(line, placed);
      if (l % 4 == 3 || l + 1 == count) _mm512_storeu_si512(lines + l / 4 * kLineBytes, line);
    }
  }
}

// Gives the lines of bytes, and the inner products of y with what its codes stand for.
template <int kBits, class Boundaries>
TQC_AVX512 __m512 quantize_all(const Boundaries& boundaries, const RotationTables& tables,
                               const LaneVectors& x, __m512 inverse_size, std::uint8_t* lines) {
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  const __m512 factor = _mm512_set1_ps(tables.factor);
  __m512 sums[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) sums[l] = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + 16 <= tables.head_dim; i += 16) {
    quantize_some(boundaries, centroids, x.values + i, 16, factor, inverse_size, lines + i * 16,
                  sums);
  }
  if (i < tables.head_dim) {
    quantize_some(boundaries, centroids, x.values + i, tables.head_dim - i, factor, inverse_size,
                  lines + i * 16, sums);
  }
  return add_halves(sums);
}

template <int kBits>
TQC_AVX512_FUNCTION __m512 quantize(const RotationTables& tables, const LaneVectors& x,
                                    __m512 inverse_size, std::uint8_t* lines) {
  if constexpr (kBits >= 2 && kBits <= 4) {
    if (tables.bins.is_usable) {
      return quantize_all<kBits>(load_bins(tables.bins), tables, x, inverse_size, lines);
    }
  }
  return quantize_all<kBits>(load_tree<kBits>(tables), tables, x, inverse_size, lines);
}

// Scaled centroids, and the first stages of the way back up to `distance`, 1 or 16.
template <int kBits>
TQC_AVX512_FUNCTION void dequantize(const RotationTables& tables, const std::uint8_t* lines,
                                    __m512 scales, std::size_t distance, LaneVectors& x) {
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m512 v[16];
    TQC_UNROLL for (std::size_t l = 0; l < 16; l += 4) {
      __m512i line = _mm512_loadu_si512(lines + (i + l) * 16);
      TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
        const __m512i codes = _mm512_and_si512(line, _mm512_set1_epi32(0xff));
        v[l + j] = _mm512_mul_ps(scales, look_up(centroids, codes));
        line = _mm512_srli_epi32(line, 8);
      }
    }
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) x.values[i + l] = v[l];
  }
}

using Quantize = __m512 (*)(const RotationTables&, const LaneVectors&, __m512, std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, __m512, std::size_t,
                            LaneVectors&);
constexpr Quantize kQuantize[] = {quantize<1>, quantize<2>, quantize<3>, quantize<4>,
                                  quantize<5>, quantize<6>, quantize<7>, quantize<8>};
constexpr Dequantize kDequantize[] = {dequantize<1>, dequantize<2>, dequantize<3>, dequantize<4>,
                                      dequantize<5>, dequantize<6>, dequantize<7>, dequantize<8>};

TQC_AVX512_FUNCTION __m512 load_rows(const RotationTables& tables, const VectorRows& x,
                                     std::size_t n, std::size_t distance, LaneVectors& vectors) {
  switch (x.dtype) {
    case Dtype::kF32:
      break;
    case Dtype::kF16:
      return load_vectors<Dtype::kF16>(tables, x, n, distance, vectors);
    case Dtype::kBF16:
      return load_vectors<Dtype::kBF16>(tables, x, n, distance, vectors);
  }
  return load_vectors<Dtype::kF32>(tables, x, n, distance, vectors);
}

void store_rows(const RotationTables& tables, const LaneVectors& vectors, std::size_t n,
                const MutableVectorRows& x) {
  return by_dtype(x.dtype,
                  [&]<Dtype kDtype>() { return store_vectors<kDtype>(tables, vectors, n, x); });
}

// What Quantizer keeps, in f32. `vectors` is overwritten.
TQC_AVX512_FUNCTION __m512 find_scales(const RotationTables& tables, __m512 sizes, __m512 products,
                                       const std::uint8_t* lines, LaneVectors& vectors) {
  if (tables.scale == ScaleRule::kUnbiased) return _mm512_div_ps(sizes, products);
  if (tables.scale != ScaleRule::kNorm) return sizes;
  kDequantize[tables.bits - 1](tables, lines, _mm512_set1_ps(1.0f), 1, vectors);
  return _mm512_div_ps(sizes, _mm512_sqrt_ps(squares(vectors, tables.head_dim)));
}

// Lines that nothing is written to, up to a whole unit.
TQC_AVX512_FUNCTION void clear_last_lines(std::size_t head_dim, std::uint8_t* lines) {
  for (std::size_t l = (head_dim + 3) / 4; l % kUnitLines != 0; ++l) {
    _mm512_storeu_si512(lines + l * kLineBytes, _mm512_setzero_si512());
  }
}

TQC_AVX512_FUNCTION void clear_lanes(std::uint8_t* lines, std::size_t head_dim, __mmask16 kept) {
  for (std::size_t i = 0; i < head_dim; i += kLaneCodes) {
    std::uint8_t* const line = lines + i * 16;
    _mm512_storeu_si512(line, _mm512_maskz_loadu_epi32(kept, line));
  }
}

}  // namespace

TQC_AVX512_FUNCTION std::uint32_t avx512::encode_lines(const RotationTables& tables, VectorRows x,
                                                       std::size_t n, std::uint8_t* lines,
                                                       std::uint16_t* scales) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  const __m512 lengths = load_rows(tables, x, n, distance, vectors);
  rotate(tables, vectors, distance);
  const __m512 sizes = tables.scale == ScaleRule::kPeak ? peaks(tables, vectors) : lengths;
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), sizes);
  const __m512 products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);
  const __m512 exact = find_scales(tables, sizes, products, lines, vectors);

  // A vector without length has scale 0. Not finite is whatever came of NaN and infinity in x.
  const __m512 zero = _mm512_setzero_ps();
  const __m512 scale = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(lengths, zero, _CMP_NEQ_UQ), exact);
  const __m256i halves = _mm512_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  const __mmask16 good = _mm512_cmp_ps_mask(lengths, infinity, _CMP_LT_OQ) &
                         _mm512_cmp_ps_mask(scale, zero, _CMP_GE_OQ) &
                         _mm256_cmplt_epu16_mask(halves, _mm256_set1_epi16(0x7c00));
  const __mmask16 used = first_lanes(n);
  const __mmask16 kept = good & used & _mm256_test_epi16_mask(halves, halves);
  if (kept != 0xffff) clear_lanes(lines, tables.head_dim, kept);
  clear_last_lines(tables.head_dim, lines);
  _mm256_mask_storeu_epi16(scales, used, _mm256_maskz_mov_epi16(good, halves));
  return static_cast<std::uint32_t>(used & ~good);
}

TQC_AVX512_FUNCTION void avx512::decode_lines(const RotationTables& tables,
                                              const std::uint8_t* lines,
                                              const std::uint16_t* scales, std::size_t n,
                                              MutableVectorRows x) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  const __m512 factors = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), scales));
  kDequantize[tables.bits - 1](tables, lines, factors, distance, vectors);
  unrotate(tables, vectors, distance);
  store_rows(tables, vectors, n, x);
}

// Sixteen bytes, which are four tokens of four components, are turned where they stand; then they
// change places as the elements of a matrix of four by four.
TQC_AVX512_FUNCTION void avx512::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  const __m512i turned =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m512i lines[4];
  TQC_UNROLL for (std::size_t l = 0; l < 4; ++l) {
    lines[l] = _mm512_shuffle_epi8(_mm512_loadu_si512(in + 64 * l), turned);
  }
  const __m512i even_low = _mm512_shuffle_i32x4(lines[0], lines[1], 0x88);
  const __m512i odd_low = _mm512_shuffle_i32x4(lines[0], lines[1], 0xdd);
  const __m512i even_high = _mm512_shuffle_i32x4(lines[2], lines[3], 0x88);
  const __m512i odd_high = _mm512_shuffle_i32x4(lines[2], lines[3], 0xdd);
  _mm512_storeu_si512(out, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
  _mm512_storeu_si512(out + 64, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
  _mm512_storeu_si512(out + 128, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
  _mm512_storeu_si512(out + 192, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
}

const Kernels& avx512_kernels() {
  static constexpr Kernels kKernels = {
      .name = "avx512",
      .score_exact = avx512::score_exact,
      .score_fast = avx512::score_fast,
      .accumulate_exact = avx512::accumulate_exact,
      .accumulate_fast = avx512::accumulate_fast,
      .score_dense = avx512::score_dense,
      .accumulate_dense = avx512::accumulate_dense,
      .add_sinusoids_exact = avx512::add_sinusoids_exact,
      .add_sinusoids_fast = avx512::add_sinusoids_fast,
      .center_rows = avx512::center_rows,
      .restore_rows = avx512::restore_rows,
      .encode_lines = avx512::encode_lines,
      .decode_lines = avx512::decode_lines,
      .transpose_lines = avx512::transpose_lines,
  };
  return kKernels;
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
