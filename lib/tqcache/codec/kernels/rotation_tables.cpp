#include "tqcache/codec/kernels/rotation_tables.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

constexpr int kLastBin = 15;
constexpr int kBinEntries = 32;
constexpr float kLeastLimit = 1e-6f;  // far from where bins_per_unit would overflow

void make_search_tree(std::span<const float> boundaries, float* tree) {
  const std::size_t n_codes = boundaries.size() + 1;
  for (std::size_t step = n_codes / 2; step > 0; step /= 2) {
    for (std::size_t i = step; i < n_codes; i += 2 * step) *tree++ = boundaries[i - 1];
  }
}

// The product of two f32 is exact in f64.
int bin_of(float y, float bins_per_unit) {
  return static_cast<int>(
      std::nearbyint(static_cast<double>(y) * static_cast<double>(bins_per_unit)));
}

}  // namespace

CodeBins make_code_bins(std::span<const float> boundaries) {
  CodeBins bins;
  for (const float boundary : boundaries) bins.limit = std::max(bins.limit, std::abs(boundary));
  if (bins.limit < kLeastLimit) return bins;
  bins.bins_per_unit = static_cast<float>(kLastBin) / bins.limit;
  std::size_t below = 0;
  for (int bin = -kLastBin; bin <= kLastBin; ++bin) {
    const auto entry = static_cast<std::size_t>((bin + kBinEntries) % kBinEntries);
    bins.codes[entry] = static_cast<std::int32_t>(below);
    bins.boundaries[entry] = std::numeric_limits<float>::infinity();
    if (below == boundaries.size()) continue;
    if (bin_of(boundaries[below], bins.bins_per_unit) != bin) continue;
    bins.boundaries[entry] = boundaries[below++];
  }
  // A second boundary in a bin was passed over, and none behind it was taken.
  bins.is_usable = below == boundaries.size();
  return bins;
}

RotationTables::RotationTables(const Quantizer& from)
    : quantizer(&from),
      head_dim(from.rotation().head_dim()),
      bits(from.spec().bits),
      scale(from.spec().scale),
      rotation(from.rotation().kind()),
      rounds(static_cast<std::size_t>(from.spec().rounds)),
      part_size(rotation == TransformKind::kHadamard ? from.rotation().part_size() : 1),
      factor(rotation == TransformKind::kHadamard ? from.rotation().factor() : 1.0f),
      cas(from.rotation().cas().begin(), from.rotation().cas().end()),
      sign_bits(rounds * head_dim + kLanes),
      matrix(from.rotation().matrix().data()) {
  const std::span<const float> signs = from.rotation().signs();
  for (std::size_t i = 0; i < signs.size(); ++i) {
    sign_bits[i] = std::signbit(signs[i]) ? 0x80000000u : 0u;
  }
  const std::span<const float> values = from.centroids();
  for (std::size_t i = 0; i < std::size(centroids); ++i) centroids[i] = values[i % values.size()];
  const std::vector<float> boundaries = decision_boundaries(values);
  make_search_tree(boundaries, boundary_tree);
  bins = make_code_bins(boundaries);
}

}  // namespace tqcache::codec
