// Encoding and decoding with NEON: four head vectors at once, one a lane.
//
// Every lane goes through just the operations of Quantizer, in its order, so the bytes are the
// same. Component i of four vectors is one register: no operation crosses lanes but the
// transposition on the way in and out.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/rows_neon.h"

#ifdef TQCACHE_NEON

#include <limits>

#define TQC_LANES_FUNCTION
#define TQC_LANES __attribute__((always_inline)) inline

namespace tqcache::codec {
namespace {
using Lanes = float32x4_t;
constexpr std::size_t kPassStages = 4;  // half of the registers
}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/lane_rotation.h"

namespace tqcache::codec {
namespace {

using neon::narrow;
using neon::transpose;
using neon::widen;

constexpr std::size_t kQuarterLine = kLineBytes / 4;

// Where four rows begin. Lanes without one get the last again; what comes of them is dropped.
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

// <x, x> of every row. Along a row, the lanes of four registers are those of the format's inner
// product; the first two steps by halves add the four.
template <Dtype kDtype>
float32x4_t squared_lengths(const RowStarts& starts, std::size_t head_dim) {
  float32x4_t rows[kWidth];
  TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
    float32x4_t sums[4] = {};
    for (std::size_t i = 0; i < head_dim; i += 16) {
      TQC_UNROLL for (std::size_t k = 0; k < 4; ++k) {
        const std::size_t at = i + k * kWidth;
        if (at >= head_dim) break;
        const float32x4_t v = widen<kDtype>(starts.rows[t], at, head_dim - at);
        sums[k] += v * v;
      }
    }
    rows[t] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
  transpose(rows);
  return (rows[0] + rows[2]) + (rows[1] + rows[3]);
}

// Takes vectors in, sets the first signs, and does the first stages up to `distance`, 1 or 4.
// Returns their lengths.
template <Dtype kDtype>
float32x4_t load_vectors(const RotationTables& tables, const VectorRows& x, std::size_t n,
                         std::size_t distance, LaneVectors& vectors) {
  const RowStarts starts = row_starts(x, n);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    float32x4_t v[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      v[t] = widen<kDtype>(starts.rows[t], i, tables.head_dim - i);
    }
    transpose(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) v[t] = flip(v[t], tables.sign_bits[i + t]);
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) vectors.values[i + t] = v[t];
  }
  return vsqrtq_f32(squared_lengths<kDtype>(starts, tables.head_dim));
}

// The last steps of the inverse rotation, and out.
template <Dtype kDtype>
void store_vectors(const RotationTables& tables, const LaneVectors& vectors, std::size_t n,
                   const MutableVectorRows& x) {
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    float32x4_t v[kWidth];
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
float32x4_t squares(const LaneVectors& x, std::size_t head_dim) {
  float32x4_t sums[16] = {};
  for (std::size_t i = 0; i < head_dim; ++i) sums[i % 16] += x.values[i] * x.values[i];
  return add_halves(sums);
}

// The largest |y[i]| of every vector.
float32x4_t peaks(const RotationTables& tables, const LaneVectors& x) {
  float32x4_t most = vdupq_n_f32(0.0f);
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    most = vmaxq_f32(vabsq_f32(x.values[i] * tables.factor), most);
  }
  return most;
}

// table[index] of a table of 2^kLog floats. Up to sixteen of them are looked up by their bytes.
template <int kLog>
TQC_LANES float32x4_t pick(const float* table, uint32x4_t index) {
  if constexpr (kLog <= 4) {
    const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(table);
    const uint8x16x4_t all = {
        {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    const uint32x4_t places = vmlaq_n_u32(vdupq_n_u32(0x03020100), index, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_u32(places)));
  } else {
    const float found[kWidth] = {table[vgetq_lane_u32(index, 0)], table[vgetq_lane_u32(index, 1)],
                                 table[vgetq_lane_u32(index, 2)], table[vgetq_lane_u32(index, 3)]};
    return vld1q_f32(found);
  }
}

// From codes of kLevel bits to those of kBits, down the tree of boundaries. What is compared gives
// -1, or 0, so it is taken away.
template <int kBits, int kLevel>
TQC_LANES uint32x4_t descend(const float* tree, float32x4_t y, uint32x4_t codes) {
  if constexpr (kLevel == kBits) {
    return codes;
  } else {
    const float32x4_t boundaries = pick<kLevel>(tree + (1 << kLevel) - 1, codes);
    const uint32x4_t below = vsubq_u32(vaddq_u32(codes, codes), vcltq_f32(boundaries, y));
    return descend<kBits, kLevel + 1>(tree, y, below);
  }
}

// Gives a quarter of the lines of bytes, and the inner products of y with what its codes stand for.
template <int kBits>
float32x4_t quantize(const RotationTables& tables, const LaneVectors& x, float32x4_t inverse_size,
                     std::uint8_t* lines) {
  float32x4_t sums[16] = {};
  uint32x4_t line = vdupq_n_u32(0);
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    const float32x4_t y = (x.values[i] * tables.factor) * inverse_size;
    const uint32x4_t codes = descend<kBits, 0>(tables.boundary_tree, y, vdupq_n_u32(0));
    sums[i % 16] += y * pick<kBits>(tables.centroids, codes);
    // The first of four codes ends in the lowest byte, also where fewer than four are left.
    const int32x4_t place = vdupq_n_s32(static_cast<int>(8 * (i % kLaneCodes)));
    line = vorrq_u32(i % kLaneCodes == 0 ? vdupq_n_u32(0) : line, vshlq_u32(codes, place));
    vst1q_u8(lines + i / kLaneCodes * kLineBytes, vreinterpretq_u8_u32(line));
  }
  return add_halves(sums);
}

// Scaled centroids, and the first stages of the way back up to `distance`, 1 or 4.
template <int kBits>
void dequantize(const RotationTables& tables, const std::uint8_t* lines, float32x4_t scales,
                std::size_t distance, LaneVectors& x) {
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    uint32x4_t line = vreinterpretq_u32_u8(vld1q_u8(lines + i / kLaneCodes * kLineBytes));
    float32x4_t v[kWidth];
    TQC_UNROLL for (std::size_t j = 0; j < kWidth; ++j) {
      const uint32x4_t codes = vandq_u32(line, vdupq_n_u32(0xff));
      v[j] = scales * pick<kBits>(tables.centroids, codes);
      line = vshrq_n_u32(line, 8);
    }
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t j = 0; j < kWidth; ++j) x.values[i + j] = v[j];
  }
}

