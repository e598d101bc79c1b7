// The definition of every kernel, in plain loops.

#include <algorithm>
#include <array>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/codec/kernels/sinusoid_table.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

using HeadVector = std::array<float, kMaxHeadDim>;
using HeadCodes = std::array<std::uint8_t, kMaxHeadDim>;

std::span<const std::byte> block_bytes(const PackedBlock& block) {
  return {reinterpret_cast<const std::byte*>(block.codes), block.shape.block_bytes()};
}

// c[codes] of one token.
void look_up(const PackedBlock& block, const CodeTables& tables, std::size_t token,
             HeadVector& values) {
  HeadCodes codes;
  unpack_token(block.shape, block_bytes(block), token, std::span(codes).first(block.shape.dim()));
  for (std::size_t i = 0; i < block.shape.dim(); ++i) values[i] = tables.values[codes[i]];
}

float dot(const float* a, const float* b, std::size_t n) {
  float sum = 0.0f;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void scalar::score_exact(const PackedBlock& block, const CodeTables& tables,
                         const QueryRows& queries, OutputRows scores) {
  HeadVector key;
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    look_up(block, tables, t, key);
    const float scale = f16_to_f32(block.scales[t]);
    for (std::size_t q = 0; q < queries.n_queries; ++q) {
      const float* const query = queries.values + q * queries.stride;
      scores.values[q * scores.stride + t] = scale * dot(query, key.data(), block.shape.dim());
    }
  }
}

void scalar::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                              const WeightRows& weights, OutputRows out) {
  HeadVector value;
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    look_up(block, tables, t, value);
    const float scale = f16_to_f32(block.scales[t]);
    for (std::size_t q = 0; q < weights.n_queries; ++q) {
      const float weight = weights.values[q * weights.stride + t] * scale;
      float* const sum = out.values + q * out.stride;
      for (std::size_t i = 0; i < block.shape.dim(); ++i) sum[i] += weight * value[i];
    }
  }
}

namespace {

void load_row(const DenseBlock& block, std::size_t token, HeadVector& values) {
  const std::size_t row_bytes = block.head_dim * dtype_size(block.dtype);
  load_f32(block.dtype, block.rows + token * row_bytes, std::span(values).first(block.head_dim));
}

}  // namespace

void scalar::score_dense(const DenseBlock& block, const QueryRows& queries, OutputRows scores) {
  HeadVector key;
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    load_row(block, t, key);
    for (std::size_t q = 0; q < queries.n_queries; ++q) {
      const float* const query = queries.values + q * queries.stride;
      scores.values[q * scores.stride + t] = dot(query, key.data(), block.head_dim);
    }
  }
}

void scalar::accumulate_dense(const DenseBlock& block, const WeightRows& weights, OutputRows out) {
  HeadVector value;
  for (std::size_t t = 0; t < block.n_tokens; ++t) {
    load_row(block, t, value);
    for (std::size_t q = 0; q < weights.n_queries; ++q) {
      const float weight = weights.values[q * weights.stride + t];
      float* const sum = out.values + q * out.stride;
      for (std::size_t i = 0; i < block.head_dim; ++i) sum[i] += weight * value[i];
    }
  }
}

namespace {

// row -= the center at `token`: the products and the sum of a rotation are each rounded.
void subtract_center(const Center& center, std::size_t token, std::span<float> row) {
  const float* const cos = center.cos + token * center.n_pairs;
  const float* const sin = center.sin + token * center.n_pairs;
  const float* const low = center.mean;
  const float* const high = center.mean + center.n_pairs;
  for (std::size_t i = 0; i < center.n_pairs; ++i) {
    row[i] -= low[i] * cos[i] - high[i] * sin[i];
    row[center.n_pairs + i] -= high[i] * cos[i] + low[i] * sin[i];
  }
  for (std::size_t i = 2 * center.n_pairs; i < row.size(); ++i) row[i] -= center.mean[i];
}

}  // namespace

void scalar::center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center& center,
                         std::size_t first_token, float* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::span row(out + i * head_dim, head_dim);
    load_f32(x.dtype, x.rows + i * x.stride, row);
    if (center.mean != nullptr) subtract_center(center, first_token + i, row);
  }
}

