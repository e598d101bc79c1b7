#include "migrations/v1_expected.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "migrations/v1_classes.h"
#include "migrations/v1_meta.h"
#include "migrations/v1_state.h"
#include "tqcache/base/integers.h"
#include "tqcache/codec/codebook.h"

namespace tqcache::migrations {
namespace {

// Of a computed vector, in parts of what it was computed from: f32 rounds each of up to 1,024 sums
// to 2^-24; a single wrong code of 8 bits is off by 5e-4. Below the second all digits are rounding.
constexpr double kTolerance = 1e-5;
constexpr double kTiny = std::numeric_limits<float>::min();

// One number of a tensor, wherever it stands.
double number_at(const V1Tensor& tensor, std::size_t i) {
  float value = 0;
  switch (tensor.dtype) {
    case V1Dtype::kF16:
      load_f32(Dtype::kF16, tensor.data.data() + 2 * i, {&value, 1});
      break;
    case V1Dtype::kBf16:
      load_f32(Dtype::kBF16, tensor.data.data() + 2 * i, {&value, 1});
      break;
    default:
      load_f32(Dtype::kF32, tensor.data.data() + 4 * i, {&value, 1});
      break;
  }
  return value;
}

// `bits` bits of a row of bytes from bit `at` on, the lowest first: of one byte or of two.
std::uint32_t bits_at(const std::byte* row, std::size_t at, int bits) {
  const auto shift = static_cast<int>(at % 8);
  auto value = std::to_integer<std::uint32_t>(row[at / 8]);
  if (shift + bits > 8) value |= std::to_integer<std::uint32_t>(row[at / 8 + 1]) << 8;
  return (value >> shift) & ((1u << bits) - 1);
}

// Rows of a tensor [1, heads, tokens, ...], all of which are of one size.
class Rows {
 public:
  Rows(const V1Tensor& tensor, std::int64_t n_kv_heads, std::int64_t n_tokens)
      : tensor_(&tensor), n_tokens_(to_size(n_tokens)) {
    row_bytes_ = tensor.data.size() / (to_size(n_kv_heads) * n_tokens_);
  }

  std::size_t row(std::int64_t head, std::int64_t token) const {
    return to_size(head) * n_tokens_ + to_size(token);
  }
  const std::byte* bytes(std::int64_t head, std::int64_t token) const {
    return tensor_->data.data() + row(head, token) * row_bytes_;
  }
  // Number `i` of a row of `width`.
  double number(std::int64_t head, std::int64_t token, std::size_t width, std::size_t i) const {
    return number_at(*tensor_, row(head, token) * width + i);
  }

 private:
  const V1Tensor* tensor_;
  std::size_t n_tokens_;
  std::size_t row_bytes_;
};

// --- dense

ExpectedRow dense_rows(const V1Tensor& tensor, cache::HeadShape shape, std::int64_t n_tokens) {
  const Rows rows(tensor, shape.n_kv_heads, n_tokens);
  return [rows](std::int64_t head, std::int64_t token, std::span<float> x) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(rows.number(head, token, x.size(), i));
    }
    return kExact;
  };
}

// --- groups

Result<ExpectedRow> affine_rows(const State& state, const std::string& name, int bits,
                                std::int64_t group_size, cache::HeadShape shape,
                                std::int64_t n_tokens) {
  TQC_TRY_ASSIGN(const V1Tensor* packed, state.require(name + ".packed"));
  TQC_TRY_ASSIGN(const V1Tensor* scales, state.require(name + ".scales"));
  TQC_TRY_ASSIGN(const V1Tensor* biases, state.require(name + ".biases"));
  const Rows codes(*packed, shape.n_kv_heads, n_tokens);
  const Rows scale(*scales, shape.n_kv_heads, n_tokens);
  const Rows bias(*biases, shape.n_kv_heads, n_tokens);
  const std::size_t size = to_size(group_size);
  return ExpectedRow([=](std::int64_t head, std::int64_t token, std::span<float> x) {
    const std::size_t n_groups = x.size() / size;
    const std::byte* row = codes.bytes(head, token);
    double largest = 0;
    for (std::size_t group = 0; group < n_groups; ++group) {
      const double s = scale.number(head, token, n_groups, group);
      const double b = bias.number(head, token, n_groups, group);
      for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
        x[i] = static_cast<float>(s * bits_at(row, i * static_cast<std::size_t>(bits), bits) + b);
      }
      largest = std::max(largest, std::ldexp(std::abs(s), bits) + std::abs(b));
    }
    return kTolerance * largest + kTiny;
  });
}

