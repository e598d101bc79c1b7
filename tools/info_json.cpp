#include "info_json.h"

#include <fmt/format.h>

#include "codec_text.h"
#include "file_stats.h"
#include "tqcache/base/dtype.h"
#include "tqcache/format/type_names.h"

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
  json["source_format"] = identity.source_format;
  return json;
}

Json part_json(const codec::PartSpec& part) {
  const codec::QuantizerSpec& spec = part.quantizer;
  Json json;
  json["first"] = part.first;
  json["size"] = spec.head_dim;
  json["bits"] = spec.bits;
  json["rotation"] = name_of(format::kRotationNames, spec.rotation);
  json["rounds"] = spec.rounds;
  json["seed"] = fmt::format("{:016x}", spec.seed);
  json["scale"] = name_of(format::kScaleNames, spec.scale);
  json["of_residual"] = part.of_residual;
  json["has_bias"] = part.has_bias;
  return json;
}

Json side_json(const format::SideInfo& side) {
  Json json;
  json["cache_type_id"] = side.cache_type_id;
  json["dense_dtype"] = dtype_name(side.dense_dtype);
  if (!is_turbo(side)) return json;
  json["bits"] = code_bits(side);
  json["layout"] = format::kLayoutName;
  json["parts"] = Json::array();
  for (const codec::PartSpec& part : side.parts) json["parts"].push_back(part_json(part));
  json["centring"] = name_of(format::kCentringNames, side.centring);
  json["sink_tokens"] = side.n_sinks;
  return json;
}

Json layers_json(const std::vector<format::LayerInfo>& layers) {
  Json json = Json::array();
  for (const LayerGroup& group : group_layers(layers)) {
    Json row;
    row["first"] = group.first;
    row["last"] = group.last;
    row["cache_type_id"] = group.layer->cache_type_id;
    if (is_attention(*group.layer)) {
      row["n_kv_heads"] = group.layer->shape.n_kv_heads;
      row["head_dim"] = group.layer->shape.head_dim;
      row["k"] = side_json(group.layer->k);
      row["v"] = side_json(group.layer->v);
    }
    json.push_back(std::move(row));
  }
  return json;
}

Json bytes_json(const format::CacheFileInfo& info) {
  const PartBytes parts = bytes_by_part(info);
  Json json;
  json["file"] = info.file_bytes;
  json["keys"] = {{"packed", parts.key_packed}, {"dense", parts.key_dense}};
  json["values"] = {{"packed", parts.value_packed}, {"dense", parts.value_dense}};
  json["arrays"] = parts.arrays;
  json["manifest"] = parts.manifest;
  json["header_and_padding"] = parts.header_and_padding;
  return json;
}

Json section_json(const format::SectionInfo& section) {
  Json json;
  json["layer"] = section.layer;
  json["side"] = side_word(section.side);
  json["block"] = section.block;
  json["packed"] = section.packed;
  json["compression"] = section.compression == format::Compression::kZstd ? "zstd" : "none";
  json["file_offset"] = section.file_offset;
  json["stored_bytes"] = section.stored_bytes;
  json["raw_bytes"] = section.raw_bytes;
  json["xxh3_128"] = to_hex(section.checksum);
  json["raw_sha256"] = to_hex(section.raw_sha256);
  return json;
}

}  // namespace

Json info_json(const InfoView& view) {
  const format::CacheFileInfo& info = view.info;
  const std::optional<double> bits = bits_per_value(info.file_bytes, value_count(info));
  Json json;
  json["schema"] = 1;
  json["file"] = view.name;
  json["version"] = info.version;
  json["generation"] = info.generation;
  json["required_features"] = info.required_features;
  json["optional_features"] = info.optional_features;
  json["writer"] = info.writer;
  json["content_name"] = to_hex(info.content_name);
  json["identity"] = identity_json(info.identity);
  json["n_tokens"] = info.tokens.size();
  json["n_layers"] = info.layers.size();
  json["layers"] = layers_json(info.layers);
  json["n_values"] = value_count(info);
  json["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
  json["bytes"] = bytes_json(info);
  json["n_sections"] = info.sections.size();
  if (view.sections) {
    json["sections"] = Json::array();
    for (const format::SectionInfo& section : info.sections) {
      json["sections"].push_back(section_json(section));
    }
  }
  if (view.text) json["text"] = *view.text;
  if (view.show_prompt && !view.text) json["token_ids"] = info.tokens;
  return json;
}

}  // namespace tqcache::cli
