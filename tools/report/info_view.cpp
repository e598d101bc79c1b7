#include <fmt/format.h>

#include <algorithm>

#include "report/info.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/type_names.h"

namespace tqcache::cli {

namespace {

// Layers with equal settings and equal array shapes.
bool alike(const cache::LayerDesc& a, const cache::LayerDesc& b) {
  return cache::same_encoding(a, b) && cache::arrays_of(a, {}) == cache::arrays_of(b, {});
}

}  // namespace

std::vector<LayerGroup> group_layers(const std::vector<cache::LayerDesc>& layers) {
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
    case format::Compression::kPredicted:
      return "predicted";
  }
  return "unknown";
}

std::string_view tensor_word(cache::TensorKind tensor) {
  switch (tensor) {
    case cache::TensorKind::kKeys:
      return "k";
    case cache::TensorKind::kValues:
      return "v";
    case cache::TensorKind::kArray:
      return "array";
  }
  return "unknown";
}

namespace {

int channels_of(const cache::QuantSpec& quant) {
  int channels = 0;
  for (const codec::PartSpec& part : quant.parts) {
    if (!part.of_residual) channels += part.head_dim;
  }
  return channels;
}

const char* residual_word(codec::TransformKind rotation) {
  if (rotation == codec::TransformKind::kGaussian) return "gaussian";
  return rotation == codec::TransformKind::kMatrix ? "given" : "orthogonal";
}

std::string mode_text(const cache::QuantSpec& quant) {
  const codec::PartSpec& first = quant.parts.front();
  const codec::PartSpec& last = quant.parts.back();
  if (last.of_residual) {
    return fmt::format("prod {} bits, {} residual", first.bits + last.bits,
                       residual_word(last.rotation));
  }
  if (first.has_bias) {
    return fmt::format("affine {} bits, groups of {}", first.bits, first.head_dim);
  }
  if (quant.parts.size() > 1) {
    return fmt::format("mixed {} bits for {} channels, {} for {}", first.bits, first.head_dim,
                       last.bits, last.head_dim);
  }
  if (first.scale == codec::ScaleRule::kStep) {
    return fmt::format("archive, step {:.4f}{}", first.step,
                       quant.transforms.empty() ? "" : ", transforms made for its vectors");
  }
  return fmt::format("turbo {} bits", first.bits);
}

// The settings of a part that differ from the default.
std::string turn_text(const codec::PartSpec& part) {
  std::string text;
  if (part.rotation == codec::TransformKind::kDenseQr) text += ", dense rotation";
  if (part.rotation == codec::TransformKind::kMatrix) text += ", rotation by value";
  if (part.rounds > 1) text += fmt::format(", {} rounds", part.rounds);
  if (part.scale == codec::ScaleRule::kNorm) text += ", scale norm";
  if (part.scale == codec::ScaleRule::kRaw) text += ", scale raw";
  return text;
}

}  // namespace

std::string codec_text(const cache::QuantSpec& quant) {
  std::string text = mode_text(quant) + turn_text(quant.parts.front());
  text += fmt::format(", centering {}", format::centering_name(quant));
  if (!quant.factors.empty()) text += ", factors of keys";
  if (quant.n_sinks > 0) text += fmt::format(", {} sink tokens", quant.n_sinks);
  return text;
}

double code_bits(const cache::QuantSpec& quant) {
  double bits = 0;
  for (const codec::PartSpec& part : quant.parts) {
    bits += static_cast<double>(part.bits) * part.head_dim;
  }
  return bits / channels_of(quant);
}

namespace {

std::uint64_t& part_of(const format::SectionInfo& section, PartBytes& parts) {
  switch (section.tensor) {
    case cache::TensorKind::kKeys:
      return section.packed ? parts.key_packed : parts.key_dense;
    case cache::TensorKind::kValues:
      return section.packed ? parts.value_packed : parts.value_dense;
    case cache::TensorKind::kArray:
      return parts.arrays;
  }
  return parts.arrays;
}

}  // namespace

std::uint64_t value_count(const cache::CacheDesc& info, std::int64_t n_tokens) {
  std::int64_t n_values = 0;
  for (const cache::LayerDesc& layer : info.layers) {
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    if (attention == nullptr) continue;
    const std::int64_t of_head = attention->shape.head_dim + attention->value_shape().head_dim;
    n_values += attention->shape.n_kv_heads * of_head * cache::tokens_held(layer, n_tokens);
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

std::vector<CheckpointView> checkpoints_of(const format::CacheFileInfo& info) {
  std::vector<CheckpointView> views;
  for (const cache::CheckpointDesc& checkpoint : info.checkpoints) {
    views.push_back({checkpoint.n_tokens, 0});
  }
  for (const format::SectionInfo& section : info.sections) {
    const std::int64_t behind = section.layer - std::ssize(info.layers);
    if (behind < 0) continue;
    const std::int64_t number = behind / std::ssize(info.checkpoints.front().layers);
    views[static_cast<std::size_t>(number)].bytes += section.stored_bytes;
  }
  return views;
}

std::vector<CheckpointView> checkpoints_of(const cache::CacheReader& cache) {
  std::vector<CheckpointView> views;
  for (const cache::Checkpoint& checkpoint : cache.checkpoints()) {
    views.push_back({checkpoint.n_tokens(), cache::total_raw_bytes(checkpoint.state->blocks())});
  }
  return views;
}

PartBytes bytes_by_part(const format::CacheFileInfo& info) {
  PartBytes parts;
  std::uint64_t listed = info.manifest_bytes + info.gap_bytes;
  for (const format::SectionInfo& section : info.sections) {
    const bool is_of_cache = section.layer < std::ssize(info.layers);
    (is_of_cache ? part_of(section, parts) : parts.checkpoints) += section.stored_bytes;
    listed += section.stored_bytes;
  }
  parts.manifest = info.manifest_bytes;
  parts.dead = info.gap_bytes;
  parts.header_and_padding = info.file_bytes - listed;
  return parts;
}

}  // namespace tqcache::cli
