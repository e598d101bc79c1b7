#include "tqcache/codec_spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/codec/codebook.h"
#include "tqcache/codec/random.h"
#include "tqcache/error.h"

namespace tqcache::codec {

namespace {

Result<void> check_range(const char* name, int value, int lowest, int highest) {
  if (value >= lowest && value <= highest) return {};
  return Error{ErrorCode::kUnsupported, std::string(name) + " " + std::to_string(value) +
                                            ": outside " + std::to_string(lowest) + " to " +
                                            std::to_string(highest)};
}

// A kind from a file may hold any number.
template <class Kind>
Result<void> check_kind(const char* name, Kind kind, Kind last) {
  if (kind <= last) return {};
  return Error{ErrorCode::kUnsupported,
               std::string(name) + " " + std::to_string(static_cast<int>(kind)) + ": not known"};
}

Result<void> check_matrix(const PartSpec& spec) {
  const std::size_t dim = static_cast<std::size_t>(spec.head_dim);
  const std::size_t expected = spec.rotation == TransformKind::kMatrix ? dim * dim : 0;
  const std::size_t count = spec.matrix.values().size();
  if (count == expected) return {};
  return Error{ErrorCode::kCorrupt, "matrix: " + std::to_string(count) + " values where " +
                                        std::to_string(expected) + " belong"};
}

Result<void> check_step(const PartSpec& spec) {
  if (spec.scale != ScaleRule::kStep) {
    if (spec.step == 0) return {};
    return Error{ErrorCode::kCorrupt, "a step beside another rule of the scale"};
  }
  if (spec.step >= kMinStep && spec.step <= kMaxStep) return {};  // written so that NaN fails
  return Error{ErrorCode::kUnsupported,
               "step " + std::to_string(spec.step) + ": outside 1/64 to 8"};
}

}  // namespace

Result<void> validate(const PartSpec& spec) {
  TQC_TRY(check_range("head_dim", spec.head_dim, kMinPartDim, kMaxHeadDim));
  TQC_TRY(check_range("bits", spec.bits, kMinBits, kMaxBits));
  TQC_TRY(check_kind("rotation", spec.rotation, TransformKind::kMatrix));
  TQC_TRY(check_kind("scale rule", spec.scale, ScaleRule::kStep));
  const int max_rounds = spec.rotation == TransformKind::kHadamard ? kMaxRounds : 1;
  TQC_TRY(check_range("rounds", spec.rounds, 1, max_rounds));
  TQC_TRY(check_step(spec));
  return check_matrix(spec);
}

std::string_view mode_word(Mode mode) {
  switch (mode) {
    case Mode::kMse:
      return "mse";
    case Mode::kProd:
      return "prod";
    case Mode::kMixed:
      return "mixed";
    case Mode::kAffine:
      return "affine";
    case Mode::kTrellis:
      return "trellis";
  }
  return "unknown";
}

// The parts of each mode, and the mode of a list of parts (tqcache/codec_spec.h).

namespace {

std::string count_of(int count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

Result<void> check_head_dim(int head_dim) {
  if (head_dim >= kMinHeadDim && head_dim <= kMaxHeadDim) return {};
  return unsupported("head_dim " + std::to_string(head_dim) + ": outside " +
                     std::to_string(kMinHeadDim) + " to " + std::to_string(kMaxHeadDim));
}

bool is_orthogonal_turn(TransformKind kind) {
  return kind == TransformKind::kHadamard || kind == TransformKind::kDenseQr;
}

// Conditions for the transformed parts of every mode except affine.
Result<void> check_turned(const CodecSpec& spec) {
  const std::string mode = "mode " + std::string(mode_word(spec.mode));
  if (!is_orthogonal_turn(spec.rotation)) {
    return unsupported(mode + " with a map that does not rotate");
  }
  if (spec.scale == ScaleRule::kPeak) return unsupported(mode + " with a peak for scale");
  if (spec.scale == ScaleRule::kStep) return unsupported(mode + " with a step for scale");
  return {};
}

// Part 0 uses the seed itself; part i > 0 the i-th number of the stream that starts at the seed.
std::uint64_t part_seed(std::uint64_t seed, std::size_t part) {
  std::uint64_t result = seed;
  for (std::size_t i = 0; i < part; ++i) result = splitmix64(seed);
  return result;
}

PartSpec turned_part(const CodecSpec& spec, std::size_t index, int first, int n_channels,
                     int bits) {
  return PartSpec{.first = first,
                  .head_dim = n_channels,
                  .bits = bits,
                  .seed = part_seed(spec.seed, index),
                  .rotation = spec.rotation,
                  .rounds = spec.rounds,
                  .scale = spec.scale,
                  .centroids = {}};
}

Result<std::vector<PartSpec>> mse_parts(const CodecSpec& spec) {
  TQC_TRY(check_turned(spec));
  return std::vector<PartSpec>{turned_part(spec, 0, 0, spec.head_dim, spec.bits)};
}

Result<std::vector<PartSpec>> prod_parts(const CodecSpec& spec) {
  TQC_TRY(check_turned(spec));
  if (spec.bits < 2) return unsupported("mode prod with " + count_of(spec.bits, "bit"));
  if (spec.residual != TransformKind::kGaussian && spec.residual != TransformKind::kDenseQr) {
    return unsupported("mode prod with a residual map that is not dense");
  }
  PartSpec residual{.head_dim = spec.head_dim,
                    .bits = 1,
                    .seed = part_seed(spec.seed, 1),
                    .rotation = spec.residual,
                    .scale = ScaleRule::kRaw,
                    .of_residual = true,
                    .centroids = residual_centroids(spec.head_dim, spec.residual)};
  return std::vector<PartSpec>{turned_part(spec, 0, 0, spec.head_dim, spec.bits - 1),
                               std::move(residual)};
}

Result<std::vector<PartSpec>> mixed_parts(const CodecSpec& spec) {
  TQC_TRY(check_turned(spec));
  const int outliers = spec.outlier_channels;
  if (outliers < kMinPartDim || outliers > spec.head_dim - kMinPartDim) {
    return unsupported("mode mixed with " + count_of(outliers, "outlier channel") + " of " +
                       std::to_string(spec.head_dim));
  }
  if (spec.outlier_bits <= spec.bits) {
    return unsupported("mode mixed with " + count_of(spec.outlier_bits, "outlier bit") + " and " +
                       count_of(spec.bits, "regular bit"));
  }
  return std::vector<PartSpec>{turned_part(spec, 0, 0, outliers, spec.outlier_bits),
                               turned_part(spec, 1, outliers, spec.head_dim - outliers, spec.bits)};
}

bool is_group_size(int size) { return size == 32 || size == 64 || size == 128; }

Result<std::vector<PartSpec>> affine_parts(const CodecSpec& spec) {
  const int size = spec.group_size;
  if (!is_group_size(size)) {
    return unsupported("mode affine with groups of " + std::to_string(size) +
                       ": not 32, 64 or 128");
  }
  if (spec.head_dim % size != 0) {
    return unsupported("mode affine with groups of " + std::to_string(size) + ": head_dim " +
                       std::to_string(spec.head_dim) + " is no multiple");
  }
  std::vector<PartSpec> parts;
  for (int first = 0; first < spec.head_dim; first += size) {
    parts.push_back(PartSpec{.first = first,
                             .head_dim = size,
                             .bits = spec.bits,
                             .seed = 0,  // no random numbers are used
                             .rotation = TransformKind::kNone,
                             .scale = ScaleRule::kPeak,
                             .has_bias = true,
                             .centroids = linear_centroids(spec.bits)});
  }
  return parts;
}

// All levels, in units of 128 steps.
std::vector<float> level_centroids() {
  std::vector<float> centroids;
  for (int level = -128; level < 128; ++level) {
    centroids.push_back(static_cast<float>(level) / 128.0f);
  }
  return centroids;
}

Result<std::vector<PartSpec>> trellis_parts(const CodecSpec& spec) {
  if (!is_orthogonal_turn(spec.rotation) && spec.rotation != TransformKind::kNone) {
    return unsupported("mode trellis with a map that does not rotate");
  }
  PartSpec part = turned_part(spec, 0, 0, spec.head_dim, kMaxBits);
  part.scale = ScaleRule::kStep;
  part.step = spec.step;
  part.centroids = level_centroids();
  return std::vector<PartSpec>{std::move(part)};
}

Result<std::vector<PartSpec>> parts_of_mode(const CodecSpec& spec) {
  switch (spec.mode) {
    case Mode::kMse:
      return mse_parts(spec);
    case Mode::kProd:
      return prod_parts(spec);
    case Mode::kMixed:
      return mixed_parts(spec);
    case Mode::kAffine:
      return affine_parts(spec);
    case Mode::kTrellis:
      return trellis_parts(spec);
  }
  return unsupported("mode " + std::to_string(static_cast<int>(spec.mode)) + ": not known");
}

// --- From a list of parts back to its mode

std::string part_name(std::size_t index) { return "part " + std::to_string(index); }

// Conditions for a part of any mode.
Result<void> check_part(int head_dim, const PartSpec& part) {
  TQC_TRY(validate(part));
  if (part.first < 0 || part.first > head_dim - part.head_dim) {
    return corrupt("channels from " + std::to_string(part.first) + " on do not fit head_dim " +
                   std::to_string(head_dim));
  }
  if (part.has_bias && part.rotation != TransformKind::kNone) {
    return corrupt("a bias of rotated channels");
  }
  return {};
}

Result<void> check_tiling(int head_dim, const std::vector<PartSpec>& parts) {
  int next = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].first != next) {
      return corrupt(part_name(i) + ": begins at channel " + std::to_string(parts[i].first) +
                     " where " + std::to_string(next) + " belongs");
    }
    next += parts[i].head_dim;
  }
  if (next == head_dim) return {};
  return corrupt("parts: " + std::to_string(next) + " channels where " + std::to_string(head_dim) +
                 " belong");
}

