// Encoding and decoding with AVX-512: sixteen head vectors at once, one a lane.
//
// Every lane goes through just the operations of Quantizer, in its order, so the bytes are the
// same. Component i of sixteen vectors is one register: no operation crosses lanes but the
// transposition on the way in and out.

#include "tqcache/codec/kernels_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/rotation_tables.h"

namespace tqcache::codec {
namespace {

using avx512::first_lanes;

// Sixteen head vectors: [head_dim][16].
struct LaneVectors {
  alignas(64) float values[kMaxHeadDim * kLanes];
};

TQC_AVX512 __m512 load(const float* p) { return _mm512_load_ps(p); }

// Rows and columns of sixteen registers change their parts.
TQC_AVX512 void transpose(__m512 (&r)[16]) {
  __m512 words[16], pairs[16];
  TQC_UNROLL for (std::size_t i = 0; i < 16; i += 2) {
    words[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    words[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  TQC_UNROLL for (std::size_t i = 0; i < 16; i += 4) {
    TQC_UNROLL for (std::size_t j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(words[i + j]), b = _mm512_castps_pd(words[i + j + 2]);
      pairs[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      pairs[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // pairs[4q + j] now has, in each quad k of lanes, column 4k + j of rows 4q to 4q + 3.
  TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
    const __m512 low = _mm512_shuffle_f32x4(pairs[j], pairs[4 + j], 0x88);
    const __m512 high = _mm512_shuffle_f32x4(pairs[8 + j], pairs[12 + j], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(pairs[j], pairs[4 + j], 0xdd);
    const __m512 odd_high = _mm512_shuffle_f32x4(pairs[8 + j], pairs[12 + j], 0xdd);
    r[j] = _mm512_shuffle_f32x4(low, high, 0x88);
    r[8 + j] = _mm512_shuffle_f32x4(low, high, 0xdd);
    r[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    r[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

TQC_AVX512 __m512 widen(Dtype dtype, const std::byte* row, std::size_t first) {
  if (dtype == Dtype::kF32) return _mm512_loadu_ps(row + 4 * first);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * first));
  if (dtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_AVX512 __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

TQC_AVX512 void narrow(Dtype dtype, __m512 v, std::byte* row, std::size_t first) {
  if (dtype == Dtype::kF32) return _mm512_storeu_ps(row + 4 * first, v);
  const __m256i halves = dtype == Dtype::kF16
                             ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                             : to_bf16(v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * first), halves);
}

TQC_AVX512 __m512 flip(__m512 v, std::uint32_t sign_bit) {
  return _mm512_xor_ps(v, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(sign_bit))));
}

// Takes vectors in, and changes signs, which does not change lengths.
template <Dtype kDtype>
TQC_AVX512_FUNCTION void load_vectors(const RotationTables& tables, const VectorRows& x,
                                      std::size_t n, LaneVectors& vectors) {
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m512 rows[16];
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      rows[t] = t < n ? widen(kDtype, x.rows + t * x.stride, i) : _mm512_setzero_ps();
    }
    transpose(rows);
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      _mm512_store_ps(vectors.values + (i + t) * 16, flip(rows[t], tables.sign_bits[i + t]));
    }
  }
}

// The last steps of the inverse rotation, and out.
template <Dtype kDtype>
TQC_AVX512_FUNCTION void store_vectors(const RotationTables& tables, const LaneVectors& vectors,
                                       std::size_t n, const MutableVectorRows& x) {
  const __m512 factor = _mm512_set1_ps(tables.factor);
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m512 rows[16];
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      const __m512 v = _mm512_mul_ps(load(vectors.values + (i + t) * 16), factor);
      rows[t] = flip(v, tables.sign_bits[i + t]);
    }
    transpose(rows);
    TQC_UNROLL for (std::size_t t = 0; t < 16; ++t) {
      if (t < n) narrow(kDtype, rows[t], x.rows + t * x.stride, i);
    }
  }
}

// The sixteen lanes of the format's inner product become one by halves.
TQC_AVX512 __m512 add_halves(__m512 (&lanes)[16]) {
  TQC_UNROLL for (std::size_t half = 8; half > 0; half /= 2) {
    TQC_UNROLL for (std::size_t l = 0; l < half; ++l) {
      lanes[l] = _mm512_add_ps(lanes[l], lanes[l + half]);
    }
  }
  return lanes[0];
}

TQC_AVX512_FUNCTION __m512 squared_lengths(const LaneVectors& x, std::size_t head_dim) {
  __m512 lanes[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) lanes[l] = _mm512_setzero_ps();
  for (std::size_t i = 0; i < head_dim; i += 16) {
    TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
      const __m512 v = load(x.values + (i + l) * 16);
      lanes[l] = _mm512_add_ps(lanes[l], _mm512_mul_ps(v, v));
    }
  }
  return add_halves(lanes);
}

// 2^kStages components at distance `distance`: their stages of the Hadamard transform.
template <int kStages>
TQC_AVX512 void butterflies(float* first, std::size_t distance) {
  constexpr std::size_t kCount = std::size_t{1} << kStages;
  __m512 v[kCount];
  TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) v[i] = load(first + i * distance * 16);
  TQC_UNROLL for (std::size_t h = 1; h < kCount; h *= 2) {
    TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
      if ((i & h) != 0) continue;
      const __m512 a = v[i], b = v[i + h];
      v[i] = _mm512_add_ps(a, b);
      v[i + h] = _mm512_sub_ps(a, b);
    }
  }
  TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
    _mm512_store_ps(first + i * distance * 16, v[i]);
  }
}

template <int kStages>
TQC_AVX512_FUNCTION void stages(LaneVectors& x, std::size_t head_dim, std::size_t distance) {
  for (std::size_t start = 0; start < head_dim; start += distance << kStages) {
    for (std::size_t i = start; i < start + distance; ++i) {
      butterflies<kStages>(x.values + i * 16, distance);
    }
  }
}

// Distances 1, 2, 4, ..., up to four of them at a time.
void hadamard(LaneVectors& x, std::size_t head_dim) {
  std::size_t distance = 1;
  for (; distance * 16 <= head_dim; distance *= 16) stages<4>(x, head_dim, distance);
  if (distance * 8 == head_dim) return stages<3>(x, head_dim, distance);
  if (distance * 4 == head_dim) return stages<2>(x, head_dim, distance);
  if (distance * 2 == head_dim) return stages<1>(x, head_dim, distance);
}

// A codebook in registers: the upper levels of the search tree, and the centroids of up to 5 bits.
template <int kBits>
struct Codebook {
  static constexpr int kRegisterLevels = kBits < 5 ? kBits : 5;
  __m512 levels[kRegisterLevels];
  __m512 low, high;
  const float* tree;
  const float* centroids;
};

template <int kBits>
TQC_AVX512 Codebook<kBits> load_codebook(const RotationTables& tables) {
  Codebook<kBits> book;
  TQC_UNROLL for (int level = 0; level < Codebook<kBits>::kRegisterLevels; ++level) {
    book.levels[level] = _mm512_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  book.low = load(tables.centroids);
  book.high = load(tables.centroids + 16);
  book.tree = tables.boundary_tree;
  book.centroids = tables.centroids;
  return book;
}

// The number of boundaries below y.
template <int kBits>
TQC_AVX512 __m512i find_codes(const Codebook<kBits>& book, __m512 y) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512 root = _mm512_broadcastss_ps(_mm512_castps512_ps128(book.levels[0]));
  __m512i codes = _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(root, y, _CMP_LT_OQ), one);
  TQC_UNROLL for (int level = 1; level < kBits; ++level) {
    __m512 boundaries;
    if (level < Codebook<kBits>::kRegisterLevels) {
      boundaries = _mm512_permutexvar_ps(codes, book.levels[level]);
    } else {
      boundaries = _mm512_i32gather_ps(codes, book.tree + (1 << level) - 1, 4);
    }
    const __mmask16 above = _mm512_cmp_ps_mask(boundaries, y, _CMP_LT_OQ);
    codes = _mm512_add_epi32(codes, codes);
    codes = _mm512_mask_add_epi32(codes, above, codes, one);
  }
  return codes;
}

