#include "support/v1_builder.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::test {
namespace {

using migrations::V1Entry;
using migrations::V1Tensor;
using Json = nlohmann::ordered_json;

std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

std::size_t count_of(const std::vector<std::uint64_t>& shape) {
  std::size_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  return count;
}

AlignedBytes packed(V1Dtype dtype, const std::vector<float>& values) {
  const Dtype own = dtype == V1Dtype::kF32   ? Dtype::kF32
                    : dtype == V1Dtype::kF16 ? Dtype::kF16
                                             : Dtype::kBF16;
  AlignedBytes bytes(values.size() * dtype_size(own));
  store_f32(own, values, bytes.data());
  return bytes;
}

Json text_numbers(std::initializer_list<std::int64_t> numbers) {
  Json json = Json::array();
  for (const std::int64_t number : numbers) json.push_back(std::to_string(number));
  return json;
}

Json mixed_json(const V1Mixed& mixed) {
  return {{"calibration_prefix_tokens", 256},
          {"outlier_channels", mixed.outlier_channels},
          {"outlier_high_bits", mixed.outlier_high_bits},
          {"outlier_selection_policy", "calibration_variance"},
          {"regular_bits", mixed.regular_bits}};
}

std::string profile(const V1Mixed& mixed) {
  return "calibration_variance:outliers=" + std::to_string(mixed.outlier_channels) +
         ",hi=" + std::to_string(mixed.outlier_high_bits) +
         ",lo=" + std::to_string(mixed.regular_bits);
}

}  // namespace

std::string v1_turbo_meta(cache::HeadShape shape, std::int64_t n_tokens, const V1Turbo& options) {
  const int bits_mse = options.bits - (options.prod ? 1 : 0);
  const V1Affine affine = options.affine_values.value_or(V1Affine{});
  Json json;
  json["bits_mse"] = bits_mse;
  json["bits_total"] = options.bits;
  json["codebook_id"] =
      "v1-lloyd-max-beta-d" + std::to_string(shape.head_dim) + "-b" + std::to_string(bits_mse);
  json["codebook_version"] = "v1-lloyd-max-beta";
  json["head_dim"] = shape.head_dim;
  json["mixed_precision"] = options.mixed ? mixed_json(*options.mixed) : Json();
  json["mixed_precision_profile"] = options.mixed ? profile(*options.mixed) : "disabled";
  json["mode"] = options.prod ? "prod" : "mse";
  json["num_kv_heads"] = shape.n_kv_heads;
  json["offset"] = n_tokens;
  json["packing_layout"] = "little_endian_compact";
  json["qjl_seed"] = options.qjl_seed;
  json["quantized_kv_start"] = 0;
  json["quantizer_version"] = "turbomlx-v0.1";
  json["rotation_kind"] = options.wht ? "wht" : "qr";
  json["rotation_seed"] = options.rotation_seed;
  json["schema_version"] = 1;
  json["scorer_mode"] = "oracle_preview";
  json["value_bits"] = affine.bits;
  json["value_group_size"] = affine.group_size;
  json["values_mode"] = options.affine_values ? "affine" : "dense";
  return json.dump();
}

