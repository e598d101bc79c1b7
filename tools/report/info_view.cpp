#include <fmt/format.h>

#include <algorithm>

#include "report/info.h"
#include "tqcache/format/type_names.h"

namespace tqcache::cli {

namespace {

bool alike(const format::SideInfo& a, const format::SideInfo& b) {
  return a.cache_type_id == b.cache_type_id && a.dense_dtype == b.dense_dtype &&
         a.parts == b.parts && a.centering == b.centering && a.n_sinks == b.n_sinks;
}

bool alike(const std::vector<format::ArrayInfo>& a, const std::vector<format::ArrayInfo>& b) {
  return std::ranges::equal(a, b, [](const format::ArrayInfo& x, const format::ArrayInfo& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape;
  });
}

bool alike(const format::LayerInfo& a, const format::LayerInfo& b) {
  return a.cache_type_id == b.cache_type_id && a.shape == b.shape && a.window == b.window &&
         a.keep == b.keep && alike(a.k, b.k) && alike(a.v, b.v) && alike(a.arrays, b.arrays);
}

}  // namespace

std::vector<LayerGroup> group_layers(const std::vector<format::LayerInfo>& layers) {
  std::vector<LayerGroup> groups;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (groups.empty() || !alike(*groups.back().layer, layers[i])) {
      groups.push_back({index, index, &layers[i]});
    }
    groups.back().last = index;
  }
  return groups;
}

bool is_of_known_origin(const cache::Identity& identity) { return !identity.architecture.empty(); }

std::string_view rope_word(cache::RopeStyle style) {
  switch (style) {
    case cache::RopeStyle::kNone:
      return "none";
    case cache::RopeStyle::kHalfSplit:
      return "half-split";
    case cache::RopeStyle::kInterleaved:
      return "interleaved";
  }
  return "unknown";
}

std::string_view compression_word(format::Compression compression) {
  switch (compression) {
    case format::Compression::kNone:
      return "none";
    case format::Compression::kZstd:
      return "zstd";
    case format::Compression::kPlanes:
      return "planes";
    case format::Compression::kSymbols:
      return "symbols";
  }
  return "unknown";
}

std::string_view side_word(format::SideName side) {
  switch (side) {
    case format::SideName::kKeys:
      return "k";
    case format::SideName::kValues:
      return "v";
    case format::SideName::kArray:
      return "array";
  }
  return "unknown";
}

namespace {

int channels_of(const format::SideInfo& side) {
  int channels = 0;
  for (const codec::PartSpec& part : side.parts) {
    if (!part.of_residual) channels += part.quantizer.head_dim;
  }
  return channels;
}

const char* residual_word(codec::TransformKind rotation) {
  if (rotation == codec::TransformKind::kGaussian) return "gaussian";
  return rotation == codec::TransformKind::kMatrix ? "given" : "orthogonal";
}

std::string mode_text(const format::SideInfo& side) {
  const codec::PartSpec& first = side.parts.front();
  const codec::PartSpec& last = side.parts.back();
  if (last.of_residual) {
    return fmt::format("prod {} bits, {} residual", first.quantizer.bits + last.quantizer.bits,
                       residual_word(last.quantizer.rotation));
  }
  if (first.has_bias) {
    return fmt::format("affine {} bits, groups of {}", first.quantizer.bits,
                       first.quantizer.head_dim);
  }
  if (side.parts.size() > 1) {
    return fmt::format("mixed {} bits for {} channels, {} for {}", first.quantizer.bits,
                       first.quantizer.head_dim, last.quantizer.bits, last.quantizer.head_dim);
  }
  if (first.quantizer.scale == codec::ScaleRule::kStep) {
    return fmt::format("archive, step {:.4f}{}", first.quantizer.step,
                       side.transforms.empty() ? "" : ", transforms made for its vectors");
  }
  return fmt::format("turbo {} bits", first.quantizer.bits);
}

// What a part does other than by default.
std::string turn_text(const codec::PartSpec& part) {
  const codec::QuantizerSpec& spec = part.quantizer;
  std::string text;
  if (spec.rotation == codec::TransformKind::kDenseQr) text += ", dense rotation";
  if (spec.rotation == codec::TransformKind::kMatrix) text += ", rotation by value";
  if (spec.rounds > 1) text += fmt::format(", {} rounds", spec.rounds);
  if (spec.scale == codec::ScaleRule::kNorm) text += ", scale norm";
  if (spec.scale == codec::ScaleRule::kRaw) text += ", scale raw";
  return text;
}

}  // namespace

std::string codec_text(const format::SideInfo& side) {
  std::string text = mode_text(side) + turn_text(side.parts.front());
  text += fmt::format(", centering {}", name_of(format::kCenteringNames, side.centering));
  if (side.n_sinks > 0) text += fmt::format(", {} sink tokens", side.n_sinks);
  return text;
}

double code_bits(const format::SideInfo& side) {
  double bits = 0;
  for (const codec::PartSpec& part : side.parts) {
    bits += static_cast<double>(part.quantizer.bits) * part.quantizer.head_dim;
  }
  return bits / channels_of(side);
}

namespace {

// Tokens of which a layer holds keys and values.
std::int64_t tokens_in(const format::LayerInfo& layer, std::int64_t n_tokens) {
  if (is_attention(layer)) return n_tokens;
  return std::min(layer.window, n_tokens);  // of arrays layers none
}

std::uint64_t& part_of(const format::SectionInfo& section, PartBytes& parts) {
  switch (section.side) {
    case format::SideName::kKeys:
      return section.packed ? parts.key_packed : parts.key_dense;
    case format::SideName::kValues:
      return section.packed ? parts.value_packed : parts.value_dense;
    case format::SideName::kArray:
      return parts.arrays;
  }
  return parts.arrays;
}

}  // namespace

std::uint64_t value_count(const format::Manifest& info, std::int64_t n_tokens) {
  std::int64_t n_values = 0;
  for (const format::LayerInfo& layer : info.layers) {
    n_values += 2 * layer.shape.n_kv_heads * layer.shape.head_dim * tokens_in(layer, n_tokens);
  }
  return static_cast<std::uint64_t>(n_values);
}

std::optional<double> bits_per_value(std::uint64_t file_bytes, std::uint64_t n_values) {
  if (n_values == 0) return std::nullopt;
  return static_cast<double>(file_bytes) * 8 / static_cast<double>(n_values);
}

std::size_t compressed_count(const format::CacheFileInfo& info, format::Compression compression) {
  return static_cast<std::size_t>(
      std::ranges::count(info.sections, compression, &format::SectionInfo::compression));
}

PartBytes bytes_by_part(const format::CacheFileInfo& info) {
  PartBytes parts;
  std::uint64_t listed = info.manifest_bytes + info.gap_bytes;
  for (const format::SectionInfo& section : info.sections) {
    part_of(section, parts) += section.stored_bytes;
    listed += section.stored_bytes;
  }
  parts.manifest = info.manifest_bytes;
  parts.dead = info.gap_bytes;
  parts.header_and_padding = info.file_bytes - listed;
  return parts;
}

}  // namespace tqcache::cli