template <int kBits>
TQC_AVX512 __m512 look_up(const Codebook<kBits>& book, __m512i codes) {
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, book.low);
  if constexpr (kBits == 5) return _mm512_permutex2var_ps(book.low, codes, book.high);
  return _mm512_i32gather_ps(codes, book.centroids, 4);
}

// Gives the lines of bytes, and the inner products of y with what its codes stand for.
template <int kBits>
TQC_AVX512_FUNCTION __m512 quantize(const RotationTables& tables, const LaneVectors& x,
                                    __m512 inverse_length, std::uint8_t* lines) {
  const Codebook<kBits> book = load_codebook<kBits>(tables);
  const __m512 factor = _mm512_set1_ps(tables.factor);
  __m512 lanes[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) lanes[l] = _mm512_setzero_ps();
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m512i line = _mm512_setzero_si512();
    TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
      const __m512 rotated = _mm512_mul_ps(load(x.values + (i + l) * 16), factor);
      const __m512 y = _mm512_mul_ps(rotated, inverse_length);
      const __m512i codes = find_codes<kBits>(book, y);
      const __m512 centroids = look_up<kBits>(book, codes);
      lanes[l] = _mm512_add_ps(lanes[l], _mm512_mul_ps(y, centroids));
      const __m512i placed = _mm512_slli_epi32(codes, 8 * (l % 4));
      line = l % 4 == 0 ? placed : _mm512_or_si512(line, placed);
      if (l % 4 == 3) _mm512_storeu_si512(lines + (i + l) / 4 * kLineBytes, line);
    }
  }
  return add_halves(lanes);
}

