// Encoding and decoding with AVX2: eight head vectors at once, one a lane.
//
// Every lane goes through just the operations of Quantizer, in its order, so the bytes are the
// same. Component i of eight vectors is one register: no operation crosses lanes but the
// transposition on the way in and out.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/codebook_avx2.h"
#include "tqcache/codec/kernels/rows_avx2.h"

#ifdef TQCACHE_X86

#include <limits>

#define TQC_LANES_FUNCTION TQC_AVX2_FUNCTION
#define TQC_LANES TQC_AVX2

namespace tqcache::codec {
namespace {
using Lanes = __m256;
constexpr std::size_t kPassStages = 3;  // half of the registers
}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/lane_rotation.h"

namespace tqcache::codec {
namespace {

using avx2::BoundaryTree;
using avx2::Centroids;
using avx2::load_centroids;
using avx2::load_tree;
using avx2::narrow;
using avx2::transpose;
using avx2::widen;

constexpr std::size_t kHalfLine = kLineBytes / 2;

// Where eight rows begin. Lanes without one get the last again; what comes of them is dropped.
struct RowStarts {
  const std::byte* rows[kWidth];
};

RowStarts row_starts(const VectorRows& x, std::size_t n) {
  RowStarts starts;
  for (std::size_t t = 0; t < kWidth; ++t) {
    starts.rows[t] = x.rows + (t < n ? t : n - 1) * x.stride;
  }
  return starts;
}

// <x, x> of every row. Along a row, the lanes of two registers are those of the format's inner
// product; the first step by halves adds the two.
template <Dtype kDtype>
TQC_AVX2 __m256 squared_lengths(const RowStarts& starts, std::size_t head_dim) {
  __m256 sums[kWidth];
  for (std::size_t t = 0; t < kWidth; ++t) {
    __m256 low = _mm256_setzero_ps(), high = low;
    for (std::size_t i = 0; i < head_dim; i += 16) {
      const __m256 a = widen<kDtype>(starts.rows[t], i, head_dim - i);
      low = _mm256_add_ps(low, _mm256_mul_ps(a, a));
      if (i + kWidth >= head_dim) break;
      const __m256 b = widen<kDtype>(starts.rows[t], i + kWidth, head_dim - i - kWidth);
      high = _mm256_add_ps(high, _mm256_mul_ps(b, b));
    }
    sums[t] = _mm256_add_ps(low, high);
  }
  transpose(sums);
  TQC_UNROLL for (std::size_t half = kWidth / 2; half > 0; half /= 2) {
    TQC_UNROLL for (std::size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

// Takes vectors in, sets the first signs, and does the first stages up to `distance`, 1 or 8.
// Returns their lengths.
template <Dtype kDtype>
TQC_AVX2_FUNCTION __m256 load_vectors(const RotationTables& tables, const VectorRows& x,
                                      std::size_t n, std::size_t distance, LaneVectors& vectors) {
  const RowStarts starts = row_starts(x, n);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    __m256 v[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      v[t] = widen<kDtype>(starts.rows[t], i, tables.head_dim - i);
    }
    transpose(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) v[t] = flip(v[t], tables.sign_bits[i + t]);
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) vectors.values[i + t] = v[t];
  }
  return _mm256_sqrt_ps(squared_lengths<kDtype>(starts, tables.head_dim));
}

// The last steps of the inverse rotation, and out.
template <Dtype kDtype>
TQC_AVX2_FUNCTION void store_vectors(const RotationTables& tables, const LaneVectors& vectors,
                                     std::size_t n, const MutableVectorRows& x) {
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    __m256 v[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      v[t] = flip(vectors.values[i + t] * tables.factor, tables.sign_bits[i + t]);
    }
    transpose(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      if (t < n) narrow<kDtype>(v[t], x.rows + t * x.stride, i, tables.head_dim - i);
    }
  }
}

// <x, x> of every vector.
TQC_AVX2_FUNCTION __m256 squares(const LaneVectors& x, std::size_t head_dim) {
  __m256 sums[16];
  for (std::size_t l = 0; l < 16; ++l) sums[l] = _mm256_setzero_ps();
  for (std::size_t i = 0; i < head_dim; ++i) sums[i % 16] += x.values[i] * x.values[i];
  return add_halves(sums);
}

// The largest |y[i]| of every vector.
TQC_AVX2_FUNCTION __m256 peaks(const RotationTables& tables, const LaneVectors& x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 most = _mm256_setzero_ps();
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    most = _mm256_max_ps(_mm256_andnot_ps(sign, x.values[i] * tables.factor), most);
  }
  return most;
}

// `count` components from x on, to half of four lines of bytes. `count` is 16, but for the last
// ones.
template <int kBits>
TQC_AVX2 void quantize_some(const BoundaryTree<kBits>& boundaries,
                            const Centroids<kBits>& centroids, const Lanes* x, std::size_t count,
                            __m256 factor, __m256 inverse_size, std::uint8_t* lines,
                            __m256 (&sums)[16]) {
  __m256i line = _mm256_setzero_si256();
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
    if (l < count) {
      const __m256 y = _mm256_mul_ps(_mm256_mul_ps(x[l], factor), inverse_size);
      const __m256i codes = find_codes(boundaries, y);
      sums[l] = _mm256_add_ps(sums[l], _mm256_mul_ps(y, look_up(centroids, codes)));
      const __m256i placed = _mm256_slli_epi32(codes, static_cast<int>(8 * (l % 4)));
      line = l % 4 == 0 ? placed : _mm256_or_si256(line, placed);
      if (l % 4 == 3 || l + 1 == count) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lines + l / 4 * kLineBytes), line);
      }
    }
  }
}

