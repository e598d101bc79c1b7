#include "tqcache/codec/quantizer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/rotation.h"

namespace tqcache::codec {

namespace {

using HeadVector = std::array<float, kMaxHeadDim>;
using HeadCodes = std::array<std::uint8_t, kMaxHeadDim>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Result<void> check_centroids(int bits, std::span<const float> centroids) {
  const std::size_t expected = std::size_t{1} << bits;
  if (centroids.size() != expected) {
    return Error{ErrorCode::kCorrupt, "codebook: " + std::to_string(centroids.size()) +
                                          " centroids where " + std::to_string(expected) +
                                          " belong"};
  }
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    // Written so that NaN fails.
    if (!(centroids[i] >= -1.0f && centroids[i] <= 1.0f)) {
      return Error{ErrorCode::kCorrupt,
                   "codebook: centroid " + std::to_string(i) + " outside -1 to 1"};
    }
    if (i > 0 && !(centroids[i - 1] < centroids[i])) {
      return Error{ErrorCode::kCorrupt,
                   "codebook: centroid " + std::to_string(i) + " not above the one before"};
    }
  }
  return {};
}

Result<void> check_finite(std::span<const float> x) {
  const auto bad = std::find_if(x.begin(), x.end(), [](float v) { return !std::isfinite(v); });
  if (bad == x.end()) return {};
  return Error{ErrorCode::kCorrupt,
               "component " + std::to_string(bad - x.begin()) + ": not finite"};
}

// codes[i] = the number of boundaries below y[i], by halving.
//
// All components go through each halving step together, and a table of two gives what is added:
// branches would be unpredictable, and compilers turn simpler code into branches.
// Requires: 2^bits - 1 boundaries, ascending.
void find_codes(std::span<const float> y, std::span<const float> boundaries,
                std::span<std::uint8_t> codes) {
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  for (std::size_t step = (boundaries.size() + 1) / 2; step > 0; step /= 2) {
    const std::array<std::uint8_t, 2> added = {0, static_cast<std::uint8_t>(step)};
    const float* const boundary = boundaries.data() + step - 1;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const bool above = boundary[codes[i]] < y[i];
      codes[i] = static_cast<std::uint8_t>(codes[i] + added[above]);
    }
  }
}

// The size by which y is divided, so that the centroids fit it.
float size_of(ScaleRule rule, float length, std::span<const float> y) {
  if (rule != ScaleRule::kPeak) return length;
  float peak = 0.0f;
  for (const float component : y) peak = std::max(peak, std::abs(component));
  return peak;
}

// The scale, from y divided by its size and from its centroids.
float scale_of(ScaleRule rule, float size, std::span<const float> y, std::span<const float> c) {
  switch (rule) {
    case ScaleRule::kUnbiased:
      return size / lane_dot(y, c);
    case ScaleRule::kNorm:
      return size / std::sqrt(lane_dot(c, c));
    case ScaleRule::kRaw:
    case ScaleRule::kPeak:
    case ScaleRule::kStep:
      break;
  }
  return size;
}

}  // namespace

struct Quantizer::Tables {
  PartSpec spec;
  Rotation rotation;
  std::vector<float> boundaries;  // [2^bits - 1]
};

Result<Quantizer> Quantizer::make(const PartSpec& spec) {
  TQC_TRY(validate(spec));
  return make(spec, lloyd_max_centroids(spec.head_dim, spec.bits));
}

Result<Quantizer> Quantizer::make(const PartSpec& spec, std::span<const float> centroids) {
  TQC_TRY(validate(spec));
  TQC_TRY(check_centroids(spec.bits, centroids));
  Tables tables{spec, Rotation(spec), decision_boundaries(centroids)};
  tables.spec.centroids.assign(centroids.begin(), centroids.end());
  return Quantizer(std::make_shared<const Tables>(std::move(tables)));
}

const PartSpec& Quantizer::spec() const { return tables_->spec; }
const Rotation& Quantizer::rotation() const { return tables_->rotation; }
std::span<const float> Quantizer::centroids() const { return tables_->spec.centroids; }

std::size_t Quantizer::code_bytes() const {
  return packed_size(tables_->rotation.head_dim(), tables_->spec.bits);
}

Result<std::uint16_t> Quantizer::encode(std::span<const float> x,
                                        std::span<std::byte> codes) const {
  assert(x.size() == rotation().head_dim() && codes.size() == code_bytes());
  assert(spec().scale != ScaleRule::kStep);
  TQC_TRY(check_finite(x));
  std::fill(codes.begin(), codes.end(), std::byte{0});
  const float length = std::sqrt(lane_dot(x, x));
  if (length == 0.0f) return std::uint16_t{0};

  HeadVector y_buffer, direction_buffer;
  HeadCodes code_buffer;
  const auto y = std::span(y_buffer).first(x.size());
  const auto direction = std::span(direction_buffer).first(x.size());
  const auto code = std::span(code_buffer).first(x.size());

  rotation().rotate(x, y);
  const float size = size_of(spec().scale, length, y);
  const float inverse_size = 1.0f / size;
  for (float& component : y) component *= inverse_size;
  find_codes(y, tables_->boundaries, code);
  for (std::size_t i = 0; i < y.size(); ++i) direction[i] = tables_->spec.centroids[code[i]];
  const float scale = scale_of(spec().scale, size, y, direction);
  // Written so that NaN fails, and a negative scale from a codebook that points away. An overflowed
  // length is checked too: the transform may then have produced NaN, which kPeak does not notice.
  if (!(length < kInfinity && scale >= 0.0f && f32_to_f16(scale) < kF16Infinity)) {
    return Error{ErrorCode::kUnsupported, "head vector: scale beyond f16"};
  }
  const std::uint16_t scale_f16 = f32_to_f16(scale);
  if (scale_f16 != 0) pack_codes(code, spec().bits, codes);
  return scale_f16;
}

void Quantizer::decode_rotated(std::span<const std::byte> codes, std::uint16_t scale,
                               std::span<float> x) const {
  assert(x.size() == rotation().head_dim() && codes.size() == code_bytes());
  HeadCodes code;
  unpack_codes(codes, spec().bits, std::span(code).first(x.size()));
  const float factor = f16_to_f32(scale);
  const float* const centroid = tables_->spec.centroids.data();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = factor * centroid[code[i]];
}

void Quantizer::decode(std::span<const std::byte> codes, std::uint16_t scale,
                       std::span<float> x) const {
  decode_rotated(codes, scale, x);
  rotation().unrotate(x, x);
}

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
  // If a bin had two boundaries, the second and all after it were skipped.
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
