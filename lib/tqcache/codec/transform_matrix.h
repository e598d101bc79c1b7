#pragma once
// codec/transform_matrix.h: the values of a linear map that travels with its part, for maps that no
// seed of ours gives: those of other programs (TransformKind::kMatrix).
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
class TransformMatrix {
 public:
  TransformMatrix();
  // Not inline: GCC 12 warns of what it takes for uninitialized in aggregates that hold one.
  ~TransformMatrix();
  TransformMatrix(const TransformMatrix&);
  TransformMatrix(TransformMatrix&&) noexcept;
  TransformMatrix& operator=(const TransformMatrix&);
  TransformMatrix& operator=(TransformMatrix&&) noexcept;

  // Shapes: [dim, dim], row i gives component i.
  // Errors: kCorrupt when a value is not finite, or above kMaxMatrixValue in magnitude.
  static Result<TransformMatrix> make(AlignedFloats values);

  std::span<const float> values() const;
  const std::shared_ptr<const AlignedFloats>& shared() const { return values_; }

  // Of the same bits: 0 and -0 differ. Takes no time for copies of one.
  bool operator==(const TransformMatrix& other) const;

 private:
  explicit TransformMatrix(AlignedFloats values);

  std::shared_ptr<const AlignedFloats> values_;
};

}  // namespace tqcache::codec