// Gives half the lines of bytes, and the inner products of y with what its codes stand for.
template <int kBits>
TQC_AVX2_FUNCTION __m256 quantize(const RotationTables& tables, const LaneVectors& x,
                                  __m256 inverse_size, std::uint8_t* lines) {
  const BoundaryTree<kBits> boundaries = load_tree<kBits>(tables);
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  const __m256 factor = _mm256_set1_ps(tables.factor);
  __m256 sums[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) sums[l] = _mm256_setzero_ps();
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

// Scaled centroids, and the first stages of the way back up to `distance`, 1 or 8.
template <int kBits>
TQC_AVX2_FUNCTION void dequantize(const RotationTables& tables, const std::uint8_t* lines,
                                  __m256 scales, std::size_t distance, LaneVectors& x) {
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    __m256 v[kWidth];
    TQC_UNROLL for (std::size_t l = 0; l < kWidth; l += 4) {
      const std::uint8_t* const half = lines + (i + l) * 16;
      __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half));
      TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
        const __m256i codes = _mm256_and_si256(line, _mm256_set1_epi32(0xff));
        v[l + j] = _mm256_mul_ps(scales, look_up(centroids, codes));
        line = _mm256_srli_epi32(line, 8);
      }
    }
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) x.values[i + l] = v[l];
  }
}

using Quantize = __m256 (*)(const RotationTables&, const LaneVectors&, __m256, std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, __m256, std::size_t,
                            LaneVectors&);
constexpr Quantize kQuantize[] = {quantize<1>, quantize<2>, quantize<3>, quantize<4>,
                                  quantize<5>, quantize<6>, quantize<7>, quantize<8>};
constexpr Dequantize kDequantize[] = {dequantize<1>, dequantize<2>, dequantize<3>, dequantize<4>,
                                      dequantize<5>, dequantize<6>, dequantize<7>, dequantize<8>};

TQC_AVX2_FUNCTION __m256 load_rows(const RotationTables& tables, const VectorRows& x, std::size_t n,
                                   std::size_t distance, LaneVectors& vectors) {
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
TQC_AVX2_FUNCTION __m256 find_scales(const RotationTables& tables, __m256 sizes, __m256 products,
                                     const std::uint8_t* lines, LaneVectors& vectors) {
  if (tables.scale == ScaleRule::kUnbiased) return _mm256_div_ps(sizes, products);
  if (tables.scale != ScaleRule::kNorm) return sizes;
  kDequantize[tables.bits - 1](tables, lines, _mm256_set1_ps(1.0f), 1, vectors);
  return _mm256_div_ps(sizes, _mm256_sqrt_ps(squares(vectors, tables.head_dim)));
}

// Lines that nothing is written to, up to a whole unit.
TQC_AVX2_FUNCTION void clear_last_lines(std::size_t head_dim, std::uint8_t* lines) {
  for (std::size_t l = (head_dim + 3) / 4; l % kUnitLines != 0; ++l) {
    __m256i* const line = reinterpret_cast<__m256i*>(lines + l * kLineBytes);
    _mm256_storeu_si256(line, _mm256_setzero_si256());
    _mm256_storeu_si256(line + 1, _mm256_setzero_si256());
  }
}

TQC_AVX2 void clear_lanes(std::uint8_t* lines, std::size_t head_dim, __m256i kept) {
  for (std::size_t i = 0; i < head_dim; i += kLaneCodes) {
    __m256i* const half = reinterpret_cast<__m256i*>(lines + i * 16);
    _mm256_storeu_si256(half, _mm256_and_si256(_mm256_loadu_si256(half), kept));
  }
}

// The first n of eight vectors, 1 or more. Returns a bit for each that is refused.
TQC_AVX2_FUNCTION std::uint32_t encode_half(const RotationTables& tables, const VectorRows& x,
                                            std::size_t n, std::uint8_t* lines,
                                            std::uint16_t* scales) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  const __m256 lengths = load_rows(tables, x, n, distance, vectors);
  rotate(tables, vectors, distance);
  const __m256 sizes = tables.scale == ScaleRule::kPeak ? peaks(tables, vectors) : lengths;
  const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), sizes);
  const __m256 products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);
  const __m256 exact = find_scales(tables, sizes, products, lines, vectors);

  // A vector without length has scale 0. Not finite is whatever came of NaN and infinity in x.
  const __m256 zero = _mm256_setzero_ps();
  const __m256 scale = _mm256_and_ps(_mm256_cmp_ps(lengths, zero, _CMP_NEQ_UQ), exact);
  const __m128i halves = _mm256_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i wide = _mm256_cvtepu16_epi32(halves);
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 in_range = _mm256_and_ps(_mm256_cmp_ps(lengths, infinity, _CMP_LT_OQ),
                                        _mm256_cmp_ps(scale, zero, _CMP_GE_OQ));
  const __m256i good = _mm256_and_si256(_mm256_castps_si256(in_range),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7c00), wide));
  const __m256i used = avx2::first_lanes(n);
  const __m256i is_zero = _mm256_cmpeq_epi32(wide, _mm256_setzero_si256());
  const __m256i kept = _mm256_andnot_si256(is_zero, _mm256_and_si256(good, used));
  if (_mm256_movemask_epi8(kept) != -1) clear_lanes(lines, tables.head_dim, kept);

  alignas(32) std::uint32_t kept_scales[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(kept_scales), _mm256_and_si256(wide, good));
  for (std::size_t t = 0; t < n; ++t) scales[t] = static_cast<std::uint16_t>(kept_scales[t]);
  const __m256i refused = _mm256_andnot_si256(good, used);
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(refused)));
}

