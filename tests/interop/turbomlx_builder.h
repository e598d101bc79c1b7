#pragma once
// tests/interop/turbomlx_builder.h: prompt caches of TurboMLX, version 3, of any size: random codes
// and lengths, as no quantizer need have chosen them.

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/bytes.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/description.h"

namespace tqcache::test {

struct BuiltGroups {
  int bits = 4;
  std::int64_t size = 32;
  Dtype dtype = Dtype::kF16;
};

struct BuiltMixed {
  std::int64_t loud = 16;
  int loud_bits = 4, bits = 2;
};

struct BuiltTurbo {
  cache::HeadShape shape = {2, 64};
  int bits = 4;  // in all
  bool is_prod = false;
  bool is_wht = false;
  std::uint64_t seed = 0;
  std::optional<BuiltMixed> mixed = {};
  std::optional<BuiltGroups> values = {};  // otherwise dense, f16
  std::optional<float> length = {};        // of every key; otherwise random, from 1 to 9
};

class TurboMlxBuilder {
 public:
  explicit TurboMlxBuilder(std::int64_t n_tokens, std::uint64_t seed = 1)
      : n_tokens_(n_tokens), random_(seed) {}

  TurboMlxBuilder& turbo(const BuiltTurbo& layer) {
    begin_entry();
    const std::int64_t n_loud = layer.mixed ? layer.mixed->loud : 0;
    Json state = Json::array();
    const int bits = layer.mixed ? layer.mixed->bits : layer.bits;
    add_quantizer(layer, "reg", layer.shape.head_dim - n_loud, bits, state);
    if (layer.mixed) {
      add_quantizer(layer, "out", n_loud, layer.mixed->loud_bits, state);
      state.push_back(add_mask(layer));
    } else {
      for (int i = 0; i < 5; ++i) state.push_back(nothing());
    }
    state.push_back(layer.values ? add_groups(layer.shape, *layer.values, "values")
                                 : add_dense(layer.shape, "values"));
    push_entry("turbomlx.mlx_runtime.cache.TurboQuantKVCache", "turbomlx.cache.turboquant_kv.v1",
               tuple(std::move(state)), tuple(Json::array({meta_of(layer).dump()})));
    return *this;
  }

  // QuantizedKVCache.
  TurboMlxBuilder& quantized(cache::HeadShape shape, BuiltGroups groups) {
    begin_entry();
    Json keys = add_groups(shape, groups, "keys");
    Json values = add_groups(shape, groups, "values");
    push_entry("mlx_lm.models.cache.QuantizedKVCache", "", tuple(Json::array({keys, values})),
               tuple(Json::array({std::to_string(n_tokens_), std::to_string(groups.size),
                                  std::to_string(groups.bits)})));
    return *this;
  }

  // The bytes of an array: "0.reg_idx", "1.values.scales".
  const Bytes& array(std::string_view name) const {
    for (const Array& each : arrays_) {
      if (each.name == name) return each.bytes;
    }
    throw std::runtime_error("no array " + std::string(name));
  }
  Bytes& array(std::string_view name) {
    return const_cast<Bytes&>(std::as_const(*this).array(name));
  }

  Bytes file() const {
    const std::string header = Json{{"schema_version", 3}, {"entries", entries_}}.dump();
    Json index = Json::object();
    std::uint64_t at = 0;
    for (const Array& each : arrays_) {
      index[each.name] = {{"dtype", each.type},
                          {"shape", each.shape},
                          {"data_offsets", {at, at + each.bytes.size()}}};
      at += each.bytes.size();
    }
    std::string text = index.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    Bytes file;
    append(file, "TQS3");
    append(file, std::uint64_t{header.size()});
    append(file, header);
    append(file, std::uint64_t{text.size()});
    append(file, text);
    for (const Array& each : arrays_) file.insert(file.end(), each.bytes.begin(), each.bytes.end());
    return file;
  }

 private:
  using Json = nlohmann::ordered_json;

  struct Array {
    std::string name;
    const char* type;
    std::vector<std::uint64_t> shape;
    Bytes bytes;
  };

  static void append(Bytes& file, std::string_view text) {
    const ByteView bytes = as_bytes(text);
    file.insert(file.end(), bytes.begin(), bytes.end());
  }
  static void append(Bytes& file, std::uint64_t number) {
    std::byte bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    file.insert(file.end(), bytes, bytes + sizeof number);
  }

  static Json tuple(Json items) { return {{"__tq_tuple__", true}, {"items", std::move(items)}}; }

  void begin_entry() { prefix_ = std::to_string(entries_.size()) + "."; }

  void push_entry(std::string_view path, std::string_view type_id, Json state, Json meta) {
    Json extra = Json::object();
    entries_.push_back({{"cache_type_id", type_id.empty() ? path : type_id},
                        {"class_path", path},
                        {"state", std::move(state)},
                        {"meta_state", std::move(meta)},
                        {"extra_state", std::move(extra)}});
  }

  Json add(const std::string& name, const char* type, std::vector<std::int64_t> shape,
           Bytes bytes) {
    arrays_.push_back({prefix_ + name, type, {shape.begin(), shape.end()}, std::move(bytes)});
    return {{"__tq_array__", true},
            {"tensor_id", arrays_.back().name},
            {"dtype", "any"},
            {"shape", std::move(shape)}};
  }

  Json nothing() { return add("none" + std::to_string(arrays_.size()), "U8", {0}, {}); }

  Bytes random_bytes(std::int64_t size) {
    Bytes bytes(static_cast<std::size_t>(size));
    for (std::byte& each : bytes) each = static_cast<std::byte>(random_.below(256));
    return bytes;
  }
  template <class Draw>
  Bytes floats(Dtype dtype, std::int64_t count, const Draw& draw) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = draw();
    Bytes bytes(values.size() * dtype_size(dtype));
    store_f32(dtype, values, bytes.data());
    return bytes;
  }

