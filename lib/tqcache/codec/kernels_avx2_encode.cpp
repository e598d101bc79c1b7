// Encoding and decoding with AVX2: eight head vectors at once, one a lane.
//
// Every lane goes through just the operations of Quantizer, in its order, so the bytes are the
// same. Component i of eight vectors is one register: no operation crosses lanes but the
// transposition on the way in and out.

#include "tqcache/codec/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/rotation_tables.h"

namespace tqcache::codec {
namespace {

using avx2::kWidth;

// Eight head vectors: [head_dim][8].
struct LaneVectors {
  alignas(32) float values[kMaxHeadDim * kWidth];
};

TQC_AVX2 __m256 load(const float* p) { return _mm256_load_ps(p); }

// Rows and columns of eight registers change their parts.
TQC_AVX2 void transpose(__m256 (&r)[8]) {
  __m256 words[8], pairs[8];
  TQC_UNROLL for (std::size_t i = 0; i < 8; i += 2) {
    words[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    words[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  TQC_UNROLL for (std::size_t i = 0; i < 8; i += 4) {
    TQC_UNROLL for (std::size_t j = 0; j < 2; ++j) {
      pairs[i + 2 * j] = _mm256_shuffle_ps(words[i + j], words[i + j + 2], 0x44);
      pairs[i + 2 * j + 1] = _mm256_shuffle_ps(words[i + j], words[i + j + 2], 0xee);
    }
  }
  TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
    r[j] = _mm256_permute2f128_ps(pairs[j], pairs[4 + j], 0x20);
    r[4 + j] = _mm256_permute2f128_ps(pairs[j], pairs[4 + j], 0x31);
  }
}

template <Dtype kDtype>
TQC_AVX2 __m256 widen(const std::byte* row, std::size_t first) {
  if constexpr (kDtype == Dtype::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + first);
  }
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * first));
  if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_AVX2 __m128i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_packus_epi32(words, words);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

template <Dtype kDtype>
TQC_AVX2 void narrow(__m256 v, std::byte* row, std::size_t first) {
  if constexpr (kDtype == Dtype::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(row) + first, v);
  } else {
    __m128i halves;
    if constexpr (kDtype == Dtype::kF16) {
      halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    } else {
      halves = to_bf16(v);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 2 * first), halves);
  }
}

TQC_AVX2 __m256 flip(__m256 v, std::uint32_t sign_bit) {
  return _mm256_xor_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(sign_bit))));
}

// Takes vectors in, and changes signs, which does not change lengths.
template <Dtype kDtype>
TQC_AVX2_FUNCTION void load_vectors(const RotationTables& tables, const VectorRows& x,
                                    std::size_t n, LaneVectors& vectors) {
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    __m256 rows[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      rows[t] = t < n ? widen<kDtype>(x.rows + t * x.stride, i) : _mm256_setzero_ps();
    }
    transpose(rows);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      _mm256_store_ps(vectors.values + (i + t) * kWidth, flip(rows[t], tables.sign_bits[i + t]));
    }
  }
}

// The last steps of the inverse rotation, and out.
template <Dtype kDtype>
TQC_AVX2_FUNCTION void store_vectors(const RotationTables& tables, const LaneVectors& vectors,
                                     std::size_t n, const MutableVectorRows& x) {
  const __m256 factor = _mm256_set1_ps(tables.factor);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    __m256 rows[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      const __m256 v = _mm256_mul_ps(load(vectors.values + (i + t) * kWidth), factor);
      rows[t] = flip(v, tables.sign_bits[i + t]);
    }
    transpose(rows);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      if (t < n) narrow<kDtype>(rows[t], x.rows + t * x.stride, i);
    }
  }
}

// The sixteen lanes of the format's inner product become one by halves.
TQC_AVX2 __m256 add_halves(__m256 (&lanes)[16]) {
  TQC_UNROLL for (std::size_t half = 8; half > 0; half /= 2) {
    TQC_UNROLL for (std::size_t l = 0; l < half; ++l) {
      lanes[l] = _mm256_add_ps(lanes[l], lanes[l + half]);
    }
  }
  return lanes[0];
}

TQC_AVX2_FUNCTION __m256 squared_lengths(const LaneVectors& x, std::size_t head_dim) {
  __m256 lanes[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
    __m256 sum = _mm256_setzero_ps();
    for (std::size_t i = l; i < head_dim; i += 16) {
      const __m256 v = load(x.values + i * kWidth);
      sum = _mm256_add_ps(sum, _mm256_mul_ps(v, v));
    }
    lanes[l] = sum;
  }
  return add_halves(lanes);
}