TQC_AVX2_FUNCTION void clear_half(const RotationTables& tables, std::uint8_t* lines) {
  clear_lanes(lines, tables.head_dim, _mm256_setzero_si256());
}

TQC_AVX2_FUNCTION void decode_half(const RotationTables& tables, const std::uint8_t* lines,
                                   const std::uint16_t* scales, std::size_t n,
                                   const MutableVectorRows& x) {
  alignas(16) std::uint16_t padded[kWidth] = {};
  for (std::size_t t = 0; t < n; ++t) padded[t] = scales[t];
  const __m256 factors = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(padded)));
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  kDequantize[tables.bits - 1](tables, lines, factors, distance, vectors);
  unrotate(tables, vectors, distance);
  store_rows(tables, vectors, n, x);
}

}  // namespace

std::uint32_t avx2::encode_lines(const RotationTables& tables, VectorRows x, std::size_t n,
                                 std::uint8_t* lines, std::uint16_t* scales) {
  clear_last_lines(tables.head_dim, lines);
  const std::size_t low = n < kWidth ? n : kWidth;
  const std::uint32_t refused = encode_half(tables, x, low, lines, scales);
  if (n == low) {
    clear_half(tables, lines + kHalfLine);
    return refused;
  }
  x.rows += low * x.stride;
  return refused | encode_half(tables, x, n - low, lines + kHalfLine, scales + low) << kWidth;
}

void avx2::decode_lines(const RotationTables& tables, const std::uint8_t* lines,
                        const std::uint16_t* scales, std::size_t n, MutableVectorRows x) {
  const std::size_t low = n < kWidth ? n : kWidth;
  decode_half(tables, lines, scales, low, x);
  if (n == low) return;
  x.rows += low * x.stride;
  decode_half(tables, lines + kHalfLine, scales + low, n - low, x);
}

// Sixteen bytes, which are four tokens of four components, are turned where they stand; then they
// change places as the elements of a matrix of four by four.
TQC_AVX2_FUNCTION void avx2::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  const __m128i turned = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (std::size_t l = 0; l < 4; ++l) {
    for (std::size_t k = 0; k < 4; ++k) {
      const __m128i four =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + l * kLineBytes + 16 * k));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k * kLineBytes + 16 * l),
                       _mm_shuffle_epi8(four, turned));
    }
  }
}

const Kernels& avx2_kernels() {
  static constexpr Kernels kKernels = {
      .name = "avx2",
      .score_exact = avx2::score_exact,
      .score_fast = avx2::score_fast,
      .accumulate_exact = avx2::accumulate_exact,
      .accumulate_fast = avx2::accumulate_fast,
      .score_dense = avx2::score_dense,
      .accumulate_dense = avx2::accumulate_dense,
      .add_sinusoids_exact = avx2::add_sinusoids_exact,
      .add_sinusoids_fast = avx2::add_sinusoids_fast,
      .center_rows = avx2::center_rows,
      .restore_rows = avx2::restore_rows,
      .encode_lines = avx2::encode_lines,
      .decode_lines = avx2::decode_lines,
      .transpose_lines = avx2::transpose_lines,
  };
  return kKernels;
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