V1Tensor& v1_tensor(V1Entry& entry, std::string_view name) {
  for (auto* tensors : {&entry.state, &entry.extra_state}) {
    const auto found = std::ranges::find(*tensors, name, &V1Tensor::name);
    if (found != tensors->end()) return *found;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

V1Builder::Shape V1Builder::grid(cache::HeadShape shape, std::int64_t width) const {
  return {1, to_u64(shape.n_kv_heads), to_u64(n_tokens_), to_u64(width)};
}

// Multiples of 1/64 between -4 and 4; of 1/16 where bf16 has no more digits.
V1Tensor V1Builder::numbers(std::string name, V1Dtype dtype, Shape shape) {
  std::vector<float> values(count_of(shape));
  for (float& value : values) {
    const bool coarse = dtype == V1Dtype::kBf16;
    const auto steps = static_cast<float>(random_.below(coarse ? 128 : 512));
    value = coarse ? (steps - 64.0f) / 16.0f : (steps - 256.0f) / 64.0f;
  }
  return {std::move(name), dtype, std::move(shape), packed(dtype, values)};
}

// Multiples of 1/64 from 1/64 to 8, or of 1/3.
V1Tensor V1Builder::lengths(std::string name, Shape shape, const V1Turbo& options) {
  std::vector<float> values(count_of(shape));
  for (float& value : values) {
    value = static_cast<float>(1 + random_.below(512)) / (options.odd_norms ? 3.0f : 64.0f);
  }
  return {std::move(name), options.norms, std::move(shape), packed(options.norms, values)};
}

V1Tensor V1Builder::bytes(std::string name, V1Dtype dtype, Shape shape) {
  AlignedBytes data(count_of(shape) * (dtype == V1Dtype::kU32 ? 4 : 1));
  for (std::byte& byte : data) byte = std::byte(random_.below(256));
  return {std::move(name), dtype, std::move(shape), std::move(data)};
}

V1Tensor V1Builder::mask(std::int64_t head_dim, std::int64_t n_set) {
  AlignedBytes data(static_cast<std::size_t>(head_dim));
  for (std::int64_t left = n_set; left > 0;) {
    std::byte& byte = data[random_.below(data.size())];
    if (byte == std::byte{0}) --left;
    byte = std::byte{1};
  }
  return {"outlier_mask", V1Dtype::kBool, {to_u64(head_dim)}, std::move(data)};
}

V1Builder& V1Builder::dense(cache::HeadShape shape, V1Dtype dtype, std::string_view class_path) {
  V1Entry entry{.class_path = std::string(class_path)};
  entry.state.push_back(numbers("keys", dtype, grid(shape, shape.head_dim)));
  entry.state.push_back(numbers("values", dtype, grid(shape, shape.head_dim)));
  file_.entries.push_back(std::move(entry));
  return *this;
}

void V1Builder::add_affine(const std::string& name, cache::HeadShape shape, const V1Affine& affine,
                           std::vector<V1Tensor>& state) {
  const Shape groups = grid(shape, shape.head_dim / affine.group_size);
  state.push_back(
      bytes(name + ".packed", V1Dtype::kU32, grid(shape, shape.head_dim * affine.bits / 32)));
  state.push_back(numbers(name + ".scales", affine.dtype, groups));
  state.push_back(numbers(name + ".biases", affine.dtype, groups));
}

V1Builder& V1Builder::quantized(cache::HeadShape shape, const V1Affine& affine) {
  V1Entry entry{.class_path = "mlx_lm.models.cache.QuantizedKVCache"};
  add_affine("keys", shape, affine, entry.state);
  add_affine("values", shape, affine, entry.state);
  entry.meta_state = text_numbers({n_tokens_, affine.group_size, affine.bits}).dump();
  file_.entries.push_back(std::move(entry));
  return *this;
}

V1Builder& V1Builder::rotating(cache::HeadShape shape, const V1Ring& ring, V1Dtype dtype) {
  V1Entry entry{.class_path = "mlx_lm.models.cache.RotatingKVCache"};
  const Shape rows = {1, to_u64(shape.n_kv_heads), to_u64(ring.n_rows), to_u64(shape.head_dim)};
  entry.state.push_back(numbers("keys", dtype, rows));
  entry.state.push_back(numbers("values", dtype, rows));
  entry.meta_state = text_numbers({ring.keep, ring.max_size, n_tokens_, ring.next}).dump();
  file_.entries.push_back(std::move(entry));
  return *this;
}

V1Builder& V1Builder::arrays(std::string_view class_path) {
  V1Entry entry{.class_path = std::string(class_path)};
  entry.state.push_back(numbers("0", V1Dtype::kBf16, {1, 3, 20}));
  entry.state.push_back(numbers("1", V1Dtype::kF32, {1, 2, 5, 7}));
  entry.state.push_back({"2", V1Dtype::kF32, {0}, {}});
  entry.state.push_back(numbers("3", V1Dtype::kF16, {1, 11}));
  file_.entries.push_back(std::move(entry));
  return *this;
}

void V1Builder::add_quantizer(const std::string& prefix, cache::HeadShape shape, int bits_total,
                              const V1Turbo& options, std::vector<V1Tensor>& state) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto row = [&](int bits) {
    return grid(shape, static_cast<std::int64_t>(codec::packed_size(dim, bits)));
  };
  state.push_back(bytes(prefix + "_idx", V1Dtype::kU8, row(bits_total - (options.prod ? 1 : 0))));
  state.push_back(lengths(prefix + "_norms", grid(shape, 1), options));
  if (!options.prod) return;
  state.push_back(bytes(prefix + "_signs", V1Dtype::kU8, row(1)));
  Shape without_width = grid(shape, 1);
  without_width.pop_back();
  state.push_back(lengths(prefix + "_residuals", without_width, options));
}

void V1Builder::add_turbo_state(cache::HeadShape shape, const V1Turbo& options,
                                std::vector<V1Tensor>& state) {
  if (options.mixed) {
    const std::int64_t loud = options.mixed->outlier_channels;
    add_quantizer("reg", {shape.n_kv_heads, shape.head_dim - loud}, options.mixed->regular_bits,
                  options, state);
    add_quantizer("out", {shape.n_kv_heads, loud}, options.mixed->outlier_high_bits, options,
                  state);
    state.push_back(mask(shape.head_dim, loud));
  } else {
    add_quantizer("reg", shape, options.bits, options, state);
    state.push_back({"out_idx", V1Dtype::kU8, {0}, {}});  // one way to say "none"
  }
  if (options.affine_values) {
    add_affine("values_main", shape, *options.affine_values, state);
  } else {
    state.push_back(numbers("values_main", options.values, grid(shape, shape.head_dim)));
  }
}

V1Builder& V1Builder::turbo(cache::HeadShape shape, const V1Turbo& options) {
  V1Entry entry{.class_path = "turbomlx.mlx_runtime.cache.TurboQuantKVCache"};
  entry.meta_state = v1_turbo_meta(shape, n_tokens_, options);
  if (options.mixed) {
    const Json extra = {{"calibration_tokens_seen", n_tokens_},
                        {"outlier_mask_frozen", !options.calibrating}};
    entry.extra_meta = extra.dump();
  }
  if (options.calibrating) {
    entry.state.push_back({"outlier_mask", V1Dtype::kBool, {0}, {}});
    for (const char* name : {"calibration_keys", "calibration_values"}) {
      entry.extra_state.push_back(numbers(name, options.values, grid(shape, shape.head_dim)));
    }
  } else {
    add_turbo_state(shape, options, entry.state);
  }
  file_.entries.push_back(std::move(entry));
  return *this;
}

V1Builder& V1Builder::fact(std::string key, std::string value) {
  file_.metadata.emplace_back(std::move(key), std::move(value));
  return *this;
}

V1Builder& V1Builder::facts() {
  Json tokens = Json::array();
  for (std::int64_t i = 0; i < n_tokens_; ++i) tokens.push_back(random_.below(150000));
  return fact("model", "a model of the time")
      .fact("architecture", "qwen3")
      .fact("rope", R"({"style": "half_split", "n_dims": 32, "base": 10000.0})")
      .fact("weights_fingerprint", std::string(64, '1'))
      .fact("tokenizer_fingerprint", std::string(32, 'a') + std::string(32, 'B'))
      .fact("tokens", tokens.dump())
      .fact("mood", "unknown facts are left out");
}

}  // namespace tqcache::test