using Quantize = float32x4_t (*)(const RotationTables&, const LaneVectors&, float32x4_t,
                                 std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, float32x4_t, std::size_t,
                            LaneVectors&);
constexpr Quantize kQuantize[] = {quantize<1>, quantize<2>, quantize<3>, quantize<4>,
                                  quantize<5>, quantize<6>, quantize<7>, quantize<8>};
constexpr Dequantize kDequantize[] = {dequantize<1>, dequantize<2>, dequantize<3>, dequantize<4>,
                                      dequantize<5>, dequantize<6>, dequantize<7>, dequantize<8>};

float32x4_t load_rows(const RotationTables& tables, const VectorRows& x, std::size_t n,
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
float32x4_t find_scales(const RotationTables& tables, float32x4_t sizes, float32x4_t products,
                        const std::uint8_t* lines, LaneVectors& vectors) {
  if (tables.scale == ScaleRule::kUnbiased) return sizes / products;
  if (tables.scale != ScaleRule::kNorm) return sizes;
  kDequantize[tables.bits - 1](tables, lines, vdupq_n_f32(1.0f), 1, vectors);
  return sizes / vsqrtq_f32(squares(vectors, tables.head_dim));
}

void clear_lanes(std::uint8_t* lines, std::size_t head_dim, uint32x4_t kept) {
  for (std::size_t i = 0; i < head_dim; i += kLaneCodes) {
    std::uint8_t* const quarter = lines + i / kLaneCodes * kLineBytes;
    vst1q_u8(quarter, vandq_u8(vld1q_u8(quarter), vreinterpretq_u8_u32(kept)));
  }
}

// The first n of four vectors, 1 or more. Returns a bit for each that is refused.
std::uint32_t encode_quarter(const RotationTables& tables, const VectorRows& x, std::size_t n,
                             std::uint8_t* lines, std::uint16_t* scales) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  const float32x4_t lengths = load_rows(tables, x, n, distance, vectors);
  rotate(tables, vectors, distance);
  const float32x4_t sizes = tables.scale == ScaleRule::kPeak ? peaks(tables, vectors) : lengths;
  const float32x4_t inverse = vdupq_n_f32(1.0f) / sizes;
  const float32x4_t products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);
  const float32x4_t exact = find_scales(tables, sizes, products, lines, vectors);

  // A vector without length has scale 0. Not finite is whatever came of NaN and infinity in x.
  const float32x4_t zero = vdupq_n_f32(0.0f);
  const uint32x4_t is_null = vceqq_f32(lengths, zero);
  const float32x4_t scale = vbslq_f32(is_null, zero, exact);
  const uint32x4_t wide = vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(scale)));
  const float32x4_t infinity = vdupq_n_f32(std::numeric_limits<float>::infinity());
  const uint32x4_t in_range = vandq_u32(vcltq_f32(lengths, infinity), vcgeq_f32(scale, zero));
  const uint32x4_t good = vandq_u32(in_range, vcltq_u32(wide, vdupq_n_u32(0x7c00)));
  const uint32x4_t kept = vandq_u32(good, vtstq_u32(wide, wide));

  std::uint32_t is_good[kWidth], is_kept[kWidth], halves[kWidth];
  vst1q_u32(is_good, good);
  vst1q_u32(is_kept, kept);
  vst1q_u32(halves, wide);
  std::uint32_t refused = 0;
  for (std::size_t t = 0; t < kWidth; ++t) {
    if (t >= n) is_kept[t] = 0;
    if (t < n) scales[t] = static_cast<std::uint16_t>(halves[t] & is_good[t]);
    if (t < n && is_good[t] == 0) refused |= 1u << t;
  }
  clear_lanes(lines, tables.head_dim, vld1q_u32(is_kept));
  return refused;
}

