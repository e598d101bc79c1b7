#include "fuzz/manifest_changes.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fuzz/mutate.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/description.h"
#include "tqcache/format/type_names.h"

namespace tqcache::fuzz {
namespace {

using cache::ArrayDesc;
using cache::AttentionDesc;
using cache::LayerDesc;
using cache::QuantSpec;
using cache::StateDesc;
using cache::TensorDesc;
using cache::WindowDesc;
using format::Manifest;
using format::SectionInfo;

// Most lists are kept short: long ones cost time and say nothing more.
constexpr std::size_t kMostElements = 600;
constexpr std::size_t kMostLayers = 8;

void change_digest(Chance& chance, std::span<std::byte> digest) {
  digest[chance.below(digest.size())] ^= std::byte{1};
}

void change_checksum(Chance& chance, Checksum128& checksum) {
  change_number(chance, chance.one_in(2) ? checksum.low : checksum.high);
}

template <class T>
void change_numbers(Chance& chance, std::vector<T>& numbers) {
  if (numbers.empty() || chance.one_in(4)) {
    numbers.resize(
        std::min(kMostElements, chance.one_in(2) ? numbers.size() + 1 : chance.below(66)));
  } else if (chance.one_in(3)) {
    change_order(chance, numbers, kMostElements);
  } else {
    change_number(chance, numbers[chance.below(numbers.size())]);
  }
}

void change_rope(Chance& chance, cache::Rope& rope) {
  switch (chance.below(4)) {
    case 0:
      return change_enum(chance, rope.style, 3);
    case 1:
      rope.n_dims = static_cast<std::int64_t>(chance.below(70));
      return;
    case 2:
      return change_number(chance, rope.base);
    default:
      rope.factors.resize(
          static_cast<std::size_t>(std::clamp<std::int64_t>(rope.n_dims, 0, 64)) / 2, 1.0f);
      return change_numbers(chance, rope.factors);
  }
}

void change_identity(Chance& chance, cache::Identity& identity) {
  switch (chance.below(6)) {
    case 0:
      return change_text(chance, identity.architecture);
    case 1:
      return change_text(chance, identity.model_name);
    case 2:
      return change_text(chance, identity.source_format);
    case 3:
      return change_digest(chance, identity.weights_fingerprint);
    case 4:
      if (identity.adapter_fingerprint) {
        identity.adapter_fingerprint.reset();
      } else {
        identity.adapter_fingerprint = identity.weights_fingerprint;
      }
      return;
    default:
      return change_rope(chance, identity.rope);
  }
}

void change_tokens(Chance& chance, Manifest& manifest) {
  constexpr std::size_t kCounts[] = {0, 1, 3, 255, 256, 257, 511, 512, 513};
  switch (chance.below(5)) {
    case 0:
      manifest.tokens.resize(chance.one_of(kCounts), manifest.hidden_tokens ? -1 : 7);
      return;
    case 1:
      return change_numbers(chance, manifest.tokens);
    case 2:
      manifest.hidden_tokens.emplace();
      std::ranges::fill(manifest.tokens, cache::kUnknownToken);
      if (chance.one_in(2)) {
        manifest.hidden_tokens->resize(
            static_cast<std::size_t>(cache::block_count(manifest.n_tokens())));
      }
      return;
    case 3:
      if (manifest.hidden_tokens) change_order(chance, *manifest.hidden_tokens, kMostLayers);
      return;
    default:
      manifest.hidden_tokens.reset();
      std::ranges::fill(manifest.tokens, 7);
  }
}

// Another map; a matrix of the right size, or none where one belongs.
void change_map(Chance& chance, codec::PartSpec& part) {
  change_enum(chance, part.rotation, 5);
  part.matrix = {};
  if (chance.one_in(4)) return;
  const auto dim = static_cast<std::size_t>(std::clamp(part.head_dim, 0, 64));
  AlignedFloats values(dim * dim, 0.0f);
  for (std::size_t i = 0; i < dim; ++i) values[i * dim + chance.below(dim)] = 1.0f;
  if (auto matrix = codec::TransformMatrix::make(std::move(values))) part.matrix = *matrix;
}

void change_part(Chance& chance, codec::PartSpec& part) {
  switch (chance.below(10)) {
    case 0:
      part.first = static_cast<int>(chance.below(70));
      return;
    case 1:
      part.head_dim = static_cast<int>(chance.below(70));
      return;
    case 2:
      part.bits = static_cast<int>(chance.below(10));
      if (part.bits <= 4) {
        part.centroids = codec::linear_centroids(std::max(1, part.bits));
      }
      return;
    case 3:
      return change_number(chance, part.seed);
    case 4:
      return change_map(chance, part);
    case 5:
      part.rounds = static_cast<int>(chance.below(5));
      return;
    case 6:
      return change_enum(chance, part.scale, 5);
    case 7:
      (chance.one_in(2) ? part.of_residual : part.has_bias) ^= true;
      return;
    case 8:
      part.step = chance.one_in(2) ? 0.0f : 0.5f;
      return;
    default:
      return change_numbers(chance, part.centroids);
  }
}

// A codec of each mode that head_dim allows.
void replace_codec(Chance& chance, TensorDesc& tensor, std::int64_t head_dim) {
  const auto mode = static_cast<codec::Mode>(chance.below(5));
  codec::CodecSpec spec;
  spec.head_dim = static_cast<int>(std::clamp<std::int64_t>(head_dim, 32, 64));
  spec.mode = mode;
  spec.bits = mode == codec::Mode::kProd ? 2 : 1;
  spec.outlier_channels = 8;
  spec.outlier_bits = 2;
  spec.group_size = 32;
  spec.step = 0.5f;
  auto parts = codec::make_parts(spec);
  if (!parts) return;
  if (!tensor.quant) tensor.quant.emplace();
  QuantSpec& quant = *tensor.quant;
  quant.parts = std::move(parts).value();
  quant.mode = mode;
  quant.outliers.clear();
  if (mode != codec::Mode::kMixed) return;
  for (std::uint16_t i = 0; i < 8; ++i) quant.outliers.push_back(i);
}

// Maps of the right size, or nearly.
void change_maps(Chance& chance, QuantSpec& quant, cache::HeadShape shape) {
  const auto dim = static_cast<std::size_t>(std::clamp<std::int64_t>(shape.head_dim, 0, 64));
  const auto heads = static_cast<std::size_t>(std::clamp<std::int64_t>(shape.n_kv_heads, 0, 4));
  quant.transforms.assign(heads * dim * dim, 0);
  for (std::size_t i = 0; i < heads * dim; ++i) {
    quant.transforms[i * dim + (chance.one_in(20) ? 0 : i % dim)] = 64;
  }
  if (chance.one_in(4)) quant.transforms.clear();
  if (chance.one_in(4)) quant.transforms.push_back(1);
}

void change_tensor(Chance& chance, TensorDesc& tensor, cache::HeadShape shape) {
  if (chance.one_in(10)) return change_enum(chance, tensor.dtype, 3);
  if (!tensor.quant) return replace_codec(chance, tensor, shape.head_dim);
  QuantSpec& quant = *tensor.quant;
  switch (chance.below(10)) {
    case 0:
      quant.mode = static_cast<codec::Mode>(chance.below(5));
      return;
    case 1:
      tensor.quant.reset();
      return;
    case 2:
      return change_order(chance, quant.parts, 4);
    case 3:
      return replace_codec(chance, tensor, shape.head_dim);
    case 4:
      change_enum(chance, quant.centering, 3);
      // Either may be any number by now.
      quant.mean.resize(std::min(kMostElements, (static_cast<std::size_t>(shape.n_kv_heads) *
                                                 static_cast<std::size_t>(shape.head_dim)) &
                                                    0xffff));
      return;
    case 5:
      return change_numbers(chance, quant.mean);
    case 6:
      return change_numbers(chance, quant.outliers);
    case 7:
      quant.n_sinks = static_cast<std::int64_t>(chance.below(260));
      return;
    case 8:
      if (chance.one_in(2)) return change_numbers(chance, quant.factors);
      return change_maps(chance, quant, shape);
    default:
      if (quant.parts.empty()) return replace_codec(chance, tensor, shape.head_dim);
      return change_part(chance, quant.parts[chance.below(quant.parts.size())]);
  }
}

void change_array(Chance& chance, ArrayDesc& array) {
  switch (chance.below(4)) {
    case 0:
      return change_text(chance, array.name);
    case 1:
      return change_enum(chance, array.dtype, 3);
    case 2:
      return change_order(chance, array.shape, 10);
    default:
      if (array.shape.empty()) array.shape.push_back(1);
      return change_number(chance, array.shape[chance.below(array.shape.size())]);
  }
}

// A window of the newest tokens, dense.
LayerDesc make_rotating(Chance& chance) {
  WindowDesc window;
  window.attention.shape = {1, 1 + static_cast<std::int64_t>(chance.below(9))};
  window.window.size = 1 + static_cast<std::int64_t>(chance.below(9));
  window.window.keep =
      static_cast<std::int64_t>(chance.below(static_cast<std::size_t>(window.window.size)));
  return window;
}

// Full attention becomes a window of the newest tokens, or back.
void turn_window(Chance& chance, LayerDesc& layer) {
  if (const auto* window = std::get_if<WindowDesc>(&layer)) {
    layer = AttentionDesc(window->attention);
    return;
  }
  const auto* attention = std::get_if<AttentionDesc>(&layer);
  if (attention == nullptr) return;
  WindowDesc window{*attention, {1 + static_cast<std::int64_t>(chance.below(600)), 0}};
  for (TensorDesc* tensor : {&window.attention.k, &window.attention.v}) {
    if (tensor->quant && !chance.one_in(4)) tensor->quant->n_sinks = 0;
  }
  layer = std::move(window);
}

void change_state(Chance& chance, StateDesc& state) {
  if (state.arrays.empty()) {
    state.arrays.push_back({"state", Dtype::kF32, {2, 3}});
  } else if (chance.one_in(2)) {
    change_order(chance, state.arrays, kMostLayers);
  } else {
    change_array(chance, state.arrays[chance.below(state.arrays.size())]);
  }
}

void change_attention(Chance& chance, AttentionDesc& attention) {
  switch (chance.below(6)) {
    case 0:
      return change_number(chance, attention.shape.n_kv_heads);
    case 1:
      return change_number(chance, attention.shape.head_dim);
    default:
      return change_tensor(chance, chance.one_in(2) ? attention.k : attention.v, attention.shape);
  }
}

void change_layer(Chance& chance, LayerDesc& layer) {
  switch (chance.below(8)) {
    case 0:
      layer = make_rotating(chance);
      return;
    case 1:
      return turn_window(chance, layer);
    case 2:
      layer = StateDesc{{{"state", Dtype::kF32, {2, 3}}}};
      return;
    default:
      break;
  }
  std::visit(Overload{[&](AttentionDesc& attention) { change_attention(chance, attention); },
                      [&](WindowDesc& window) {
                        if (chance.one_in(3)) {
                          cache::Window& size = window.window;
                          return change_number(chance, chance.one_in(2) ? size.size : size.keep);
                        }
                        change_attention(chance, window.attention);
                      },
                      [&](StateDesc& state) { change_state(chance, state); }},
             layer);
}

void change_layers(Chance& chance, Manifest& manifest) {
  if (manifest.layers.empty() || chance.one_in(6)) {
    return change_order(chance, manifest.layers, kMostLayers);
  }
  change_layer(chance, manifest.layers[chance.below(manifest.layers.size())]);
}

void change_section(Chance& chance, SectionInfo& section) {
  switch (chance.below(10)) {
    case 0:
      return change_number(chance, section.layer);
    case 1:
      return change_enum(chance, section.tensor, 3);
    case 2:
      return change_number(chance, section.block);
    case 3:
      section.packed = !section.packed;
      return;
    case 4:
      return change_enum(chance, section.compression, 3);
    case 5:
      return change_number(chance, section.file_offset);
    case 6:
      return change_number(chance, section.stored_bytes);
    case 7:
      return change_number(chance, section.raw_bytes);
    case 8:
      return change_checksum(chance, section.checksum);
    default:
      return change_digest(chance, section.raw_sha256);
  }
}

void change_sections(Chance& chance, Manifest& manifest) {
  if (manifest.sections.empty() || chance.one_in(4)) {
    return change_order(chance, manifest.sections, 64);
  }
  change_section(chance, manifest.sections[chance.below(manifest.sections.size())]);
}

void change_gaps(Chance& chance, Manifest& manifest) {
  if (manifest.gaps.empty()) {
    const std::uint64_t offset = 128 + 64 * chance.below(8);
    manifest.gaps.push_back({offset, 1 + chance.below(64), {}});
    return;
  }
  format::GapInfo& gap = manifest.gaps[chance.below(manifest.gaps.size())];
  switch (chance.below(4)) {
    case 0:
      return change_order(chance, manifest.gaps, 16);
    case 1:
      return change_number(chance, gap.file_offset);
    case 2:
      return change_number(chance, gap.bytes);
    default:
      return change_checksum(chance, gap.checksum);
  }
}

}  // namespace

void change_manifest(Chance& chance, Manifest& manifest) {
  switch (chance.below(12)) {
    case 0:
      return change_text(chance, manifest.writer);
    case 1:
      return change_identity(chance, manifest.identity);
    case 2:
    case 3:
      return change_tokens(chance, manifest);
    case 4:
    case 5:
      return change_sections(chance, manifest);
    case 6:
      return change_gaps(chance, manifest);
    case 7:
      return change_digest(chance, manifest.content_name);
    default:
      return change_layers(chance, manifest);
  }
}

}  // namespace tqcache::fuzz