Result<Mode> check_prod(int head_dim, const std::vector<PartSpec>& parts) {
  const PartSpec& base = parts[0];
  const PartSpec& residual = parts[1];
  if (base.head_dim != head_dim || residual.head_dim != head_dim) {
    return corrupt("part 1: codes the residual of other channels");
  }
  if (base.has_bias || residual.has_bias) return corrupt("part 1: a residual beside a bias");
  if (base.bits == kMaxBits || residual.bits != 1) {
    return corrupt("part 1: a residual of " + count_of(residual.bits, "bit") + " beside " +
                   count_of(base.bits, "bit"));
  }
  return Mode::kProd;
}

Result<Mode> check_trellis(const std::vector<PartSpec>& parts) {
  if (parts.size() != 1)
    return corrupt("parts: one of " + std::to_string(parts.size()) + " with a step");
  if (parts[0].bits != kMaxBits) {
    return corrupt("part 0: levels of " + count_of(parts[0].bits, "bit"));
  }
  if (parts[0].has_bias) return corrupt("part 0: a bias beside a step");
  if (parts[0].centroids != level_centroids()) {
    return corrupt("part 0: centroids that are not the levels");
  }
  return Mode::kTrellis;
}

Result<Mode> check_affine(const std::vector<PartSpec>& parts) {
  const PartSpec& first = parts[0];
  if (!is_group_size(first.head_dim)) {
    return corrupt("part 0: a group of " + std::to_string(first.head_dim));
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const PartSpec& group = parts[i];
    if (!parts[i].has_bias || group.head_dim != first.head_dim || group.bits != first.bits) {
      return corrupt(part_name(i) + ": unlike the groups before");
    }
  }
  return Mode::kAffine;
}