// --- codes of a quantizer

// Of some channels of the head vector.
struct ExpectedPart {
  std::vector<std::size_t> channels;
  int bits = 0;
  std::vector<float> centroids;
  Rows codes, norms;
  std::shared_ptr<const codec::Rotation> map;
  std::optional<Rows> signs, residuals;
  std::shared_ptr<const codec::Rotation> sketch;  // S

  // Adds what it gives to x, and its share of what a difference may be.
  double add_to(std::int64_t head, std::int64_t token, std::span<float> x) const {
    std::vector<float> y(channels.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = centroids[bits_at(codes.bytes(head, token), i * static_cast<std::size_t>(bits), bits)];
    }
    const double norm = norms.number(head, token, 1, 0);
    map->unrotate(y, y);
    put(norm, y, x);
    return kTolerance * norm + (signs ? add_sketch(head, token, x) : 0.0);
  }

 private:
  double add_sketch(std::int64_t head, std::int64_t token, std::span<float> x) const {
    std::vector<float> y(channels.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = bits_at(signs->bytes(head, token), i, 1) != 0 ? 1.0f : -1.0f;
    }
    const double residual = residuals->number(head, token, 1, 0);
    const double pi = std::acos(-1.0);
    sketch->unrotate(y, y);
    put(residual * std::sqrt(pi / 2) / static_cast<double>(y.size()), y, x);
    return 2 * kTolerance * residual;  // |S^T s| is about 1.25 |r|
  }

  void put(double factor, std::span<const float> y, std::span<float> x) const {
    for (std::size_t i = 0; i < y.size(); ++i) {
      float& value = x[channels[i]];
      value = static_cast<float>(value + factor * y[i]);
    }
  }
};

Result<std::shared_ptr<const codec::Rotation>> map_of(CodecPool& maps, std::size_t dim,
                                                      codec::TransformKind kind,
                                                      std::uint64_t seed) {
  TQC_TRY_ASSIGN(
      codec::Rotation map,
      maps.rotation(
          {.head_dim = static_cast<int>(dim), .bits = 1, .seed = seed, .rotation = kind}));
  return std::make_shared<const codec::Rotation>(std::move(map));
}

Result<ExpectedPart> expected_part(const State& state, const TurboMeta& meta,
                                   const std::string& prefix, std::vector<std::size_t> channels,
                                   int bits, CodecPool& maps) {
  const std::size_t dim = channels.size();
  TQC_TRY_ASSIGN(const V1Tensor* codes, state.require(prefix + "_idx"));
  TQC_TRY_ASSIGN(const V1Tensor* norms, state.require(prefix + "_norms"));
  const auto kind = meta.is_wht ? codec::TransformKind::kHadamard : codec::TransformKind::kDenseQr;
  ExpectedPart part{.channels = std::move(channels),
                    .bits = bits,
                    .centroids = codec::lloyd_max_centroids(static_cast<int>(dim), bits),
                    .codes = Rows(*codes, meta.num_kv_heads, meta.offset),
                    .norms = Rows(*norms, meta.num_kv_heads, meta.offset),
                    .map = {},
                    .signs = {},
                    .residuals = {},
                    .sketch = {}};
  TQC_TRY_ASSIGN(part.map, map_of(maps, dim, kind, meta.rotation_seed));
  if (!meta.is_prod) return part;
  TQC_TRY_ASSIGN(const V1Tensor* signs, state.require(prefix + "_signs"));
  TQC_TRY_ASSIGN(const V1Tensor* residuals, state.require(prefix + "_residuals"));
  part.signs.emplace(*signs, meta.num_kv_heads, meta.offset);
  part.residuals.emplace(*residuals, meta.num_kv_heads, meta.offset);
  TQC_TRY_ASSIGN(part.sketch, map_of(maps, dim, codec::TransformKind::kGaussian, meta.qjl_seed));
  return part;
}

// The channels whose mask is (or is not) set, ascending.
std::vector<std::size_t> masked_channels(const V1Tensor& mask, bool loud) {
  std::vector<std::size_t> channels;
  for (std::size_t i = 0; i < mask.data.size(); ++i) {
    if ((mask.data[i] != std::byte{0}) == loud) channels.push_back(i);
  }
  return channels;
}