  static const char* type_of(Dtype dtype) {
    return dtype == Dtype::kF32 ? "F32" : dtype == Dtype::kF16 ? "F16" : "BF16";
  }

  void add_quantizer(const BuiltTurbo& layer, const std::string& name, std::int64_t dim, int bits,
                     Json& state) {
    const std::int64_t heads = layer.shape.n_kv_heads;
    const auto rows = [&](const char* what, int code_bits) {
      const auto width =
          static_cast<std::int64_t>(codec::packed_size(static_cast<std::size_t>(dim), code_bits));
      return add(name + what, "U8", {1, heads, n_tokens_, width},
                 random_bytes(heads * n_tokens_ * width));
    };
    const auto length = [&] { return layer.length.value_or(5 + 4 * random_.uniform()); };
    state.push_back(rows("_idx", layer.is_prod ? bits - 1 : bits));
    state.push_back(add(name + "_norms", "F32", {1, heads, n_tokens_, 1},
                        floats(Dtype::kF32, heads * n_tokens_, length)));
    if (!layer.is_prod) {
      state.push_back(nothing());
      state.push_back(nothing());
      return;
    }
    state.push_back(rows("_signs", 1));
    state.push_back(add(name + "_residuals", "F32", {1, heads, n_tokens_},
                        floats(Dtype::kF32, heads * n_tokens_,
                               [&] { return 0.25f + 0.125f * random_.uniform(); })));
  }

  // Every fourth channel is loud, and then those from the first on.
  Json add_mask(const BuiltTurbo& layer) {
    Bytes mask(static_cast<std::size_t>(layer.shape.head_dim));
    std::int64_t left = layer.mixed->loud;
    for (const std::size_t step : {4u, 1u}) {
      for (std::size_t i = 0; i < mask.size() && left > 0; i += step) {
        if (mask[i] != std::byte{0}) continue;
        mask[i] = std::byte{1};
        --left;
      }
    }
    return add("outlier_mask", "BOOL", {layer.shape.head_dim}, std::move(mask));
  }

  Json add_dense(cache::HeadShape shape, const std::string& name) {
    return add(name, "F16", {1, shape.n_kv_heads, n_tokens_, shape.head_dim},
               floats(Dtype::kF16, shape.n_kv_heads * n_tokens_ * shape.head_dim,
                      [&] { return random_.bell(); }));
  }

  Json add_groups(cache::HeadShape shape, const BuiltGroups& groups, const std::string& name) {
    const std::int64_t rows = shape.n_kv_heads * n_tokens_;
    const std::int64_t words = shape.head_dim * groups.bits / 32;
    const std::int64_t n_groups = shape.head_dim / groups.size;
    const std::vector<std::int64_t> grid = {1, shape.n_kv_heads, n_tokens_, n_groups};
    const char* const type = type_of(groups.dtype);
    // Steps of either sign, as mlx has them; a bias on the far side of the values.
    const auto scale = [&] {
      return 0.05f * (random_.uniform() + (random_.below(2) ? 2.0f : -2.0f));
    };
    Json codes = add(name + ".codes", "U32", {1, shape.n_kv_heads, n_tokens_, words},
                     random_bytes(rows * words * 4));
    Json scales = add(name + ".scales", type, grid, floats(groups.dtype, rows * n_groups, scale));
    Json biases = add(name + ".biases", type, grid,
                      floats(groups.dtype, rows * n_groups, [&] { return random_.bell(); }));
    return tuple(Json::array({codes, scales, biases}));
  }

  Json meta_of(const BuiltTurbo& layer) const {
    Json meta = {{"schema_version", 1},
                 {"quantizer_version", "turbomlx-v0.1"},
                 {"mode", layer.is_prod ? "prod" : "mse"},
                 {"bits_total", layer.bits},
                 {"bits_mse", layer.bits - (layer.is_prod ? 1 : 0)},
                 {"value_bits", layer.values ? layer.values->bits : 4},
                 {"head_dim", layer.shape.head_dim},
                 {"num_kv_heads", layer.shape.n_kv_heads},
                 {"rotation_kind", layer.is_wht ? "wht" : "qr"},
                 {"rotation_seed", layer.seed},
                 {"qjl_seed", layer.seed + 1},
                 {"codebook_version", "v1-lloyd-max-beta"},
                 {"codebook_id", nullptr},
                 {"packing_layout", "little_endian_compact"},
                 {"values_mode", layer.values ? "affine" : "dense"},
                 {"value_group_size", layer.values ? Json(layer.values->size) : Json(nullptr)},
                 {"mixed_precision_profile", "disabled"},
                 {"mixed_precision", nullptr},
                 {"scorer_mode", "oracle_preview"},
                 {"offset", n_tokens_}};
    if (!layer.mixed) return meta;
    meta["mixed_precision"] = {{"outlier_channels", layer.mixed->loud},
                               {"outlier_high_bits", layer.mixed->loud_bits},
                               {"regular_bits", layer.mixed->bits},
                               {"outlier_selection_policy", "calibration_variance"}};
    meta["mixed_precision_profile"] =
        "calibration_variance:outliers=" + std::to_string(layer.mixed->loud) +
        ",hi=" + std::to_string(layer.mixed->loud_bits) +
        ",lo=" + std::to_string(layer.mixed->bits);
    return meta;
  }

  std::int64_t n_tokens_;
  Random random_;
  std::string prefix_;
  std::vector<Array> arrays_;
  Json entries_ = Json::array();
};

}  // namespace tqcache::test