// 2^kStages components at distance `distance`: their stages of the Hadamard transform.
template <int kStages>
TQC_AVX2 void butterflies(float* first, std::size_t distance) {
  constexpr std::size_t kCount = std::size_t{1} << kStages;
  __m256 v[kCount];
  TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) v[i] = load(first + i * distance * kWidth);
  TQC_UNROLL for (std::size_t h = 1; h < kCount; h *= 2) {
    TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
      if ((i & h) != 0) continue;
      const __m256 a = v[i], b = v[i + h];
      v[i] = _mm256_add_ps(a, b);
      v[i + h] = _mm256_sub_ps(a, b);
    }
  }
  TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
    _mm256_store_ps(first + i * distance * kWidth, v[i]);
  }
}

template <int kStages>
TQC_AVX2_FUNCTION void stages(LaneVectors& x, std::size_t head_dim, std::size_t distance) {
  for (std::size_t start = 0; start < head_dim; start += distance << kStages) {
    for (std::size_t i = start; i < start + distance; ++i) {
      butterflies<kStages>(x.values + i * kWidth, distance);
    }
  }
}

// Distances 1, 2, 4, ..., up to three of them at a time.
void hadamard(LaneVectors& x, std::size_t head_dim) {
  std::size_t distance = 1;
  for (; distance * 8 <= head_dim; distance *= 8) stages<3>(x, head_dim, distance);
  if (distance * 4 == head_dim) return stages<2>(x, head_dim, distance);
  if (distance * 2 == head_dim) return stages<1>(x, head_dim, distance);
}

// A codebook in registers: the upper levels of the search tree, and the centroids of up to 4 bits.
template <int kBits>
struct Codebook {
  static constexpr int kRegisterLevels = kBits < 4 ? kBits : 4;
  __m256 levels[kRegisterLevels];
  __m256 low, high;
  const float* tree;
  const float* centroids;
};

template <int kBits>
TQC_AVX2 Codebook<kBits> load_codebook(const RotationTables& tables) {
  Codebook<kBits> book;
  TQC_UNROLL for (int level = 0; level < Codebook<kBits>::kRegisterLevels; ++level) {
    book.levels[level] = _mm256_loadu_ps(tables.boundary_tree + (1 << level) - 1);
  }
  book.low = load(tables.centroids);
  book.high = load(tables.centroids + 8);
  book.tree = tables.boundary_tree;
  book.centroids = tables.centroids;
  return book;
}

// The number of boundaries below y. What is compared gives -1, or 0, so it is taken away.
template <int kBits>
TQC_AVX2 __m256i find_codes(const Codebook<kBits>& book, __m256 y) {
  const __m256 root = _mm256_broadcastss_ps(_mm256_castps256_ps128(book.levels[0]));
  const __m256i above_root = _mm256_castps_si256(_mm256_cmp_ps(root, y, _CMP_LT_OQ));
  __m256i codes = _mm256_sub_epi32(_mm256_setzero_si256(), above_root);
  TQC_UNROLL for (int level = 1; level < kBits; ++level) {
    __m256 boundaries;
    if (level < Codebook<kBits>::kRegisterLevels) {
      boundaries = _mm256_permutevar8x32_ps(book.levels[level], codes);
    } else {
      boundaries = _mm256_i32gather_ps(book.tree + (1 << level) - 1, codes, 4);
    }
    const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(boundaries, y, _CMP_LT_OQ));
    codes = _mm256_sub_epi32(_mm256_add_epi32(codes, codes), above);
  }
  return codes;
}

template <int kBits>
TQC_AVX2 __m256 look_up(const Codebook<kBits>& book, __m256i codes) {
  if constexpr (kBits <= 3) return _mm256_permutevar8x32_ps(book.low, codes);
  if constexpr (kBits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(book.low, codes);
    const __m256 high = _mm256_permutevar8x32_ps(book.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  return _mm256_i32gather_ps(book.centroids, codes, 4);
}

// Gives half the lines of bytes, and the inner products of y with what its codes stand for.
template <int kBits>
TQC_AVX2_FUNCTION __m256 quantize(const RotationTables& tables, const LaneVectors& x,
                                  __m256 inverse_length, std::uint8_t* lines) {
  const Codebook<kBits> book = load_codebook<kBits>(tables);
  const __m256 factor = _mm256_set1_ps(tables.factor);
  __m256 lanes[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) lanes[l] = _mm256_setzero_ps();
  for (std::size_t i = 0; i < tables.head_dim; i += 16) {
    __m256i line = _mm256_setzero_si256();
    TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
      const __m256 rotated = _mm256_mul_ps(load(x.values + (i + l) * kWidth), factor);
      const __m256 y = _mm256_mul_ps(rotated, inverse_length);
      const __m256i codes = find_codes<kBits>(book, y);
      const __m256 centroids = look_up<kBits>(book, codes);
      lanes[l] = _mm256_add_ps(lanes[l], _mm256_mul_ps(y, centroids));
      const __m256i placed = _mm256_slli_epi32(codes, static_cast<int>(8 * (l % 4)));
      line = l % 4 == 0 ? placed : _mm256_or_si256(line, placed);
      if (l % 4 == 3) {
        std::uint8_t* const half = lines + (i + l) / 4 * kLineBytes;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(half), line);
      }
    }
  }
  return add_halves(lanes);
}

