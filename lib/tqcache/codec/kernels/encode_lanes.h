// codec/kernels/encode_lanes.h: encoding and decoding of kWidth head vectors at once, one per
// register lane.
//
// Each lane performs exactly the operations of Quantizer, in the same order, so the bytes are the
// same. Component i of kWidth vectors is one register: no operation crosses lanes, except the
// transposition at the start and at the end.
//
// Included by encode_*.cpp, after the parts that differ between instruction sets:
//
//   Centroids<kBits>, load_centroids<kBits>(tables), look_up(centroids, codes)
//   load_tree<kBits>(tables), find_codes(tree, y); with TQC_CODE_BINS also load_bins(bins)
//   load_scales(scales, n): f16 to f32, zeros from n on
//   settle_scales(lengths, exact, n, scales): stores the scales of n vectors

#include <cstring>

#include "tqcache/codec/kernels/lane_rotation.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kPartBytes = kLineBytes * kWidth / kLanes;  // bytes of a line in one register

// The starts of kWidth rows. Lanes without a row get the last row again; their results are dropped.
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

// <x, x> of every row. The sixteen lanes of the format's inner product run along a row, so the
// first sums by halves add registers.
template <Dtype kDtype>
TQC_LANES Lanes squared_lengths(const RowStarts& starts, std::size_t head_dim) {
  constexpr std::size_t kRegisters = 16 / kWidth;
  Lanes rows[kWidth];
  for (std::size_t t = 0; t < kWidth; ++t) {
    Lanes sums[kRegisters];
    TQC_UNROLL for (std::size_t k = 0; k < kRegisters; ++k) sums[k] = spread(0.0f);
    for (std::size_t i = 0; i < head_dim; i += 16) {
      TQC_UNROLL for (std::size_t k = 0; k < kRegisters; ++k) {
        const std::size_t at = i + k * kWidth;
        if (at >= head_dim) break;
        const Lanes v = widen<kDtype>(starts.rows[t], at, part_of(head_dim - at));
        sums[k] += v * v;
      }
    }
    TQC_UNROLL for (std::size_t half = kRegisters / 2; half > 0; half /= 2) {
      TQC_UNROLL for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    rows[t] = sums[0];
  }
  transpose(rows);
  TQC_UNROLL for (std::size_t half = kWidth / 2; half > 0; half /= 2) {
    TQC_UNROLL for (std::size_t l = 0; l < half; ++l) rows[l] += rows[l + half];
  }
  return rows[0];
}

// Loads vectors, applies the first signs, and runs the first stages up to `distance`, 1 or kWidth.
// Returns the lengths of the vectors.
template <Dtype kDtype>
TQC_LANES_FUNCTION Lanes load_vectors(const RotationTables& tables, const VectorRows& x,
                                      std::size_t n, std::size_t distance, LaneVectors& vectors) {
  const RowStarts starts = row_starts(x, n);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    const Part part = part_of(tables.head_dim - i);
    Lanes v[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) v[t] =
        widen<kDtype>(starts.rows[t], i, part);
    transpose(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) v[t] = flip(v[t], tables.sign_bits[i + t]);
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) vectors.values[i + t] = v[t];
  }
  return square_root(squared_lengths<kDtype>(starts, tables.head_dim));
}

// Runs the last steps of the inverse rotation, and stores the vectors.
template <Dtype kDtype>
TQC_LANES_FUNCTION void store_vectors(const RotationTables& tables, const LaneVectors& vectors,
                                      std::size_t n, const MutableVectorRows& x) {
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    Lanes v[kWidth];
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      v[t] = flip(vectors.values[i + t] * tables.factor, tables.sign_bits[i + t]);
    }
    transpose(v);
    const Part part = part_of(tables.head_dim - i);
    TQC_UNROLL for (std::size_t t = 0; t < kWidth; ++t) {
      if (t < n) narrow<kDtype>(v[t], x.rows + t * x.stride, i, part);
    }
  }
}

// <x, x> of every vector.
TQC_LANES_FUNCTION Lanes squares(const LaneVectors& x, std::size_t head_dim) {
  Lanes sums[16];
  for (std::size_t l = 0; l < 16; ++l) sums[l] = spread(0.0f);
  for (std::size_t i = 0; i < head_dim; ++i) sums[i % 16] += x.values[i] * x.values[i];
  return add_halves(sums);
}

