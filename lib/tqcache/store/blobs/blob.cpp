// The content of blobs: layers, parts of blocks, hashes.

#include "tqcache/store/blobs/blob.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/type_names.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {
namespace {

constexpr std::string_view kParametersDomain = "tqcache store parameters 1";
// With the standing as a further field, so that values that nobody compared with the model are
// never taken for others.
constexpr std::string_view kParametersDomain2 = "tqcache store parameters 2";

// A quantized window must stay quantized, so it keeps its codecs.
void drop_data(cache::TensorDesc& tensor) {
  if (!tensor.quant) return;
  tensor.quant->centering = cache::Centering::kNone;
  tensor.quant->mean.clear();
  tensor.quant->outliers.clear();
  tensor.quant->transforms.clear();
  tensor.quant->factors.clear();
}

Error layer_mismatch(std::size_t layer, std::string message) {
  return {ErrorCode::kMismatch, fmt::format("layer {}: {}", layer, message)};
}

bool same_arrays(const std::vector<cache::ArrayDesc>& a, const std::vector<cache::ArrayDesc>& b) {
  return std::ranges::equal(a, b, [](const cache::ArrayDesc& x, const cache::ArrayDesc& y) {
    return x.name == y.name && x.dtype == y.dtype;
  });
}

std::string layer_text(const cache::LayerDesc& layer) {
  const std::string_view type = format::type_name(layer);
  const cache::AttentionDesc* const attention = cache::attention_of(layer);
  if (attention == nullptr) return std::string(type);
  return fmt::format("{} of {} kv heads of {} and {}", type, attention->shape.n_kv_heads,
                     attention->shape.head_dim, attention->value_shape().head_dim);
}

// Checks that the layer of a snapshot matches that of the parameters, and takes its array shapes.
Result<void> join_layer(std::size_t index, const cache::LayerDesc& bare, cache::LayerDesc& layer) {
  const auto other_layer = [&] {
    return fmt::format("expected {}, found {}", layer_text(bare), layer_text(layer));
  };
  if (format::type_name(bare) != format::type_name(layer)) {
    return layer_mismatch(index, other_layer());
  }
  const auto check = [&](bool is_same, const char* what = nullptr) -> Result<void> {
    if (is_same) return {};
    return layer_mismatch(index, what == nullptr ? other_layer() : what);
  };
  return std::visit(
      Overload{[&](const cache::AttentionDesc& attention) {
                 return check(same_shapes(std::get<cache::AttentionDesc>(bare), attention));
               },
               [&](const cache::WindowDesc& window) -> Result<void> {
                 const auto& other = std::get<cache::WindowDesc>(bare);
                 const bool is_same = same_shapes(other.attention, window.attention) &&
                                      other.window == window.window;
                 TQC_TRY(check(is_same));
                 return check(same_arrays(cache::arrays_of(bare, {}), cache::arrays_of(layer, {})),
                              "other arrays");
               },
               [&](cache::StateDesc& state) -> Result<void> {
                 const auto& other = std::get<cache::StateDesc>(bare);
                 TQC_TRY(check(same_arrays(other.arrays, state.arrays), "other arrays"));
                 state.arrays = other.arrays;
                 return {};
               }},
      layer);
}

// The sections of a final token block, in the order of a file.
std::vector<cache::BlockKey> block_sections(const std::vector<cache::LayerDesc>& layers,
                                            std::int64_t index) {
  std::vector<cache::BlockKey> keys;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!std::holds_alternative<cache::AttentionDesc>(layers[i])) continue;
    const auto layer = static_cast<std::int64_t>(i);
    keys.push_back({layer, cache::TensorKind::kKeys, index});
    keys.push_back({layer, cache::TensorKind::kValues, index});
  }
  return keys;
}

// The least number of tokens of a prompt in which the block is final.
std::int64_t tokens_behind(std::int64_t index) { return (index + 1) * cache::kTokenBlock + 1; }

std::uint64_t raw_bytes_of(const std::vector<cache::LayerDesc>& layers,
                           const cache::BlockKey& key) {
  const cache::LayerDesc& layer = layers[static_cast<std::size_t>(key.layer)];
  const bool packed = cache::is_quantized(cache::tensor_of(layer, key.tensor));
  return cache::raw_bytes(layer, key, packed, tokens_behind(key.block));
}

