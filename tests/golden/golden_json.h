#pragma once
// golden/golden_json.h: what a golden file says, as the readable twin beside it.
//
// Values are told by the SHA-256 of all of them, decoded to f32, and a few in plain sight. JSON has
// them as doubles, which hold every f32.

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/cache/window.h"
#include "tqcache/format/type_names.h"
#include "tqcache/hash.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

using Json = nlohmann::ordered_json;

// All values of a tensor: [n_kv_heads, n_tokens, head_dim].
inline std::vector<float> all_values(const cache::Tensor& tensor, cache::HeadShape shape,
                                     std::int64_t n_tokens) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> values(static_cast<std::size_t>(shape.n_kv_heads * n_tokens) * head_dim);
  std::size_t at = 0;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const auto n = static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block)) * head_dim;
      cache::read_block(tensor, shape, n_tokens, block, head, std::span(values).subspan(at, n));
      at += n;
    }
  }
  return values;
}

namespace golden_json_detail {

inline std::string_view dtype_word(Dtype dtype) {
  constexpr std::string_view kWords[] = {"f32", "f16", "bf16"};
  return kWords[static_cast<std::size_t>(dtype)];
}

template <class T>
std::string digest(const std::vector<T>& values) {
  return to_hex(sha256(object_bytes(values)));
}

inline Json identity(const cache::Identity& identity) {
  constexpr std::string_view kStyles[] = {"none", "half-split", "interleaved"};
  Json json;
  json["architecture"] = identity.architecture;
  json["model_name"] = identity.model_name;
  json["rope"] = {{"style", kStyles[static_cast<std::size_t>(identity.rope.style)]},
                  {"n_dims", identity.rope.n_dims},
                  {"base", identity.rope.base}};
  if (!identity.rope.factors.empty()) json["rope"]["factors"] = identity.rope.factors;
  json["weights_fingerprint"] = to_hex(identity.weights_fingerprint);
  json["tokenizer_fingerprint"] = to_hex(identity.tokenizer_fingerprint);
  if (identity.adapter_fingerprint) {
    json["adapter_fingerprint"] = to_hex(*identity.adapter_fingerprint);
  }
  json["source_format"] = identity.source_format;
  return json;
}

inline Json part(const codec::PartSpec& part) {
  Json json;
  json["first"] = part.first;
  json["size"] = part.head_dim;
  json["bits"] = part.bits;
  json["rotation"] = format::name_of(format::kTransformNames, part.rotation);
  json["rounds"] = part.rounds;
  json["seed"] = part.seed;
  json["scale"] = format::name_of(format::kScaleNames, part.scale);
  json["of_residual"] = part.of_residual;
  json["has_bias"] = part.has_bias;
  json["centroids_sha256"] = digest(part.centroids);
  if (part.rotation == codec::TransformKind::kMatrix) {
    const std::span<const float> matrix = part.matrix.values();
    json["matrix_sha256"] = digest(std::vector<float>(matrix.begin(), matrix.end()));
  }
  return json;
}

inline void add_codec(const cache::QuantSpec& info, Json& json) {
  for (const codec::PartSpec& each : info.parts) json["parts"].push_back(part(each));
  json["centring"] = format::centering_name(info);
  if (!info.factors.empty()) json["factors"] = info.factors;
  if (!info.mean.empty()) json["mean_sha256"] = digest(info.mean);
  if (!info.outliers.empty()) json["outliers"] = info.outliers;
  if (!info.transforms.empty()) json["maps_sha256"] = digest(info.transforms);
  json["n_sinks"] = info.n_sinks;
}

// The first and the last component of the tokens at the edges of token blocks.
inline Json some_values(const std::vector<float>& values, cache::HeadShape shape,
                        std::int64_t n_tokens) {
  Json rows = Json::array();
  for (const std::int64_t token :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{255}, std::int64_t{256}, n_tokens - 1}) {
    if (token < 0 || token >= n_tokens) continue;
    const std::int64_t head = token % shape.n_kv_heads;
    const auto first = static_cast<std::size_t>((head * n_tokens + token) * shape.head_dim);
    rows.push_back({{"head", head},
                    {"token", token},
                    {"first", values[first]},
                    {"last", values[first + static_cast<std::size_t>(shape.head_dim) - 1]}});
  }
  return rows;
}

inline Json tensor(const cache::TensorDesc& info, const cache::Tensor& tensor,
                   cache::HeadShape shape, std::int64_t n_tokens) {
  const std::vector<float> values = all_values(tensor, shape, n_tokens);
  Json json;
  json["cache_type_id"] = format::type_name(info);
  json["dtype"] = dtype_word(info.dtype);
  if (info.quant) add_codec(*info.quant, json);
  json["packed_blocks"] = cache::packed_block_count(tensor);
  json["values_sha256"] = digest(values);
  json["values"] = some_values(values, shape, n_tokens);
  return json;
}