// The largest |y[i]| of every vector.
TQC_LANES_FUNCTION Lanes peaks(const RotationTables& tables, const LaneVectors& x) {
  Lanes most = spread(0.0f);
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    most = larger(magnitude(x.values[i] * tables.factor), most);
  }
  return most;
}

// Quantizes `count` components from x on into this part of four lines of bytes. `count` is 16,
// except for the last components.
template <int kBits, class Boundaries>
TQC_LANES void quantize_some(const Boundaries& boundaries, const Centroids<kBits>& centroids,
                             const Lanes* x, std::size_t count, Lanes factor, Lanes inverse_size,
                             std::uint8_t* lines, Lanes (&sums)[16]) {
  LaneBits line = {};
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) {
    if (l < count) {
      const Lanes y = (x[l] * factor) * inverse_size;
      const LaneBits codes = find_codes(boundaries, y);
      sums[l] = sums[l] + y * look_up(centroids, codes);
      const LaneBits placed = codes << static_cast<unsigned>(8 * (l % 4));
      line = l % 4 == 0 ? placed : line | placed;
      if (l % 4 == 3 || l + 1 == count) {
        std::memcpy(lines + l / 4 * kLineBytes, &line, sizeof(line));
      }
    }
  }
}

// Writes the codes, and returns the inner products of y with its centroids.
template <int kBits, class Boundaries>
TQC_LANES Lanes quantize_all(const Boundaries& boundaries, const RotationTables& tables,
                             const LaneVectors& x, Lanes inverse_size, std::uint8_t* lines) {
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  const Lanes factor = spread(tables.factor);
  Lanes sums[16];
  TQC_UNROLL for (std::size_t l = 0; l < 16; ++l) sums[l] = spread(0.0f);
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
TQC_LANES_FUNCTION Lanes quantize(const RotationTables& tables, const LaneVectors& x,
                                  Lanes inverse_size, std::uint8_t* lines) {
#ifdef TQC_CODE_BINS
  if constexpr (kBits >= 2 && kBits <= 4) {
    if (tables.bins.is_usable) {
      return quantize_all<kBits>(load_bins(tables.bins), tables, x, inverse_size, lines);
    }
  }
#endif
  return quantize_all<kBits>(load_tree<kBits>(tables), tables, x, inverse_size, lines);
}

// Scales the centroids, and runs the first stages of the inverse up to `distance`, 1 or kWidth.
template <int kBits>
TQC_LANES_FUNCTION void dequantize(const RotationTables& tables, const std::uint8_t* lines,
                                   Lanes scales, std::size_t distance, LaneVectors& x) {
  const Centroids<kBits> centroids = load_centroids<kBits>(tables);
  for (std::size_t i = 0; i < tables.head_dim; i += kWidth) {
    Lanes v[kWidth];
    TQC_UNROLL for (std::size_t l = 0; l < kWidth; l += 4) {
      LaneBits line;
      std::memcpy(&line, lines + (i + l) * 16, sizeof(line));
      TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
        v[l + j] = scales * look_up(centroids, line & 0xff);
        line = line >> 8;
      }
    }
    if (distance > 1) butterflies(v);
    TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) x.values[i + l] = v[l];
  }
}

using Quantize = Lanes (*)(const RotationTables&, const LaneVectors&, Lanes, std::uint8_t*);
using Dequantize = void (*)(const RotationTables&, const std::uint8_t*, Lanes, std::size_t,
                            LaneVectors&);
constexpr Quantize kQuantize[] = {quantize<1>, quantize<2>, quantize<3>, quantize<4>,
                                  quantize<5>, quantize<6>, quantize<7>, quantize<8>};
constexpr Dequantize kDequantize[] = {dequantize<1>, dequantize<2>, dequantize<3>, dequantize<4>,
                                      dequantize<5>, dequantize<6>, dequantize<7>, dequantize<8>};

TQC_LANES_FUNCTION Lanes load_rows(const RotationTables& tables, const VectorRows& x, std::size_t n,
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
  by_dtype(x.dtype, [&]<Dtype kDtype>() { store_vectors<kDtype>(tables, vectors, n, x); });
}

