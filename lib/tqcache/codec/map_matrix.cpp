#include "tqcache/codec/map_matrix.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tqcache::codec {

MapMatrix::MapMatrix() = default;
MapMatrix::~MapMatrix() = default;
MapMatrix::MapMatrix(const MapMatrix&) = default;
MapMatrix::MapMatrix(MapMatrix&&) noexcept = default;
MapMatrix& MapMatrix::operator=(const MapMatrix&) = default;
MapMatrix& MapMatrix::operator=(MapMatrix&&) noexcept = default;

MapMatrix::MapMatrix(AlignedFloats values, const Sha256& digest)
    : values_(std::make_shared<const AlignedFloats>(std::move(values))), digest_(digest) {}

Result<MapMatrix> MapMatrix::make(AlignedFloats values) {
  if (values.empty()) return MapMatrix();
  // Written so that NaN fails.
  const auto fits = [](float value) { return std::abs(value) <= kMaxMatrixValue; };
  const auto bad = std::ranges::find_if_not(values, fits);
  if (bad != values.end()) {
    return Error{ErrorCode::kCorrupt,
                 "matrix: value " + std::to_string(bad - values.begin()) + " outside -16 to 16"};
  }
  const Sha256 digest = sha256(std::as_bytes(std::span(values)));
  return MapMatrix(std::move(values), digest);
}

std::span<const float> MapMatrix::values() const {
  return values_ ? std::span<const float>(*values_) : std::span<const float>();
}

}  // namespace tqcache::codec
