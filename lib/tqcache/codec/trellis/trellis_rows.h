#pragma once
// codec/trellis/trellis_rows.h: encoder of mode trellis for the head vectors of a token block.
//
// Other modes compute the scale after the codes. Here it is fixed before them: the vector's length
// times the codec's step. So a level is the same fraction of the length in every vector, and the
// rate does not depend on the length. The scale has only three bits of mantissa: its exact value
// does not matter, because the codes are chosen for it, and so it fits a byte.
//
// Spec: docs/reference/codec.md §10.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/quantizer.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// A scale of mode trellis is an f16 whose lower bits are zero.
inline constexpr int kStepScaleShift = 7;

// The scale of a vector of that length and dim components: f16 bits, rounded to nearest. Infinity
// or more if it is beyond f16.
std::uint16_t step_scale(float length, std::size_t dim, float step);

// The factor for vectors before the search for codes: the fraction of a code's variance that comes
// from the vector and not from the step. It saves bits and adds less error than those bits are
// worth; and a model's predictions change less with keys and values that are too short than too
// long.
float step_shrink(float step);

// The factor from a rotated vector to levels, with that shrinking: 128 / scale * step_shrink(step);
// 0 if the scale is 0 or beyond f16.
float levels_of_step(std::uint16_t scale, float step);

// Encodes rows. A vector whose scale rounds to 0 gets code 0 throughout, and so do tokens after
// the last row.
//
// Shapes: rows [n, dim], n 1 to 256; block [BlockShape{dim, 8, order}.block_bytes()]; scales [256].
// Requires: the scale rule is kStep; all values are finite.
// Errors:   kUnsupported if a scale is beyond f16; the message begins with the token's number in
//           the block. Block and scales are then unusable.
// Bytes:    identical on every CPU.
Result<void> encode_trellis_rows(const RotationTables& tables, std::span<const float> rows,
                                 BlockOrder order, const Kernels& kernels,
                                 std::span<std::byte> block, std::span<std::uint16_t> scales);

}  // namespace tqcache::codec
