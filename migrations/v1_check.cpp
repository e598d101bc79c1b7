// check_migrated(): an independent check of a migration. Each component of a head vector is looked
// up in the tensors of the old file, at the place that the specification defines. Only the linear
// transforms, the codebooks and the JSON parser are shared with v1_to_v2().
//
// Spec: docs/reference/format.md, "Version 1".

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "migrations/v1_file.h"
#include "migrations/v1_layers.h"
#include "migrations/v1_metadata.h"
#include "migrations/v1_tensors.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::migrations {
namespace {

// The tolerance of an ExpectedRow for a vector that the file stores as it is.
inline constexpr double kExact = -1;

// Fills x with a head vector, and returns the largest allowed length of the difference, or kExact.
// Threads: any number at once.
using ExpectedRow =
    std::function<double(std::int64_t head, std::int64_t token, std::span<float> x)>;

struct ExpectedLayer {
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
  ExpectedRow k;
  ExpectedRow v;
};

// For a layer whose class stores keys and values of all tokens. The entry must outlive the result.
//
// Requires: v1_to_v2() has accepted the file.
// Errors:   kCorrupt if it has not; kTooLarge.
Result<ExpectedLayer> expected_layer(const V1Entry& entry, CodecPool& codecs);

// The rows of a ring buffer by position, for positions in its window.
struct RingRows {
  std::int64_t keep = 0;
  std::int64_t n_rows = 0;
  std::int64_t offset = 0;
  std::int64_t next = 0;