// Layers as a blob stores them.
Content kept(Content content) {
  if (auto* parameters = std::get_if<Parameters>(&content)) {
    parameters->layers = without_array_shapes(std::move(parameters->layers));
  }
  if (auto* snapshot = std::get_if<Snapshot>(&content))
    snapshot->layers = bare_layers(snapshot->layers);
  if (auto* record = std::get_if<PromptRecord>(&content)) {
    record->snapshot.layers = bare_layers(record->snapshot.layers);
  }
  return content;
}

// Turns kCorrupt into kInvalidArgument: invalid content is a mistake of the writer.
Error mistake(Error error) {
  if (error.code != ErrorCode::kTooLarge) error.code = ErrorCode::kInvalidArgument;
  return error;
}

}  // namespace

std::vector<cache::LayerDesc> bare_layers(std::vector<cache::LayerDesc> layers) {
  for (cache::LayerDesc& layer : layers) {
    std::visit(Overload{[](cache::AttentionDesc& attention) { attention.k = attention.v = {}; },
                        [](cache::WindowDesc& window) {
                          drop_data(window.attention.k);
                          drop_data(window.attention.v);
                        },
                        [](cache::StateDesc&) {}},
               layer);
  }
  return layers;
}

Result<std::vector<cache::LayerDesc>> join_layers(const std::vector<cache::LayerDesc>& parameters,
                                                  const std::vector<cache::LayerDesc>& bare) {
  if (parameters.size() != bare.size()) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("{} layers where {} belong", bare.size(), parameters.size())};
  }
  std::vector<cache::LayerDesc> layers = parameters;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    TQC_TRY(join_layer(i, bare[i], layers[i]));
  }
  return layers;
}

Result<Bytes> encode_blob(std::string_view key, const Content& given) {
  const Content content = kept(given);
  if (auto checked = check_content(key, content); !checked) {
    return mistake(std::move(checked).error());
  }
  return make_blob(key, content);
}

Sha256 hash_parameters(const Parameters& parameters) {
  format::Manifest manifest;
  manifest.identity = parameters.identity;
  manifest.layers = without_array_shapes(parameters.layers);
  const Sha256 content = format::content_name(manifest, /*window_tokens=*/{});
  const ByteView fields[] = {as_bytes(kParametersDomain), content};
  if (parameters.identity.standing == cache::Standing::kNone) return hash_fields(fields);
  const auto standing = static_cast<std::byte>(parameters.identity.standing);
  const ByteView with_standing[] = {as_bytes(kParametersDomain2), content, ByteView(&standing, 1)};
  return hash_fields(with_standing);
}

std::vector<std::size_t> cut_into_parts(std::span<const std::uint64_t> raw_bytes) {
  std::vector<std::size_t> ends;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < raw_bytes.size(); ++i) {
    if (bytes > 0 && (bytes >= kBlobBytes || raw_bytes[i] > kBlobBytes - bytes)) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += raw_bytes[i];
  }
  ends.push_back(raw_bytes.size());
  return ends;
}

std::vector<std::size_t> block_parts(const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t index) {
  std::vector<std::uint64_t> sizes;
  for (const cache::BlockKey& key : block_sections(layers, index)) {
    sizes.push_back(raw_bytes_of(layers, key));
  }
  return cut_into_parts(sizes);
}

Result<void> check_block(const Parameters& parameters, const Block& block) {
  const std::vector<cache::BlockKey> keys = block_sections(parameters.layers, block.index);
  const std::vector<std::size_t> ends = block_parts(parameters.layers, block.index);
  const auto part = static_cast<std::size_t>(block.part);
  const std::size_t first = part == 0 ? 0 : ends[std::min(part, ends.size()) - 1];
  if (static_cast<std::size_t>(block.n_parts) != ends.size() || part >= ends.size() ||
      block.sections.size() != ends[part] - first) {
    return corrupt("not the sections of its layers");
  }
  for (std::size_t i = 0; i < block.sections.size(); ++i) {
    const format::SectionInfo& info = block.sections[i].info;
    auto checked =
        format::check_section(parameters.layers, tokens_behind(block.index), info, keys[first + i]);
    if (!checked) return in_context(cache::block_place(i, info), std::move(checked).error());
  }
  return {};
}

}  // namespace tqcache::store
