#include "report/info_view.h"

#include <algorithm>

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

}  // namespace tqcache::cli
