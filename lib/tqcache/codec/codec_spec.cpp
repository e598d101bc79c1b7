#include "tqcache/codec/codec_spec.h"

#include <string>

namespace tqcache::codec {
namespace {

Result<void> check_range(const char* name, int value, int lowest, int highest) {
  if (value >= lowest && value <= highest) return {};
  return Error{ErrorCode::kUnsupported, std::string(name) + " " + std::to_string(value) +
                                            ": outside " + std::to_string(lowest) + " to " +
                                            std::to_string(highest)};
}

// Kinds may come from a file, and then hold any number.
template <class Kind>
Result<void> check_kind(const char* name, Kind kind, Kind last) {
  if (kind <= last) return {};
  return Error{ErrorCode::kUnsupported,
               std::string(name) + " " + std::to_string(static_cast<int>(kind)) + ": not known"};
}

Result<void> check_matrix(const QuantizerSpec& spec) {
  const std::size_t dim = static_cast<std::size_t>(spec.head_dim);
  const std::size_t expected = spec.rotation == TransformKind::kMatrix ? dim * dim : 0;
  const std::size_t count = spec.matrix.values().size();
  if (count == expected) return {};
  return Error{ErrorCode::kCorrupt, "matrix: " + std::to_string(count) + " values where " +
                                        std::to_string(expected) + " belong"};
}

Result<void> check_step(const QuantizerSpec& spec) {
  if (spec.scale != ScaleRule::kStep) {
    if (spec.step == 0) return {};
    return Error{ErrorCode::kCorrupt, "a step beside another rule of the scale"};
  }
  if (spec.step >= kMinStep && spec.step <= kMaxStep) return {};  // so that NaN fails
  return Error{ErrorCode::kUnsupported,
               "step " + std::to_string(spec.step) + ": outside 1/64 to 8"};
}

}  // namespace

Result<void> validate(const QuantizerSpec& spec) {
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

}  // namespace tqcache::codec
