#include "tqcache/format/manifest_rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/base/shape.h"
#include "tqcache/codec/quantizer.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
Error too_large(std::string message) { return {ErrorCode::kTooLarge, std::move(message)}; }

// A name from the file for a message: printable ASCII only, so that it cannot steer a terminal.
std::string quoted(std::string_view name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 64)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + "\"";
}

Result<void> check_name(std::string_view what, std::string_view name, std::string_view known) {
  if (name == known) return {};
  return Error{ErrorCode::kUnsupported, std::string(what) + " " + quoted(name)};
}

Result<void> check_text(std::string_view what, std::string_view text) {
  if (text.size() <= kMaxTextBytes) return {};
  return too_large(std::string(what) + " of " + std::to_string(text.size()) + " bytes");
}

Result<void> check_identity_fields(const cache::Identity& identity) {
  TQC_TRY(check_text("architecture", identity.architecture));
  TQC_TRY(check_text("model name", identity.model_name));
  TQC_TRY(check_text("source format", identity.source_format));
  const cache::Rope& rope = identity.rope;
  if (rope.n_dims < 0 || rope.n_dims > cache::kMaxHeadDim) {
    return too_large("rope: " + std::to_string(rope.n_dims) + " components");
  }
  if (!std::isfinite(rope.base) || rope.base < 0) return corrupt("rope: base is no number");
  return {};
}

Result<void> check_codec(const SideInfo& side) {
  TQC_TRY(check_name("rotation", side.rotation, kRotationName));
  TQC_TRY(check_name("scale", side.scale, kScaleName));
  TQC_TRY(check_name("layout", side.layout, kLayoutName));
  TQC_TRY(codec::validate(*side.codec));
  TQC_TRY(codec::Quantizer::make(*side.codec, side.centroids));
  return {};
}

// The name, and a mean that fits the heads. Whether there has to be one depends on the sections.
Result<void> check_centring(const SideInfo& side, SideName name, cache::HeadShape shape,
                            const cache::Rope& rope) {
  if (side.centring == kCentringNone) {
    if (!side.mean.empty()) return corrupt("a mean without centring");
    return {};
  }
  if (side.centring != kCentringPostRope) {
    TQC_TRY(check_name("centring", side.centring, kCentringPreRope));
    if (name != SideName::kKeys || !cache::can_turn(rope, shape.head_dim)) {
      return corrupt("centring before RoPE where there is none");
    }
  }
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim;
  if (!side.mean.empty() && std::ssize(side.mean) != expected) {
    return corrupt("a mean of " + std::to_string(side.mean.size()) + " values where " +
                   std::to_string(expected) + " belong");
  }
  if (!std::ranges::all_of(side.mean, [](float x) { return std::isfinite(x); })) {
    return corrupt("a mean that is not finite");
  }
  return {};
}

Result<void> check_side(const SideInfo& side, SideName name, cache::HeadShape shape,
                        const cache::Rope& rope) {
  if (side.cache_type_id == kDenseType) {
    if (side.codec) return corrupt("a dense side with a codec");
    return {};
  }
  TQC_TRY(check_name("cache type", side.cache_type_id, kTurboMseType));
  if (!side.codec) return corrupt("a turbo side without a codec");
  TQC_TRY(check_codec(side));
  return check_centring(side, name, shape, rope);
}

Result<void> check_attention(const LayerInfo& layer, const cache::Rope& rope) {
  const auto [n_kv_heads, head_dim] = layer.shape;
  if (n_kv_heads < 1 || head_dim < 1) return corrupt("a shape has a size below 1");
  if (n_kv_heads > cache::kMaxKvHeads) return too_large(std::to_string(n_kv_heads) + " kv heads");
  if (head_dim > cache::kMaxHeadDim) return too_large("head_dim " + std::to_string(head_dim));
  if (!layer.arrays.empty()) return corrupt("an attention layer with arrays");
  if (auto k = check_side(layer.k, SideName::kKeys, layer.shape, rope); !k) {
    return in_context("k", std::move(k).error());
  }
  if (auto v = check_side(layer.v, SideName::kValues, layer.shape, rope); !v) {
    return in_context("v", std::move(v).error());
  }
  return {};
}

Result<void> check_array(const ArrayInfo& array) {
  TQC_TRY(check_text("name", array.name));
  if (array.shape.size() > kMaxArrayRank) {
    return too_large(std::to_string(array.shape.size()) + " dimensions");
  }
  const auto count = element_count(array.shape);
  const auto bytes = count ? checked_mul(*count, dtype_size(array.dtype)) : std::nullopt;
  if (!bytes || *bytes > kMaxArrayBytes) return too_large("its shape takes too many bytes");
  return {};
}

Result<void> check_arrays(const LayerInfo& layer) {
  if (layer.shape != cache::HeadShape{}) return corrupt("an arrays layer with heads");
  if (layer.k.cache_type_id.size() + layer.v.cache_type_id.size() > 0) {
    return corrupt("an arrays layer with k or v");
  }
  if (layer.arrays.size() > kMaxArrays) {
    return too_large(std::to_string(layer.arrays.size()) + " arrays");
  }
  for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
    if (auto array = check_array(layer.arrays[i]); !array) {
      return in_context("array " + std::to_string(i), std::move(array).error());
    }
  }
  return {};
}