void decode_quarter(const RotationTables& tables, const std::uint8_t* lines,
                    const std::uint16_t* scales, std::size_t n, const MutableVectorRows& x) {
  std::uint16_t padded[kWidth] = {};
  for (std::size_t t = 0; t < n; ++t) padded[t] = scales[t];
  const float32x4_t factors = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(padded)));
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  kDequantize[tables.bits - 1](tables, lines, factors, distance, vectors);
  unrotate(tables, vectors, distance);
  store_rows(tables, vectors, n, x);
}

// Lines that nothing is written to, up to a whole unit.
void clear_last_lines(std::size_t head_dim, std::uint8_t* lines) {
  for (std::size_t l = (head_dim + 3) / 4; l % kUnitLines != 0; ++l) {
    __builtin_memset(lines + l * kLineBytes, 0, kLineBytes);
  }
}

template <class Rows>
Rows from_row(Rows rows, std::size_t row) {
  rows.rows += row * rows.stride;
  return rows;
}

}  // namespace

std::uint32_t neon::encode_lines(const RotationTables& tables, VectorRows x, std::size_t n,
                                 std::uint8_t* lines, std::uint16_t* scales) {
  clear_last_lines(tables.head_dim, lines);
  std::uint32_t refused = 0;
  for (std::size_t first = 0; first < kLanes; first += kWidth, lines += kQuarterLine) {
    if (first >= n) {
      clear_lanes(lines, tables.head_dim, vdupq_n_u32(0));
      continue;
    }
    const std::size_t count = n - first < kWidth ? n - first : kWidth;
    refused |= encode_quarter(tables, from_row(x, first), count, lines, scales + first) << first;
  }
  return refused;
}

void neon::decode_lines(const RotationTables& tables, const std::uint8_t* lines,
                        const std::uint16_t* scales, std::size_t n, MutableVectorRows x) {
  for (std::size_t first = 0; first < n; first += kWidth, lines += kQuarterLine) {
    const std::size_t count = n - first < kWidth ? n - first : kWidth;
    decode_quarter(tables, lines, scales + first, count, from_row(x, first));
  }
}

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
