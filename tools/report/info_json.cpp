#include <fmt/format.h>

#include "report/info.h"
#include "tqcache/bytes.h"
#include "tqcache/format/type_names.h"
#include "tqcache/hash.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {
namespace {

Json identity_json(const cache::Identity& identity) {
  Json json;
  json["architecture"] = identity.architecture;
  json["model_name"] = identity.model_name;
  json["rope"] = {{"style", rope_word(identity.rope.style)},
                  {"n_dims", identity.rope.n_dims},
                  {"base", identity.rope.base}};
  if (!identity.rope.factors.empty()) json["rope"]["factors"] = identity.rope.factors;
  json["weights_fingerprint"] = to_hex(identity.weights_fingerprint);
  json["tokenizer_fingerprint"] = to_hex(identity.tokenizer_fingerprint);
  json["adapter_fingerprint"] =
      identity.adapter_fingerprint ? Json(to_hex(*identity.adapter_fingerprint)) : Json(nullptr);
  const auto& model = identity.model_fingerprint;
  json["fingerprint_version"] = model ? int{model->version} : 1;
  json["model_fingerprint"] = model ? Json(to_hex(model->digest)) : Json(nullptr);
  json["source_format"] = identity.source_format;
  if (identity.llama_streams > 1) json["llama_streams"] = identity.llama_streams;
  if (!identity.source_layout.empty()) json["source_layout"] = identity.source_layout;
  if (identity.standing == cache::Standing::kUnchecked) json["standing"] = "unchecked";
  if (identity.standing == cache::Standing::kShifted) json["standing"] = "shifted";
  return json;
}

Json part_json(const codec::PartSpec& part) {
  Json json;
  json["first"] = part.first;
  json["size"] = part.head_dim;
  json["bits"] = part.bits;
  json["rotation"] = name_of(format::kTransformNames, part.rotation);
  if (part.rotation == codec::TransformKind::kMatrix) {
    json["matrix_xxh3_128"] = to_hex(xxh3_128(std::as_bytes(part.matrix.values())));
  }
  json["rounds"] = part.rounds;
  json["seed"] = fmt::format("{:016x}", part.seed);
  json["scale"] = name_of(format::kScaleNames, part.scale);
  json["of_residual"] = part.of_residual;
  json["has_bias"] = part.has_bias;
  return json;
}

Json tensor_json(const cache::TensorDesc& tensor) {
  Json json;
  json["cache_type_id"] = format::type_name(tensor);
  json["dense_dtype"] = dtype_name(tensor.dtype);
  if (!tensor.quant) return json;
  const cache::QuantSpec& quant = *tensor.quant;
  json["bits"] = code_bits(quant);
  json["layout"] = format::kLayoutName;
  json["parts"] = Json::array();
  for (const codec::PartSpec& part : quant.parts) json["parts"].push_back(part_json(part));
  json["centring"] = format::centering_name(quant);
  json["sink_tokens"] = quant.n_sinks;
  return json;
}

Json arrays_json(const std::vector<cache::ArrayDesc>& arrays) {
  Json json = Json::array();
  for (const cache::ArrayDesc& array : arrays) {
    json.push_back(
        {{"name", array.name}, {"dtype", dtype_name(array.dtype)}, {"shape", array.shape}});
  }
  return json;
}

Json layer_json(const LayerGroup& group, std::optional<std::int64_t> n_tokens) {
  const cache::LayerDesc& layer = *group.layer;
  Json json;
  json["first"] = group.first;
  json["last"] = group.last;
  json["cache_type_id"] = format::type_name(layer);
  if (const cache::AttentionDesc* attention = cache::attention_of(layer)) {
    json["n_kv_heads"] = attention->shape.n_kv_heads;
    json["head_dim"] = attention->shape.head_dim;
    if (attention->value_dim != 0) json["value_dim"] = attention->value_dim;
  }
  if (const auto* window = std::get_if<cache::WindowDesc>(&layer)) {
    json["window"] = window->window.size;
    json["keep"] = window->window.keep;
  }
  if (cache::is_in_token_blocks(layer)) {
    json["k"] = tensor_json(cache::attention_of(layer)->k);
    json["v"] = tensor_json(cache::attention_of(layer)->v);
    return json;
  }
  json["arrays"] = arrays_json(cache::arrays_of(layer, n_tokens));
  return json;
}

}  // namespace

Json layers_json(const std::vector<cache::LayerDesc>& layers,
                 std::optional<std::int64_t> n_tokens) {
  Json json = Json::array();
  for (const LayerGroup& group : group_layers(layers)) json.push_back(layer_json(group, n_tokens));
  return json;
}

