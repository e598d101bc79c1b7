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

}  // namespace

Result<void> validate(const QuantizerSpec& spec) {
  TQC_TRY(check_range("head_dim", spec.head_dim, kMinPartDim, kMaxHeadDim));
  TQC_TRY(check_range("bits", spec.bits, kMinBits, kMaxBits));
  TQC_TRY(check_kind("rotation", spec.rotation, RotationKind::kNone));
  TQC_TRY(check_kind("scale rule", spec.scale, ScaleRule::kPeak));
  const int max_rounds = spec.rotation == RotationKind::kHadamard ? kMaxRounds : 1;
  return check_range("rounds", spec.rounds, 1, max_rounds);
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
  }
  return "unknown";
}

}  // namespace tqcache::codec