Result<Mode> check_mixed(const std::vector<PartSpec>& parts) {
  if (parts.size() != 2) return corrupt("parts: " + std::to_string(parts.size()) + " rotated ones");
  if (parts[1].has_bias) return corrupt("part 1: a bias where part 0 has none");
  if (parts[0].bits <= parts[1].bits) {
    return corrupt("part 0: not more bits than the regular channels");
  }
  return Mode::kMixed;
}

}  // namespace

Result<std::vector<PartSpec>> make_parts(const CodecSpec& spec) {
  TQC_TRY(check_head_dim(spec.head_dim));
  TQC_TRY(validate(PartSpec{.head_dim = spec.head_dim,
                            .bits = spec.bits,
                            .rotation = spec.rotation,
                            .rounds = spec.rounds,
                            .scale = spec.scale}));
  TQC_TRY_ASSIGN(std::vector<PartSpec> parts, parts_of_mode(spec));
  for (PartSpec& part : parts) {
    TQC_TRY(validate(part));
    if (!part.centroids.empty()) continue;
    part.centroids = lloyd_max_centroids(part.head_dim, part.bits);
  }
  return parts;
}

Result<Mode> mode_of(int head_dim, const std::vector<PartSpec>& parts) {
  TQC_TRY(check_head_dim(head_dim));
  if (parts.empty() || parts.size() > kMaxParts) {
    return corrupt("parts: " + std::to_string(parts.size()) + " where 1 to " +
                   std::to_string(kMaxParts) + " belong");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Result<void> checked = check_part(head_dim, parts[i]);
    if (!checked) return in_context(part_name(i), checked.error());
    if (parts[i].of_residual && (i != 1 || parts.size() != 2)) {
      return corrupt(part_name(i) + ": a residual, but not the second of two parts");
    }
  }
  const auto has_step = [](const PartSpec& part) { return part.scale == ScaleRule::kStep; };
  const bool is_trellis = std::ranges::any_of(parts, has_step);
  if (parts.size() == 2 && parts[1].of_residual && !is_trellis) return check_prod(head_dim, parts);
  TQC_TRY(check_tiling(head_dim, parts));
  if (is_trellis) return check_trellis(parts);
  if (parts[0].has_bias) return check_affine(parts);
  if (parts.size() == 1) return Mode::kMse;
  return check_mixed(parts);
}