namespace {

Json bytes_json(const format::CacheFileInfo& info) {
  const PartBytes parts = bytes_by_part(info);
  Json json;
  json["file"] = info.file_bytes;
  json["keys"] = {{"packed", parts.key_packed}, {"dense", parts.key_dense}};
  json["values"] = {{"packed", parts.value_packed}, {"dense", parts.value_dense}};
  json["arrays"] = parts.arrays;
  json["checkpoints"] = parts.checkpoints;
  json["manifest"] = parts.manifest;
  json["dead"] = parts.dead;
  json["header_and_padding"] = parts.header_and_padding;
  json["behind_the_end"] = info.trailing_bytes;
  return json;
}

// The number of sections by compression.
Json compression_json(const format::CacheFileInfo& info) {
  Json json;
  for (const auto kind : kCompressions) {
    const auto n = compressed_count(info, kind);
    if (kind == format::Compression::kPredicted && n == 0) continue;  // rare
    json[compression_word(kind)] = n;
  }
  return json;
}

Json section_json(const format::SectionInfo& section) {
  Json json;
  json["layer"] = section.layer;
  json["side"] = tensor_word(section.tensor);
  json["block"] = section.block;
  json["packed"] = section.packed;
  json["compression"] = compression_word(section.compression);
  json["file_offset"] = section.file_offset;
  json["stored_bytes"] = section.stored_bytes;
  json["raw_bytes"] = section.raw_bytes;
  json["xxh3_128"] = to_hex(section.checksum);
  json["raw_sha256"] = to_hex(section.raw_sha256);
  return json;
}

// The metadata of a file of version 1.
void add_v1(const V1Summary& file, bool show_values, Json& json) {
  json["version"] = 1;
  json["class_paths"] = file.class_paths;
  json["metadata"] = Json::array();
  for (const auto& [key, value] : file.metadata) {
    Json fact = {{"key", key}};
    if (show_values) fact["value"] = value;  // may include the tokens
    json["metadata"].push_back(std::move(fact));
  }
  json["notes"] = file.notes;
}

void add_v2(const InfoView& view, Json& json) {
  const format::CacheFileInfo& info = view.info;
  json["version"] = info.version;
  json["generation"] = info.generation;
  json["required_features"] = info.required_features;
  json["optional_features"] = info.optional_features;
  json["writer"] = info.writer;
  json["content_name"] = to_hex(info.content_name);
  if (info.prediction) {
    const std::optional<double> kld = view.expected_kld;
    json["prediction"] = {{"profile", to_hex(info.prediction->profile)},
                          {"step", info.prediction->step},
                          {"expected_kld", kld ? Json(*kld) : Json(nullptr)},
                          {"sink_tokens", info.prediction->n_sinks}};
  }
  if (info.encryption) json["key_id"] = to_hex(info.encryption->key_id);
  json["damage"] = info.damage;
}

void add_cache(const cache::CacheDesc& info, std::uint64_t file_bytes, Json& json) {
  const std::uint64_t n_values = value_count(info, info.n_tokens());
  const std::optional<double> bits = bits_per_value(file_bytes, n_values);
  json["identity"] =
      is_of_known_origin(info.identity) ? identity_json(info.identity) : Json(nullptr);
  json["n_tokens"] = info.tokens.size();
  json["token_hashes"] = info.hidden_tokens ? Json(info.hidden_tokens->size()) : Json(nullptr);
  if (!info.media.empty()) {
    for (const cache::MediaSpan& span : info.media) {
      json["media"].push_back({{"kind", name_of(span.kind)},
                               {"begin", span.begin},
                               {"n_tokens", span.n_tokens},
                               {"id", span.id},
                               {"has_coordinates", !span.coordinates.empty()},
                               {"next_position", span.next_position}});
    }
    json["next_position"] = cache::position_of(info.media, info.n_tokens());
  }
  json["n_layers"] = info.layers.size();
  json["layers"] = layers_json(info.layers, info.n_tokens());
  if (const Sha256 factors = cache::factors_digest(info.layers); factors != Sha256{}) {
    json["key_factors_sha256"] = to_hex(factors);
  }
  json["n_values"] = n_values;
  json["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
}

Json checkpoints_json(const std::vector<CheckpointView>& checkpoints) {
  Json json = Json::array();
  for (const CheckpointView& each : checkpoints) {
    json.push_back({{"n_tokens", each.n_tokens}, {"bytes", each.bytes}});
  }
  return json;
}

Json sections_json(const std::vector<format::SectionInfo>& sections) {
  Json json = Json::array();
  for (const format::SectionInfo& section : sections) json.push_back(section_json(section));
  return json;
}

}  // namespace

Json info_json(const InfoView& view) {
  const format::CacheFileInfo& info = view.info;
  Json json;
  json["schema"] = 1;
  json["file"] = view.input.name;
  if (view.input.v1) {
    add_v1(*view.input.v1, view.show_prompt, json);
    add_cache(info, view.input.file_bytes, json);
    json["bytes"] = {{"file", view.input.file_bytes}};
  } else {
    add_v2(view, json);
    add_cache(info, info.file_bytes, json);
    json["checkpoints"] = checkpoints_json(checkpoints_of(info));
    json["bytes"] = bytes_json(info);
    json["n_sections"] = info.sections.size();
    json["compression"] = compression_json(info);
    if (view.sections) json["sections"] = sections_json(info.sections);
  }
  if (view.text) json["text"] = *view.text;
  if (view.show_prompt && !view.text) json["token_ids"] = info.tokens;
  return json;
}

Json info_json(const ForeignView& view) {
  Json json;
  json["schema"] = 1;
  json["file"] = view.name;
  json["version"] = nullptr;  // not a .tqkv file
  json["kind"] = view.kind;
  json["facts"] = Json::array();
  for (const auto& [label, value] : view.facts) {
    json["facts"].push_back({{"key", label}, {"value", value}});
  }
  if (view.manifest != nullptr) {
    add_cache(*view.manifest, view.file_bytes, json);
    json["checkpoints"] = checkpoints_json(view.checkpoints);
  }
  json["bytes"] = {{"file", view.file_bytes}};
  json["notes"] = view.notes;
  json["losses"] = view.losses;
  return json;
}

}  // namespace tqcache::cli
