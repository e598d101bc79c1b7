#include "tqcache/codec/transform_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace tqcache::codec {

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

}  // namespace tqcache::codec