template <int kBits>
TQC_AVX512_FUNCTION void dequantize(const RotationTables& tables, const std::uint8_t* lines,
                                    __m512 scales, LaneVectors& x) {
  const Codebook<kBits> book = load_codebook<kBits>(tables);
  for (std::size_t i = 0; i < tables.head_dim; i += 4) {
    __m512i line = _mm512_loadu_si512(lines + i / 4 * kLineBytes);
    TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
      const __m512i codes = _mm512_and_si512(line, _mm512_set1_epi32(0xff));
      const __m512 value = _mm512_mul_ps(scales, look_up<kBits>(book, codes));
      _mm512_store_ps(x.values + (i + j) * 16, value);
      line = _mm512_srli_epi32(line, 8);
    }
  }
}

TQC_AVX512_FUNCTION void clear_lanes(std::uint8_t* lines, std::size_t n_lines, __mmask16 kept) {
  for (std::size_t l = 0; l < n_lines; ++l) {
    std::uint8_t* const line = lines + l * kLineBytes;
    _mm512_storeu_si512(line, _mm512_maskz_loadu_epi32(kept, line));
  }
}

using Quantize = __m512 (*)(const RotationTables&, const LaneVectors&, __m512, std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, __m512, LaneVectors&);
constexpr Quantize kQuantize[] = {quantize<1>, quantize<2>, quantize<3>, quantize<4>,
                                  quantize<5>, quantize<6>, quantize<7>, quantize<8>};
constexpr Dequantize kDequantize[] = {dequantize<1>, dequantize<2>, dequantize<3>, dequantize<4>,
                                      dequantize<5>, dequantize<6>, dequantize<7>, dequantize<8>};

void load_rows(const RotationTables& tables, const VectorRows& x, std::size_t n,
               LaneVectors& vectors) {
  switch (x.dtype) {
    case Dtype::kF32:
      return load_vectors<Dtype::kF32>(tables, x, n, vectors);
    case Dtype::kF16:
      return load_vectors<Dtype::kF16>(tables, x, n, vectors);
    case Dtype::kBF16:
      return load_vectors<Dtype::kBF16>(tables, x, n, vectors);
  }
}

void store_rows(const RotationTables& tables, const LaneVectors& vectors, std::size_t n,
                const MutableVectorRows& x) {
  switch (x.dtype) {
    case Dtype::kF32:
      return store_vectors<Dtype::kF32>(tables, vectors, n, x);
    case Dtype::kF16:
      return store_vectors<Dtype::kF16>(tables, vectors, n, x);
    case Dtype::kBF16:
      return store_vectors<Dtype::kBF16>(tables, vectors, n, x);
  }
}

}  // namespace

TQC_AVX512_FUNCTION std::uint32_t avx512::encode_lines(const RotationTables& tables, VectorRows x,
                                                       std::size_t n, std::uint8_t* lines,
                                                       std::uint16_t* scales) {
  LaneVectors vectors;
  load_rows(tables, x, n, vectors);
  const __m512 lengths = _mm512_sqrt_ps(squared_lengths(vectors, tables.head_dim));
  hadamard(vectors, tables.head_dim);
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), lengths);
  const __m512 products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);

  // A vector without length has scale 0. Not finite is whatever came of NaN and infinity in x.
  const __mmask16 some = _mm512_cmp_ps_mask(lengths, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  const __m512 exact = _mm512_maskz_div_ps(some, lengths, products);
  const __m256i halves = _mm512_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __mmask16 good = _mm512_cmp_ps_mask(exact, _mm512_setzero_ps(), _CMP_GE_OQ) &
                         _mm256_cmplt_epu16_mask(halves, _mm256_set1_epi16(0x7c00));
  const __mmask16 used = first_lanes(n);
  const __mmask16 kept = good & used & _mm256_test_epi16_mask(halves, halves);
  if (kept != 0xffff) clear_lanes(lines, tables.head_dim / kLaneCodes, kept);
  _mm256_mask_storeu_epi16(scales, used, _mm256_maskz_mov_epi16(good, halves));
  return static_cast<std::uint32_t>(used & ~good);
}

TQC_AVX512_FUNCTION void avx512::decode_lines(const RotationTables& tables,
                                              const std::uint8_t* lines,
                                              const std::uint16_t* scales, std::size_t n,
                                              MutableVectorRows x) {
  LaneVectors vectors;
  const __m512 factors = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), scales));
  kDequantize[tables.bits - 1](tables, lines, factors, vectors);
  hadamard(vectors, tables.head_dim);
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
      .encode_lines = avx512::encode_lines,
      .decode_lines = avx512::decode_lines,
      .transpose_lines = avx512::transpose_lines,
  };
  return kKernels;
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