// Values of the tokens of the window, [n_kv_heads, tokens, head_dim] of the tensor's dtype.
inline Json window_tensor(const cache::TensorDesc& info, const cache::WindowLayer& layer,
                          const cache::Tensor& rows, std::int64_t n_tokens) {
  Json json;
  json["cache_type_id"] = format::type_name(info);
  json["dtype"] = dtype_word(info.dtype);
  if (info.quant) add_codec(*info.quant, json);
  json["packed_blocks"] = cache::packed_block_count(rows);
  json["bytes_sha256"] = to_hex(sha256(cache::gather_window(layer, rows, n_tokens)));
  return json;
}

inline void add_heads(const cache::AttentionDesc& layer, Json& json) {
  json["n_kv_heads"] = layer.shape.n_kv_heads;
  json["head_dim"] = layer.shape.head_dim;
  if (layer.value_dim != 0) json["value_dim"] = layer.value_dim;
}

inline void add_array(const std::string& name, Dtype dtype, const std::vector<std::uint64_t>& shape,
                      ByteView data, Json& json) {
  json["arrays"].push_back({{"name", name},
                            {"dtype", dtype_word(dtype)},
                            {"shape", shape},
                            {"bytes_sha256", to_hex(sha256(data))}});
}

inline void add_window(const cache::WindowDesc& info, const cache::WindowLayer& layer,
                       std::int64_t n_tokens, Json& json) {
  add_heads(info.attention, json);
  json["window"] = info.window.size;
  const cache::AttentionLayer& attention = layer.attention;
  if (cache::is_quantized(attention)) {
    json["k"] = window_tensor(info.attention.k, layer, attention.k, n_tokens);
    json["v"] = window_tensor(info.attention.v, layer, attention.v, n_tokens);
    return;
  }
  json["keep"] = info.window.keep;
  const auto shape = [&](cache::HeadShape heads) {
    return cache::window_array_shape(heads, info.window, n_tokens);
  };
  add_array("keys", info.attention.k.dtype, shape(info.attention.shape),
            cache::gather_window(layer, attention.k, n_tokens), json);
  add_array("values", info.attention.v.dtype, shape(info.attention.value_shape()),
            cache::gather_window(layer, attention.v, n_tokens), json);
}

inline Json layer(const cache::LayerDesc& info, const cache::Layer& layer, std::int64_t n_tokens) {
  Json json;
  json["cache_type_id"] = format::type_name(info);
  std::visit(Overload{[&](const cache::AttentionLayer& attention) {
                        const auto& desc = std::get<cache::AttentionDesc>(info);
                        add_heads(desc, json);
                        json["k"] = tensor(desc.k, attention.k, desc.shape, n_tokens);
                        json["v"] = tensor(desc.v, attention.v, desc.value_shape(), n_tokens);
                      },
                      [&](const cache::WindowLayer& window) {
                        add_window(std::get<cache::WindowDesc>(info), window, n_tokens, json);
                      },
                      [&](const cache::StateLayer& state) {
                        for (const cache::NamedArray& array : state.arrays) {
                          add_array(array.name, array.dtype, array.shape, array.data, json);
                        }
                      }},
             layer);
  return json;
}

inline void add_tokens(const cache::Cache& cache, Json& json) {
  json["n_tokens"] = cache.n_tokens();
  if (!cache.hidden_tokens) {
    json["tokens_sha256"] = digest(cache.tokens);
    return;
  }
  json["token_block_hashes"] = Json::array();
  for (const Sha256& hash : *cache.hidden_tokens) {
    json["token_block_hashes"].push_back(to_hex(hash));
  }
}

inline void add_gaps(const std::vector<format::GapInfo>& gaps, Json& json) {
  for (const format::GapInfo& gap : gaps) {
    json["gaps"].push_back({{"offset", gap.file_offset}, {"bytes", gap.bytes}});
  }
}

}  // namespace golden_json_detail

// Reads the file: throws when it does not load.
inline Json golden_json(const Bytes& file, const format::ReadOptions& read = {}) {
  const auto source = memory_source(file);
  const format::CacheFileInfo info = must(format::read_cache_info(*source));
  const cache::Cache cache = must(format::read_cache(*source, read));
  Json json;
  json["file_bytes"] = file.size();
  json["file_sha256"] = to_hex(sha256(file));
  json["version"] = info.version;
  json["generation"] = info.generation;
  json["writer"] = info.writer;
  json["content_name"] = to_hex(info.content_name);
  json["identity"] = golden_json_detail::identity(info.identity);
  golden_json_detail::add_tokens(cache, json);
  json["stored_sections"] = std::ranges::count(info.sections, format::Compression::kNone,
                                               &format::SectionInfo::compression);
  json["zstd_sections"] = std::ranges::count(info.sections, format::Compression::kZstd,
                                             &format::SectionInfo::compression);
  const auto n_planes = std::ranges::count(info.sections, format::Compression::kPlanes,
                                           &format::SectionInfo::compression);
  if (n_planes > 0) json["planes_sections"] = n_planes;
  const auto n_symbols = std::ranges::count(info.sections, format::Compression::kSymbols,
                                            &format::SectionInfo::compression);
  if (n_symbols > 0) json["symbols_sections"] = n_symbols;
  golden_json_detail::add_gaps(info.gaps, json);
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    json["layers"].push_back(
        golden_json_detail::layer(info.layers[i], cache.layers[i], info.n_tokens()));
  }
  return json;
}

}  // namespace tqcache::test