  std::int64_t row_of(std::int64_t position) const {
    if (position < keep) return position;
    const std::int64_t row = next - (offset - position);  // the newest is before `next`
    return row < keep ? row + n_rows - keep : row;
  }
};

// The tolerance for a computed vector, relative to its inputs: f32 rounds each of up to 1,024 sums
// to 2^-24; a single wrong 8-bit code is off by 5e-4. Values below kTiny are only rounding errors.
constexpr double kTolerance = 1e-5;
constexpr double kTiny = std::numeric_limits<float>::min();

// One number of a tensor.
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

// `bits` bits of a row of bytes from bit `at` on, lowest first, from one or two bytes.
std::uint32_t bits_at(const std::byte* row, std::size_t at, int bits) {
  const auto shift = static_cast<int>(at % 8);
  auto value = std::to_integer<std::uint32_t>(row[at / 8]);
  if (shift + bits > 8) value |= std::to_integer<std::uint32_t>(row[at / 8 + 1]) << 8;
  return (value >> shift) & ((1u << bits) - 1);
}

// The rows of a tensor [1, heads, tokens, ...], which all have the same size.
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

Result<ExpectedRow> affine_rows(const NamedTensors& state, const std::string& name, int bits,
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

// One quantizer, for some channels of the head vector.
struct ExpectedPart {
  std::vector<std::size_t> channels;
  int bits = 0;
  std::vector<float> centroids;
  Rows codes, norms;
  std::shared_ptr<const codec::Rotation> transform;
  std::optional<Rows> signs, residuals;
  std::shared_ptr<const codec::Rotation> sketch;  // S

  // Adds its values to x, and returns its part of the tolerance.
  double add_to(std::int64_t head, std::int64_t token, std::span<float> x) const {
    std::vector<float> y(channels.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = centroids[bits_at(codes.bytes(head, token), i * static_cast<std::size_t>(bits), bits)];
    }
    const double norm = norms.number(head, token, 1, 0);
    transform->unrotate(y, y);
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

Result<std::shared_ptr<const codec::Rotation>> transform_of(CodecPool& codecs, std::size_t dim,
                                                            codec::TransformKind kind,
                                                            std::uint64_t seed) {
  TQC_TRY_ASSIGN(
      codec::Rotation transform,
      codecs.rotation(
          {.head_dim = static_cast<int>(dim), .bits = 1, .seed = seed, .rotation = kind}));
  return std::make_shared<const codec::Rotation>(std::move(transform));
}

Result<ExpectedPart> expected_part(const NamedTensors& state, const TurboMeta& meta,
                                   const std::string& prefix, std::vector<std::size_t> channels,
                                   int bits, CodecPool& codecs) {
  const std::size_t dim = channels.size();
  TQC_TRY_ASSIGN(const V1Tensor* codes, state.require(prefix + "_idx"));
  TQC_TRY_ASSIGN(const V1Tensor* norms, state.require(prefix + "_norms"));
  const auto kind = meta.is_wht ? codec::TransformKind::kHadamard : codec::TransformKind::kDenseQr;
  ExpectedPart part{.channels = std::move(channels),
                    .bits = bits,
                    .centroids = codec::lloyd_max_centroids(static_cast<int>(dim), bits),
                    .codes = Rows(*codes, meta.num_kv_heads, meta.offset),
                    .norms = Rows(*norms, meta.num_kv_heads, meta.offset),
                    .transform = {},
                    .signs = {},
                    .residuals = {},
                    .sketch = {}};
  TQC_TRY_ASSIGN(part.transform, transform_of(codecs, dim, kind, meta.rotation_seed));
  if (!meta.is_prod) return part;
  TQC_TRY_ASSIGN(const V1Tensor* signs, state.require(prefix + "_signs"));
  TQC_TRY_ASSIGN(const V1Tensor* residuals, state.require(prefix + "_residuals"));
  part.signs.emplace(*signs, meta.num_kv_heads, meta.offset);
  part.residuals.emplace(*residuals, meta.num_kv_heads, meta.offset);
  TQC_TRY_ASSIGN(part.sketch,
                 transform_of(codecs, dim, codec::TransformKind::kGaussian, meta.qjl_seed));
  return part;
}

// The channels whose mask bit equals `outliers`, ascending.
std::vector<std::size_t> masked_channels(const V1Tensor& mask, bool outliers) {
  std::vector<std::size_t> channels;
  for (std::size_t i = 0; i < mask.data.size(); ++i) {
    if ((mask.data[i] != std::byte{0}) == outliers) channels.push_back(i);
  }
  return channels;
}

Result<ExpectedRow> turbo_rows(const NamedTensors& state, const TurboMeta& meta,
                               CodecPool& codecs) {
  std::vector<ExpectedPart> parts;
  if (meta.mixed) {
    TQC_TRY_ASSIGN(const V1Tensor* mask, state.require("outlier_mask"));
    TQC_TRY_ASSIGN(ExpectedPart out,
                   expected_part(state, meta, "out", masked_channels(*mask, true),
                                 meta.code_bits(meta.mixed->outlier_high_bits), codecs));
    TQC_TRY_ASSIGN(ExpectedPart reg,
                   expected_part(state, meta, "reg", masked_channels(*mask, false),
                                 meta.code_bits(meta.mixed->regular_bits), codecs));
    parts.push_back(std::move(out));
    parts.push_back(std::move(reg));
  } else {
    std::vector<std::size_t> all(to_size(meta.head_dim));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    TQC_TRY_ASSIGN(ExpectedPart reg,
                   expected_part(state, meta, "reg", std::move(all), meta.bits_mse, codecs));
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

Result<ExpectedLayer> expected_turbo(const V1Entry& entry, CodecPool& codecs) {
  const NamedTensors state(entry.state);
  const NamedTensors extra(entry.extra_state);
  TQC_TRY_ASSIGN(const TurboMeta meta, read_turbo_meta(entry.meta_state));
  ExpectedLayer layer{{meta.num_kv_heads, meta.head_dim}, meta.offset, {}, {}};
  if (meta.offset == 0) return layer;
  if (const V1Tensor* keys = extra.find("calibration_keys")) {
    TQC_TRY_ASSIGN(const V1Tensor* values, extra.require("calibration_values"));
    layer.k = dense_rows(*keys, layer.shape, layer.n_tokens);
    layer.v = dense_rows(*values, layer.shape, layer.n_tokens);
    return layer;
  }
  TQC_TRY_ASSIGN(layer.k, turbo_rows(state, meta, codecs));
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
  const NamedTensors state(entry.state);
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  TQC_TRY_ASSIGN(const V1Tensor* scales, state.named("keys.scales"));
  if (numbers.size() != 3) return corrupt("no QuantizedKVCache");
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
  const NamedTensors state(entry.state);
  TQC_TRY_ASSIGN(const V1Tensor* keys, state.named("keys"));
  TQC_TRY_ASSIGN(const V1Tensor* values, state.named("values"));
  TQC_TRY_ASSIGN(const Grid grid, grid_of(*keys));
  ExpectedLayer layer{{grid.n_kv_heads, grid.width}, grid.n_tokens, {}, {}};
  if (layer.n_tokens == 0) return layer;
  layer.k = dense_rows(*keys, layer.shape, layer.n_tokens);
  layer.v = dense_rows(*values, layer.shape, layer.n_tokens);
  return layer;
}

Result<ExpectedLayer> expected_layer(const V1Entry& entry, CodecPool& codecs) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind == V1Class::kTurbo) return expected_turbo(entry, codecs);
  if (kind == V1Class::kQuantized) return expected_quantized(entry);
  return expected_dense(entry);
}

// Checks that a migrated cache has the content of the old file (v1_to_v2.h).

Error differs(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

// --- the whole cache

Result<void> check_identity_kept(const cache::Identity& old, const cache::Identity& own) {
  const bool same = old.architecture == own.architecture && old.model_name == own.model_name &&
                    old.rope == own.rope && old.weights_fingerprint == own.weights_fingerprint &&
                    old.tokenizer_fingerprint == own.tokenizer_fingerprint &&
                    !own.adapter_fingerprint && own.source_format == old.source_format;
  if (same) return {};
  return differs("identity: not that of the old file");
}

Result<void> check_tokens(const std::optional<std::vector<std::int32_t>>& old,
                          const cache::Cache& cache) {
  const bool same = !old ? cache.hidden_tokens && cache.hidden_tokens->empty()
                    : cache::tokens_known(cache) ? cache.tokens == *old
                                                 : *cache.hidden_tokens == cache::hash_tokens(*old);
  if (same) return {};
  return differs("tokens: not those of the old file");
}

// --- layers with all tokens

// The length of the difference.
double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

struct CheckedTensor {
  const cache::Tensor& tensor;
  const ExpectedRow& expected;
  cache::HeadShape shape;
  std::int64_t n_tokens;
};

Result<void> check_block(const CheckedTensor& checked, std::int64_t block, std::int64_t head) {
  const std::int64_t n_block = cache::tokens_in_block(checked.n_tokens, block);
  const std::size_t head_dim = to_size(checked.shape.head_dim);
  std::vector<float> rows(to_size(n_block) * head_dim);
  std::vector<float> x(head_dim);
  cache::read_block(checked.tensor, checked.shape, checked.n_tokens, block, head, rows);
  for (std::int64_t i = 0; i < n_block; ++i) {
    const std::int64_t token = block * cache::kTokenBlock + i;
    const double tolerance = checked.expected(head, token, x);
    const auto row = std::span(rows).subspan(to_size(i) * head_dim, head_dim);
    // Written so that NaN fails.
    const bool same = tolerance == kExact ? same_bits(row, x) : distance(row, x) <= tolerance;
    if (same) continue;
    return differs(fmt::format("head {} token {}: not the value of the old file", head, token));
  }
  return {};
}

Result<void> check_tensor(const char* place, const CheckedTensor& checked, unsigned n_threads) {
  const std::size_t n_blocks = to_size(cache::block_count(checked.n_tokens));
  const std::size_t n_heads = to_size(checked.shape.n_kv_heads);
  const auto check = [&](std::size_t i) {
    return check_block(checked, static_cast<std::int64_t>(i / n_heads),
                       static_cast<std::int64_t>(i % n_heads));
  };
  auto done = parallel_try(n_blocks * n_heads, n_threads, check);
  if (!done) return in_context(place, std::move(done).error());
  return {};
}

Result<void> check_attention(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens,
                             CodecPool& codecs, unsigned n_threads) {
  const auto* attention = std::get_if<cache::AttentionLayer>(&layer);
  if (attention == nullptr) return differs("no attention layer");
  TQC_TRY_ASSIGN(const ExpectedLayer expected, expected_layer(entry, codecs));
  if (!(attention->shape == expected.shape) || n_tokens != expected.n_tokens) {
    return differs("of another shape than in the old file");
  }
  TQC_TRY(check_tensor("k", {attention->k, expected.k, expected.shape, n_tokens}, n_threads));
  return check_tensor("v", {attention->v, expected.v, expected.shape, n_tokens}, n_threads);
}

// --- arrays

bool same_dtype(const V1Tensor& tensor, Dtype dtype) {
  const auto own = dense_dtype(tensor);
  return own && *own == dtype;
}

Result<void> check_arrays(const V1Entry& entry, const cache::Layer& layer) {
  const auto* arrays = std::get_if<cache::StateLayer>(&layer);
  if (arrays == nullptr) return differs("no arrays layer");
  const auto same = [](const V1Tensor& tensor, const cache::NamedArray& array) {
    return tensor.name == array.name && tensor.shape == array.shape &&
           same_dtype(tensor, array.dtype) && tensor.data == array.data;
  };
  if (std::ranges::equal(entry.state, arrays->arrays, same)) return {};
  return differs("arrays: not those of the old file");
}

// --- rings

Result<void> check_window_tensor(const V1Tensor& from, const cache::WindowLayer& layer,
                                 const cache::Tensor& tensor, const RingRows& ring) {
  const cache::Window& window = layer.window;
  const cache::HeadShape shape = layer.attention.shape;
  const std::int64_t n_tokens = cache::window_tokens(window, ring.offset);
  const Dtype dtype = cache::dense_dtype(tensor);
  if (!same_dtype(from, dtype)) return differs(describe(from) + ": not carried over");
  const std::size_t row_bytes = to_size(shape.head_dim) * dtype_size(dtype);
  const AlignedBytes array = cache::gather_window(layer, tensor, ring.offset);
  const ByteView old(from.data), own(array);
  for (std::int64_t i = 0; i < shape.n_kv_heads * n_tokens; ++i) {
    const std::int64_t head = i / n_tokens;
    const std::int64_t token = i % n_tokens;
    const std::int64_t position = token < window.keep ? token : ring.offset - n_tokens + token;
    const std::int64_t row = head * ring.n_rows + ring.row_of(position);
    if (!std::ranges::equal(own.subspan(to_size(i) * row_bytes, row_bytes),
                            old.subspan(to_size(row) * row_bytes, row_bytes))) {
      return differs(
          fmt::format("head {} token {}: not the value of the old file", head, position));
    }
  }
  return {};
}

Result<void> check_ring(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens) {
  const auto* window = std::get_if<cache::WindowLayer>(&layer);
  if (window == nullptr) return differs("no rotating layer");
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 4) return differs("meta_state: no ring");
  const NamedTensors state(entry.state);
  TQC_TRY_ASSIGN(const V1Tensor* keys, state.named("keys"));
  TQC_TRY_ASSIGN(const V1Tensor* values, state.named("values"));
  TQC_TRY_ASSIGN(const Grid grid, grid_of(*keys));
  const cache::Window expected{numbers[1], numbers[0]};
  const cache::HeadShape shape{grid.n_kv_heads, grid.width};
  if (window->window != expected || window->attention.shape != shape || n_tokens != numbers[2]) {
    return differs("another window");
  }
  const RingRows ring{numbers[0], grid.n_tokens, numbers[2], numbers[3]};
  TQC_TRY(check_window_tensor(*keys, *window, window->attention.k, ring));
  return check_window_tensor(*values, *window, window->attention.v, ring);
}

Result<void> check_layer(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens,
                         CodecPool& codecs, unsigned n_threads) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind == V1Class::kArrays) return check_arrays(entry, layer);
  if (kind == V1Class::kRotating) return check_ring(entry, layer, n_tokens);
  return check_attention(entry, layer, n_tokens, codecs, n_threads);
}

}  // namespace

Result<void> check_migrated(const V1File& file, const cache::Cache& cache, unsigned n_threads) {
  TQC_TRY_ASSIGN(const V1Metadata facts, read_metadata(file.metadata));
  TQC_TRY(check_identity_kept(facts.identity, cache.identity));
  TQC_TRY(check_tokens(facts.tokens, cache));
  if (cache.layers.size() != file.entries.size()) {
    return differs(
        fmt::format("{} layers where {} belong", cache.layers.size(), file.entries.size()));
  }
  CodecPool codecs;
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    auto done = check_layer(file.entries[i], cache.layers[i], cache.n_tokens(), codecs, n_threads);
    if (!done) return in_context("layer " + std::to_string(i), std::move(done).error());
  }
  return {};
}

}  // namespace tqcache::migrations
