#pragma once
// golden/golden_v1_json.h: what a golden file of version 1 says, and what becomes of it, as the
// readable twin beside it.
//
// Values are told by the SHA-256 of all of them, decoded to f32, and a few in plain sight.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "support/cache_builder.h"
#include "tqcache/cache/window.h"
#include "tqcache/format/type_names.h"
#include "tqcache/hash.h"

namespace tqcache::test {
namespace golden_v1_detail {

using Json = nlohmann::ordered_json;

// --- the file

inline Json tensors(const std::vector<migrations::V1Tensor>& in) {
  constexpr std::string_view kWords[] = {"f32", "f16", "bf16", "u8", "u32", "bool"};
  Json json = Json::array();
  for (const migrations::V1Tensor& tensor : in) {
    json.push_back({{"name", tensor.name},
                    {"dtype", kWords[static_cast<std::size_t>(tensor.dtype)]},
                    {"shape", tensor.shape},
                    {"bytes_sha256", to_hex(sha256(tensor.data))}});
  }
  return json;
}

inline Json entry(const migrations::V1Entry& in) {
  Json json;
  json["class_path"] = in.class_path;
  json["meta_state"] = in.meta_state;
  json["state"] = tensors(in.state);
  if (!in.extra_state.empty()) json["extra_state"] = tensors(in.extra_state);
  if (!in.extra_meta.empty()) json["extra_meta"] = in.extra_meta;
  return json;
}

// --- the migrated cache

inline Json identity(const cache::Identity& in) {
  constexpr std::string_view kStyles[] = {"none", "half-split", "interleaved"};
  return {{"architecture", in.architecture},
          {"model_name", in.model_name},
          {"rope",
           {{"style", kStyles[static_cast<std::size_t>(in.rope.style)]},
            {"n_dims", in.rope.n_dims},
            {"base", in.rope.base}}},
          {"weights_fingerprint", to_hex(in.weights_fingerprint)},
          {"tokenizer_fingerprint", to_hex(in.tokenizer_fingerprint)},
          {"source_format", in.source_format}};
}

inline Json part(const codec::PartSpec& in) {
  return {{"first", in.first},
          {"size", in.head_dim},
          {"bits", in.bits},
          {"rotation", format::name_of(format::kTransformNames, in.rotation)},
          {"rounds", in.rounds},
          {"seed", in.seed},
          {"scale", format::name_of(format::kScaleNames, in.scale)},
          {"of_residual", in.of_residual},
          {"has_bias", in.has_bias},
          {"centroids_sha256", to_hex(sha256(object_bytes(in.centroids)))}};
}

// [n_kv_heads, n_tokens, head_dim]
inline std::vector<float> values(const cache::Tensor& tensor, cache::HeadShape shape,
                                 std::int64_t n_tokens) {
  std::vector<float> all;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      std::vector<float> rows(
          static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block) * shape.head_dim));
      cache::read_block(tensor, shape, n_tokens, block, head, rows);
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  return all;
}

inline Json tensor(const cache::Tensor& in, cache::HeadShape shape, std::int64_t n_tokens) {
  Json json;
  json["dtype"] = dtype_name(cache::dense_dtype(in));
  if (const auto* turbo = std::get_if<cache::TurboTensor>(&in)) {
    json["mode"] = codec::mode_word(turbo->codec.mode());
    for (const codec::PartSpec& each : turbo->codec.parts()) json["parts"].push_back(part(each));
    const cache::QuantSpec quant = *turbo->codec.describe().quant;
    if (!quant.outliers.empty()) json["outliers"] = quant.outliers;
    Json packed = Json::array();
    for (const cache::TurboBlock& block : turbo->packed) {
      packed.push_back(to_hex(sha256(block.bytes.view())));
    }
    json["packed_sha256"] = packed;
  }
  const std::vector<float> all = values(in, shape, n_tokens);
  json["values_sha256"] = to_hex(sha256(object_bytes(all)));
  if (!all.empty()) {
    json["first_value"] = all.front();
    json["last_value"] = all.back();
  }
  return json;
}

inline Json layer(const cache::Layer& in, std::int64_t n_tokens) {
  Json json;
  if (const auto* attention = std::get_if<cache::AttentionLayer>(&in)) {
    json["kind"] = "attention";
    json["n_kv_heads"] = attention->shape.n_kv_heads;
    json["head_dim"] = attention->shape.head_dim;
    json["k"] = tensor(attention->k, attention->shape, n_tokens);
    json["v"] = tensor(attention->v, attention->shape, n_tokens);
    return json;
  }
  const auto add_array = [&](const std::string& name, Dtype dtype,
                             const std::vector<std::uint64_t>& shape, ByteView data) {
    json["arrays"].push_back({{"name", name},
                              {"dtype", dtype_name(dtype)},
                              {"shape", shape},
                              {"bytes_sha256", to_hex(sha256(data))}});
  };
  if (const auto* window = std::get_if<cache::WindowLayer>(&in)) {
    const cache::AttentionLayer& attention = window->attention;
    json["kind"] = "rotating";
    json["window"] = {{"n_kv_heads", attention.shape.n_kv_heads},
                      {"head_dim", attention.shape.head_dim},
                      {"size", window->window.size},
                      {"keep", window->window.keep}};
    const auto shape = cache::window_array_shape(attention.shape, window->window, n_tokens);
    add_array("keys", cache::dense_dtype(attention.k), shape,
              cache::gather_window(*window, attention.k, n_tokens));
    add_array("values", cache::dense_dtype(attention.v), shape,
              cache::gather_window(*window, attention.v, n_tokens));
    return json;
  }
  json["kind"] = "arrays";
  for (const cache::NamedArray& array : std::get<cache::StateLayer>(in).arrays) {
    add_array(array.name, array.dtype, array.shape, array.data);
  }
  return json;
}

inline Json migrated(const migrations::Migration& in) {
  const cache::Cache& cache = in.cache;
  Json json;
  json["identity"] = identity(cache.identity);
  json["n_tokens"] = cache.n_tokens();
  json["tokens_known"] = !cache.hidden_tokens.has_value();
  json["tokens_sha256"] = to_hex(sha256(object_bytes(cache.tokens)));
  json["notes"] = in.notes;
  json["layers"] = Json::array();
  for (const cache::Layer& each : cache.layers) {
    json["layers"].push_back(layer(each, cache.n_tokens()));
  }
  return json;
}

}  // namespace golden_v1_detail

// Throws when the file is not read or migrated.
inline nlohmann::ordered_json golden_v1_json(const Bytes& bytes) {
  const migrations::V1File file = must(migrations::read_v1(*memory_source(bytes)));
  nlohmann::ordered_json json;
  json["file_bytes"] = bytes.size();
  json["file_sha256"] = to_hex(sha256(bytes));
  json["metadata"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : file.metadata) json["metadata"][key] = value;
  for (const auto& entry : file.entries) json["entries"].push_back(golden_v1_detail::entry(entry));
  json["migrated"] = golden_v1_detail::migrated(must(migrations::v1_to_v2(file)));
  return json;
}

}  // namespace tqcache::test