// The scales of Quantizer, in f32. `vectors` is overwritten.
TQC_LANES_FUNCTION Lanes find_scales(const RotationTables& tables, Lanes sizes, Lanes products,
                                     const std::uint8_t* lines, LaneVectors& vectors) {
  if (tables.scale == ScaleRule::kUnbiased) return sizes / products;
  if (tables.scale != ScaleRule::kNorm) return sizes;
  kDequantize[tables.bits - 1](tables, lines, spread(1.0f), 1, vectors);
  return sizes / square_root(squares(vectors, tables.head_dim));
}

// Clears the codes of lanes with zero bits in `kept`.
TQC_LANES_FUNCTION void clear_lanes(std::uint8_t* lines, std::size_t head_dim,
                                    const LaneBits& kept) {
  for (std::size_t i = 0; i < head_dim; i += kLaneCodes) {
    LaneBits line;
    std::memcpy(&line, lines + i * 16, sizeof(line));
    line = line & kept;
    std::memcpy(lines + i * 16, &line, sizeof(line));
  }
}

TQC_LANES_FUNCTION void clear_part(std::uint8_t* lines, std::size_t head_dim) {
  clear_lanes(lines, head_dim, LaneBits{});
}

// Encodes the first n of kWidth vectors, n at least 1. Returns a bit for each rejected vector.
TQC_LANES_FUNCTION std::uint32_t encode_part(const RotationTables& tables, const VectorRows& x,
                                             std::size_t n, std::uint8_t* lines,
                                             std::uint16_t* scales) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  const Lanes lengths = load_rows(tables, x, n, distance, vectors);
  rotate(tables, vectors, distance);
  const Lanes sizes = tables.scale == ScaleRule::kPeak ? peaks(tables, vectors) : lengths;
  const Lanes inverse = spread(1.0f) / sizes;
  const Lanes products = kQuantize[tables.bits - 1](tables, vectors, inverse, lines);
  const Lanes exact = find_scales(tables, sizes, products, lines, vectors);
  const SettledScales settled = settle_scales(lengths, exact, n, scales);
  if (!settled.all_kept) clear_lanes(lines, tables.head_dim, settled.kept);
  return settled.refused;
}

TQC_LANES_FUNCTION void decode_part(const RotationTables& tables, const std::uint8_t* lines,
                                    const std::uint16_t* scales, std::size_t n,
                                    const MutableVectorRows& x) {
  LaneVectors vectors;
  const std::size_t distance = loaded_distance(tables);
  kDequantize[tables.bits - 1](tables, lines, load_scales(scales, n), distance, vectors);
  unrotate(tables, vectors, distance);
  store_rows(tables, vectors, n, x);
}

template <class Rows>
Rows from_row(Rows rows, std::size_t row) {
  rows.rows += row * rows.stride;
  return rows;
}

}  // namespace

std::uint32_t TQC_SET::encode_lines(const RotationTables& tables, VectorRows x, std::size_t n,
                                    std::uint8_t* lines, std::uint16_t* scales) {
  // Lines without codes, up to a whole unit.
  for (std::size_t l = (tables.head_dim + 3) / 4; l % kUnitLines != 0; ++l) {
    std::memset(lines + l * kLineBytes, 0, kLineBytes);
  }
  std::uint32_t refused = 0;
  for (std::size_t first = 0; first < kLanes; first += kWidth, lines += kPartBytes) {
    if (first >= n) {
      clear_part(lines, tables.head_dim);
      continue;
    }
    const std::size_t count = n - first < kWidth ? n - first : kWidth;
    refused |= encode_part(tables, from_row(x, first), count, lines, scales + first) << first;
  }
  return refused;
}

void TQC_SET::decode_lines(const RotationTables& tables, const std::uint8_t* lines,
                           const std::uint16_t* scales, std::size_t n, MutableVectorRows x) {
  for (std::size_t first = 0; first < n; first += kWidth, lines += kPartBytes) {
    const std::size_t count = n - first < kWidth ? n - first : kWidth;
    decode_part(tables, lines, scales + first, count, from_row(x, first));
  }
}

}  // namespace tqcache::codec
