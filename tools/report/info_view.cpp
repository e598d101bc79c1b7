#include "report/info_view.h"

#include <algorithm>

namespace tqcache::cli {
namespace {

// Layers of one form whose arrays have one shape.
bool alike(const cache::LayerDesc& a, const cache::LayerDesc& b) {
  return cache::same_form(a, b) && cache::arrays_of(a, {}) == cache::arrays_of(b, {});
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

}  // namespace tqcache::cli