TransformMatrix::TransformMatrix() = default;
TransformMatrix::~TransformMatrix() = default;
TransformMatrix::TransformMatrix(const TransformMatrix&) = default;
TransformMatrix::TransformMatrix(TransformMatrix&&) noexcept = default;
TransformMatrix& TransformMatrix::operator=(const TransformMatrix&) = default;
TransformMatrix& TransformMatrix::operator=(TransformMatrix&&) noexcept = default;

TransformMatrix::TransformMatrix(AlignedFloats values)
    : values_(std::make_shared<const AlignedFloats>(std::move(values))) {}

Result<TransformMatrix> TransformMatrix::make(AlignedFloats values) {
  if (values.empty()) return TransformMatrix();
  // Written so that NaN fails.
  const auto fits = [](float value) { return std::abs(value) <= kMaxMatrixValue; };
  const auto bad = std::ranges::find_if_not(values, fits);
  if (bad != values.end()) {
    return Error{ErrorCode::kCorrupt,
                 "matrix: value " + std::to_string(bad - values.begin()) + " outside -16 to 16"};
  }
  return TransformMatrix(std::move(values));
}

std::span<const float> TransformMatrix::values() const {
  return values_ ? std::span<const float>(*values_) : std::span<const float>();
}

bool TransformMatrix::operator==(const TransformMatrix& other) const {
  if (values_ == other.values_) return true;
  const std::span<const float> a = values(), b = other.values();
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

PackedLayout head_layout(const std::vector<PartSpec>& parts, BlockOrder order) {
  PackedLayout layout;
  layout.n_scale_rows = parts.size();
  for (const PartSpec& part : parts) {
    const BlockShape shape{part.head_dim, part.bits, order};
    const std::size_t bias_row = part.has_bias ? layout.n_scale_rows++ : 0;
    layout.parts.push_back({shape, layout.code_bytes, bias_row});
    layout.code_bytes += shape.block_bytes();
  }
  return layout;
}

}  // namespace tqcache::codec
