#pragma once
// codec/map_matrix.h: the values of a linear map that travels with its part, for maps that no seed
// of ours gives: those of other programs (RotationKind::kMatrix).
//
// Spec: docs/reference/codec.md §2.

#include <memory>
#include <span>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"

namespace tqcache::codec {

// An orthogonal matrix has no value above 1, and no normal number of NumPy's is above 13.8. With
// this bound, what is decoded from finite scales is finite.
inline constexpr float kMaxMatrixValue = 16.0f;

// A value: copies share the same numbers. Without any by default.
class MapMatrix {
 public:
  MapMatrix();
  // Not inline: GCC 12 warns of what it takes for uninitialized in aggregates that hold one.
  ~MapMatrix();
  MapMatrix(const MapMatrix&);
  MapMatrix(MapMatrix&&) noexcept;
  MapMatrix& operator=(const MapMatrix&);
  MapMatrix& operator=(MapMatrix&&) noexcept;

  // Shapes: [dim, dim], row i gives component i.
  // Errors: kCorrupt when a value is not finite, or above kMaxMatrixValue in magnitude.
  static Result<MapMatrix> make(AlignedFloats values);

  std::span<const float> values() const;
  const std::shared_ptr<const AlignedFloats>& shared() const { return values_; }

  // Of the same bits: 0 and -0 differ. Takes no time for copies of one.
  bool operator==(const MapMatrix& other) const;

 private:
  explicit MapMatrix(AlignedFloats values);

  std::shared_ptr<const AlignedFloats> values_;
};

}  // namespace tqcache::codec
