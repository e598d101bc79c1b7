#include "tqcache/codec/map_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace tqcache::codec {

MapMatrix::MapMatrix() = default;
MapMatrix::~MapMatrix() = default;
MapMatrix::MapMatrix(const MapMatrix&) = default;
MapMatrix::MapMatrix(MapMatrix&&) noexcept = default;
MapMatrix& MapMatrix::operator=(const MapMatrix&) = default;
MapMatrix& MapMatrix::operator=(MapMatrix&&) noexcept = default;

MapMatrix::MapMatrix(AlignedFloats values)
    : values_(std::make_shared<const AlignedFloats>(std::move(values))) {}

Result<MapMatrix> MapMatrix::make(AlignedFloats values) {
  if (values.empty()) return MapMatrix();
  // Written so that NaN fails.
  const auto fits = [](float value) { return std::abs(value) <= kMaxMatrixValue; };
  const auto bad = std::ranges::find_if_not(values, fits);
  if (bad != values.end()) {
    return Error{ErrorCode::kCorrupt,
                 "matrix: value " + std::to_string(bad - values.begin()) + " outside -16 to 16"};
  }
  return MapMatrix(std::move(values));
}

std::span<const float> MapMatrix::values() const {
  return values_ ? std::span<const float>(*values_) : std::span<const float>();
}

bool MapMatrix::operator==(const MapMatrix& other) const {
  if (values_ == other.values_) return true;
  const std::span<const float> a = values(), b = other.values();
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace tqcache::codec