Result<ExpectedRow> turbo_rows(const State& state, const TurboMeta& meta, CodecPool& maps) {
  std::vector<ExpectedPart> parts;
  if (meta.mixed) {
    TQC_TRY_ASSIGN(const V1Tensor* mask, state.require("outlier_mask"));
    TQC_TRY_ASSIGN(ExpectedPart out,
                   expected_part(state, meta, "out", masked_channels(*mask, true),
                                 meta.code_bits(meta.mixed->outlier_high_bits), maps));
    TQC_TRY_ASSIGN(ExpectedPart reg,
                   expected_part(state, meta, "reg", masked_channels(*mask, false),
                                 meta.code_bits(meta.mixed->regular_bits), maps));
    parts.push_back(std::move(out));
    parts.push_back(std::move(reg));
  } else {
    std::vector<std::size_t> all(to_size(meta.head_dim));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    TQC_TRY_ASSIGN(ExpectedPart reg,
                   expected_part(state, meta, "reg", std::move(all), meta.bits_mse, maps));
    parts.push_back(std::move(reg));
  }
  return ExpectedRow([parts](std::int64_t head, std::int64_t token, std::span<float> x) {
    std::ranges::fill(x, 0.0f);
    double tolerance = kTiny;
    for (const ExpectedPart& part : parts) tolerance += part.add_to(head, token, x);
    return tolerance;
  });
}

// --- layers

Result<ExpectedLayer> expected_turbo(const V1Entry& entry, CodecPool& maps) {
  const State state(entry.state);
  const State extra(entry.extra_state);
  TQC_TRY_ASSIGN(const TurboMeta meta, read_turbo_meta(entry.meta_state));
  ExpectedLayer layer{{meta.num_kv_heads, meta.head_dim}, meta.offset, {}, {}};
  if (meta.offset == 0) return layer;
  if (const V1Tensor* keys = extra.find("calibration_keys")) {
    TQC_TRY_ASSIGN(const V1Tensor* values, extra.require("calibration_values"));
    layer.k = dense_rows(*keys, layer.shape, layer.n_tokens);
    layer.v = dense_rows(*values, layer.shape, layer.n_tokens);
    return layer;
  }
  TQC_TRY_ASSIGN(layer.k, turbo_rows(state, meta, maps));
  if (meta.has_affine_values) {
    TQC_TRY_ASSIGN(layer.v, affine_rows(state, "values_main", meta.value_bits,
                                        meta.value_group_size, layer.shape, layer.n_tokens));
  } else {
    TQC_TRY_ASSIGN(const V1Tensor* values, state.require("values_main"));
    layer.v = dense_rows(*values, layer.shape, layer.n_tokens);
  }
  return layer;
}

Result<ExpectedLayer> expected_quantized(const V1Entry& entry) {
  const State state(entry.state);
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  TQC_TRY_ASSIGN(const V1Tensor* scales, state.named("keys.scales"));
  if (numbers.size() != 3) return Error{ErrorCode::kCorrupt, "no QuantizedKVCache"};
  TQC_TRY_ASSIGN(const Grid groups, grid_of(*scales));
  ExpectedLayer layer{{groups.n_kv_heads, groups.width * numbers[1]}, numbers[0], {}, {}};
  if (layer.n_tokens == 0) return layer;
  const int bits = static_cast<int>(numbers[2]);
  TQC_TRY_ASSIGN(layer.k,
                 affine_rows(state, "keys", bits, numbers[1], layer.shape, layer.n_tokens));
  TQC_TRY_ASSIGN(layer.v,
                 affine_rows(state, "values", bits, numbers[1], layer.shape, layer.n_tokens));
  return layer;
}

Result<ExpectedLayer> expected_dense(const V1Entry& entry) {
  const State state(entry.state);
  TQC_TRY_ASSIGN(const V1Tensor* keys, state.named("keys"));
  TQC_TRY_ASSIGN(const V1Tensor* values, state.named("values"));
  TQC_TRY_ASSIGN(const Grid grid, grid_of(*keys));
  ExpectedLayer layer{{grid.n_kv_heads, grid.width}, grid.n_tokens, {}, {}};
  if (layer.n_tokens == 0) return layer;
  layer.k = dense_rows(*keys, layer.shape, layer.n_tokens);
  layer.v = dense_rows(*values, layer.shape, layer.n_tokens);
  return layer;
}

}  // namespace

Result<ExpectedLayer> expected_layer(const V1Entry& entry, CodecPool& maps) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind == V1Class::kTurbo) return expected_turbo(entry, maps);
  if (kind == V1Class::kQuantized) return expected_quantized(entry);
  return expected_dense(entry);
}

}  // namespace tqcache::migrations