namespace {

// Rotates pairs of components by the angles of `token`.
void rotate_pairs(const Center& center, std::size_t token, float* low, float* high) {
  const float* const cos = center.cos + token * center.n_pairs;
  const float* const sin = center.sin + token * center.n_pairs;
  for (std::size_t i = 0; i < center.n_pairs; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cos[i] - b * sin[i];
    high[i] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

void scalar::restore_rows(const TransformedRows& x, const Center& center, std::size_t first_token,
                          MutableVectorRows out) {
  HeadVector row, mean;
  for (std::size_t t = 0; t < x.n; ++t) {
    std::copy_n(x.rows + t * x.head_dim, x.head_dim, row.data());
    if (x.rotates) rotate_pairs(center, first_token + t, row.data(), row.data() + center.n_pairs);
    if (center.mean != nullptr) {
      std::copy_n(center.mean, x.head_dim, mean.data());
      rotate_pairs(center, first_token + t, mean.data(), mean.data() + center.n_pairs);
      for (std::size_t i = 0; i < x.head_dim; ++i) row[i] += mean[i];
    }
    store_f32(out.dtype, std::span<const float>(row).first(x.head_dim), out.rows + t * out.stride);
  }
}

namespace {

// factors [n_rows, 2], even before odd.
void add_rows(const SinusoidTable& table, const float* factors, float* scores) {
  std::array<float, kSinusoidHalf> even{}, odd{};
  for (std::size_t r = 0; r < table.n_rows; ++r) {
    const float* const row = table.values.data() + r * kSinusoidRow;
    for (std::size_t i = 0; i < kSinusoidHalf; ++i) {
      even[i] += factors[2 * r] * row[i];
      odd[i] += factors[2 * r + 1] * row[kSinusoidHalf + i];
    }
  }
  for (std::size_t i = 0; i < kSinusoidHalf; ++i) {
    scores[kSinusoidHalf + i] += even[i] + odd[i];
    scores[kSinusoidHalf - 1 - i] += even[i] - odd[i];
  }
}

}  // namespace

void scalar::add_sinusoids_exact(const SinusoidTable& table, const Sinusoids& sinusoids,
                                 OutputRows scores) {
  std::array<float, 2 * kMaxSinusoidRows> factors;
  for (std::size_t q = 0; q < sinusoids.n_queries; ++q) {
    make_sinusoid_factors(table, sinusoids, q, factors.data());
    add_rows(table, factors.data(), scores.values + q * scores.stride);
  }
}

namespace {

// The byte, in a group's lines of keys, of the code of a lane's component.
std::size_t line_byte(std::size_t lane, std::size_t component) {
  return component / kLaneCodes * kLineBytes + lane * kLaneCodes + component % kLaneCodes;
}

}  // namespace

std::uint32_t scalar::encode_lines(const RotationTables& tables, VectorRows x, std::size_t n,
                                   std::uint8_t* lines, std::uint16_t* scales) {
  const std::size_t dim = tables.head_dim;
  std::memset(lines, 0, (dim + kUnitLaneCodes - 1) / kUnitLaneCodes * kUnitLines * kLineBytes);
  HeadVector vector;
  HeadCodes codes;
  std::array<std::byte, kMaxHeadDim> packed;
  const std::span packed_codes = std::span(packed).first(tables.quantizer->code_bytes());
  std::uint32_t refused = 0;
  for (std::size_t lane = 0; lane < n; ++lane) {
    load_f32(x.dtype, x.rows + lane * x.stride, std::span(vector).first(dim));
    const auto scale = tables.quantizer->encode(std::span(vector).first(dim), packed_codes);
    scales[lane] = scale ? *scale : std::uint16_t{0};
    if (!scale) {
      refused |= 1u << lane;
      continue;
    }
    unpack_codes(packed_codes, tables.bits, std::span(codes).first(dim));
    for (std::size_t i = 0; i < dim; ++i) lines[line_byte(lane, i)] = codes[i];
  }
  return refused;
}

void scalar::decode_lines(const RotationTables& tables, const std::uint8_t* lines,
                          const std::uint16_t* scales, std::size_t n, MutableVectorRows x) {
  const std::size_t dim = tables.head_dim;
  HeadVector buffer;
  const std::span vector = std::span(buffer).first(dim);
  for (std::size_t lane = 0; lane < n; ++lane) {
    const float scale = f16_to_f32(scales[lane]);
    for (std::size_t i = 0; i < dim; ++i) {
      vector[i] = scale * tables.centroids[lines[line_byte(lane, i)]];
    }
    tables.quantizer->rotation().unrotate(vector, vector);
    store_f32(x.dtype, vector, x.rows + lane * x.stride);
  }
}

void scalar::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t i = 0; i < kLanes; ++i) out[line_byte(i, lane)] = in[line_byte(lane, i)];
  }
}

std::size_t scalar::multiply_rows(const RowTransformTask&) { return 0; }

}  // namespace tqcache::codec