template <int kBits>
TQC_AVX2_FUNCTION void dequantize(const RotationTables& tables, const std::uint8_t* lines,
                                  __m256 scales, LaneVectors& x) {
  const Codebook<kBits> book = load_codebook<kBits>(tables);
  for (std::size_t i = 0; i < tables.head_dim; i += 4) {
    const std::uint8_t* const half = lines + i / 4 * kLineBytes;
    __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half));
    TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
      const __m256i codes = _mm256_and_si256(line, _mm256_set1_epi32(0xff));
      const __m256 value = _mm256_mul_ps(scales, look_up<kBits>(book, codes));
      _mm256_store_ps(x.values + (i + j) * kWidth, value);
      line = _mm256_srli_epi32(line, 8);
    }
  }
}

TQC_AVX2 void clear_lanes(std::uint8_t* lines, std::size_t n_lines, __m256i kept) {
  for (std::size_t l = 0; l < n_lines; ++l) {
    __m256i* const half = reinterpret_cast<__m256i*>(lines + l * kLineBytes);
    _mm256_storeu_si256(half, _mm256_and_si256(_mm256_loadu_si256(half), kept));
  }
}

using Quantize = __m256 (*)(const RotationTables&, const LaneVectors&, __m256, std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, __m256, LaneVectors&);
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

// The first n of eight vectors. Returns a bit for each that is refused.
TQC_AVX2_FUNCTION std::uint32_t encode_half(const RotationTables& tables, const VectorRows& x,
                                            std::size_t n, std::uint8_t* lines,
                                            std::uint16_t* scales) {
  LaneVectors vectors;
  load_rows(tables, x, n, vectors);
  const __m256 lengths = _mm256_sqrt_ps(squared_lengths(vectors, tables.head_dim));
  hadamard(vectors, tables.head_dim);
  const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), lengths);
  const __m256 products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);

  // A vector without length has scale 0. Not finite is whatever came of NaN and infinity in x.
  const __m256 zero = _mm256_setzero_ps();
  const __m256 some = _mm256_cmp_ps(lengths, zero, _CMP_NEQ_UQ);
  const __m256 exact = _mm256_and_ps(some, _mm256_div_ps(lengths, products));
  const __m128i halves = _mm256_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i wide = _mm256_cvtepu16_epi32(halves);
  const __m256i positive = _mm256_castps_si256(_mm256_cmp_ps(exact, zero, _CMP_GE_OQ));
  const __m256i good =
      _mm256_and_si256(positive, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7c00), wide));
  const __m256i used = avx2::first_lanes(n);
  const __m256i is_zero = _mm256_cmpeq_epi32(wide, _mm256_setzero_si256());
  const __m256i kept = _mm256_andnot_si256(is_zero, _mm256_and_si256(good, used));
  if (_mm256_movemask_epi8(kept) != -1) clear_lanes(lines, tables.head_dim / kLaneCodes, kept);

  alignas(32) std::uint32_t kept_scales[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(kept_scales), _mm256_and_si256(wide, good));
  for (std::size_t t = 0; t < n; ++t) scales[t] = static_cast<std::uint16_t>(kept_scales[t]);
  const __m256i refused = _mm256_andnot_si256(good, used);
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(refused)));
}

TQC_AVX2_FUNCTION void decode_half(const RotationTables& tables, const std::uint8_t* lines,
                                   const std::uint16_t* scales, std::size_t n,
                                   const MutableVectorRows& x) {
  alignas(16) std::uint16_t padded[kWidth] = {};
  for (std::size_t t = 0; t < n; ++t) padded[t] = scales[t];
  const __m256 factors = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(padded)));
  LaneVectors vectors;
  kDequantize[tables.bits - 1](tables, lines, factors, vectors);
  hadamard(vectors, tables.head_dim);
  store_rows(tables, vectors, n, x);
}

constexpr std::size_t kHalfLine = kLineBytes / 2;

}  // namespace

std::uint32_t avx2::encode_lines(const RotationTables& tables, VectorRows x, std::size_t n,
                                 std::uint8_t* lines, std::uint16_t* scales) {
  const std::size_t low = n < kWidth ? n : kWidth;
  const std::uint32_t refused = encode_half(tables, x, low, lines, scales);
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
      .encode_lines = avx2::encode_lines,
      .decode_lines = avx2::decode_lines,
      .transpose_lines = avx2::transpose_lines,
  };
  return kKernels;
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