Result<void> check_layer(const LayerInfo& layer, const cache::Rope& rope) {
  if (is_attention(layer)) return check_attention(layer, rope);
  TQC_TRY(check_name("cache type", layer.cache_type_id, kArraysType));
  return check_arrays(layer);
}

// A turbo side packs every token block but the last, which it cannot pack before it is full.
Result<void> check_form(const Manifest& manifest, const SectionInfo& section) {
  const LayerInfo& layer = manifest.layers[static_cast<std::size_t>(section.layer)];
  const bool is_turbo =
      section.side != SideName::kArray && side_of(layer, section.side).codec.has_value();
  if (!is_turbo) {
    if (section.packed) return corrupt("packed, of a side that is not turbo");
    return {};
  }
  const bool is_full =
      cache::tokens_in_block(manifest.n_tokens(), section.block) == cache::kTokenBlock;
  const bool is_last = section.block + 1 == cache::block_count(manifest.n_tokens());
  if (section.packed && !is_full) return corrupt("packed, but not full");
  const SideInfo& side = side_of(layer, section.side);
  if (section.packed && side.centring != kCentringNone && side.mean.empty()) {
    return corrupt("packed, but without its mean");
  }
  if (!section.packed && !is_last) return corrupt("a token block before the last is not packed");
  return {};
}

Result<void> check_sizes(const Manifest& manifest, const SectionInfo& section) {
  const LayerInfo& layer = manifest.layers[static_cast<std::size_t>(section.layer)];
  const std::uint64_t expected =
      raw_bytes(layer, key_of(section), section.packed, manifest.n_tokens());
  if (section.raw_bytes != expected) {
    return corrupt("raw size " + std::to_string(section.raw_bytes) + " where the shape says " +
                   std::to_string(expected));
  }
  const bool is_stored = section.compression == Compression::kNone;
  const bool fits = is_stored
                        ? section.stored_bytes == section.raw_bytes
                        : section.stored_bytes > 0 && section.stored_bytes < section.raw_bytes;
  if (!fits) {
    return corrupt("stored size " + std::to_string(section.stored_bytes) + " for raw size " +
                   std::to_string(section.raw_bytes));
  }
  return {};
}

// Gives the end of the section.
Result<std::uint64_t> check_place(const SectionInfo& section, std::uint64_t previous_end,
                                  std::uint64_t manifest_offset) {
  if (section.file_offset != align_section(previous_end)) {
    return corrupt("file offset " + std::to_string(section.file_offset) + " where " +
                   std::to_string(align_section(previous_end)) + " follows");
  }
  if (section.file_offset > manifest_offset ||
      section.stored_bytes > manifest_offset - section.file_offset) {
    return corrupt("reaches into the manifest");
  }
  return section.file_offset + section.stored_bytes;
}

Result<std::uint64_t> check_section(const Manifest& manifest, const SectionInfo& section,
                                    const SectionKey& expected, std::uint64_t previous_end,
                                    std::uint64_t manifest_offset) {
  if (key_of(section) != expected) return corrupt("not the section that follows here");
  TQC_TRY(check_form(manifest, section));
  TQC_TRY(check_sizes(manifest, section));
  return check_place(section, previous_end, manifest_offset);
}

}  // namespace

Result<void> check_contents(const Manifest& manifest) {
  TQC_TRY(check_text("writer", manifest.writer));
  if (auto identity = check_identity_fields(manifest.identity); !identity) {
    return in_context("identity", std::move(identity).error());
  }
  if (manifest.n_tokens() > cache::kMaxTokens) {
    return too_large(std::to_string(manifest.n_tokens()) + " tokens");
  }
  if (std::ranges::any_of(manifest.tokens, [](std::int32_t token) { return token < 0; })) {
    return corrupt("a token id below 0");
  }
  if (manifest.layers.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return too_large(std::to_string(manifest.layers.size()) + " layers");
  }
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    if (auto layer = check_layer(manifest.layers[i], manifest.identity.rope); !layer) {
      return in_context("layer " + std::to_string(i), std::move(layer).error());
    }
  }
  return {};
}

Result<void> check_sections(const Manifest& manifest, std::uint64_t manifest_offset) {
  const std::uint64_t expected = count_sections(manifest.layers, manifest.n_tokens());
  if (manifest.sections.size() != expected) {
    return corrupt("section table: " + std::to_string(manifest.sections.size()) +
                   " sections where the layers have " + std::to_string(expected));
  }
  const std::vector<SectionKey> plan = plan_sections(manifest.layers, manifest.n_tokens());
  std::uint64_t end = kHeaderBytes;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const SectionInfo& section = manifest.sections[i];
    auto checked = check_section(manifest, section, plan[i], end, manifest_offset);
    if (!checked) return in_context(section_place(i, section), std::move(checked).error());
    end = *checked;
  }
  if (align_section(end) != manifest_offset) {
    return corrupt("manifest: at " + std::to_string(manifest_offset) +
                   ", but the sections end at " + std::to_string(end));
  }
  return {};
}

std::uint64_t total_memory_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) {
    total += memory_bytes(manifest.layers[static_cast<std::size_t>(section.layer)], key_of(section),
                          section.packed);
  }
  return total;
}

}  // namespace tqcache::format
