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

}  // namespace

Result<void> validate(const CodecSpec& spec) {
  TQC_TRY(check_range("head_dim", spec.head_dim, kMinHeadDim, kMaxHeadDim));
  return check_range("bits", spec.bits, kMinBits, kMaxBits);
}

}  // namespace tqcache::codec
