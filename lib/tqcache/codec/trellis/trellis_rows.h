#pragma once
// codec/trellis/trellis_rows.h: head vectors of a token block to the codes and scales of mode
// trellis.
//
// What the other modes find after the codes, the scale, is fixed before them here: it is the
// vector's length times the codec's step, so that a level stands for the same share of every vector
// and the rate does not depend on how long it is. It gets three bits of mantissa and no more: what
// a step is exactly does not matter to who looks for the codes afterwards, and a byte is enough.
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
// or more where it is beyond f16.
std::uint16_t step_scale(float length, std::size_t dim, float step);

// What vectors are multiplied by before their codes are looked for: the share of a code's variance
// that is the vector's, and not the step's. Fewer bits, for an error that grows by less; and what a
// model predicts changes less with keys and values that are too short than too long.
float step_shrink(float step);

// What brings the turned vector to levels, shrunk: 128 over the scale, times that; or 0 where there
// are none, because the scale is 0 or beyond f16.
float levels_of_step(std::uint16_t scale, float step);

// Encodes rows. A vector whose scale rounds to 0 gets code 0 throughout, and
// so do tokens from the last row on.
//
// Shapes: rows [n, dim], n 1 to 256; block [BlockShape{dim, 8, order}.block_bytes()]; scales [256].
// Requires: the rule of the scale is kStep; all values are finite.
// Errors:   kUnsupported when a scale is beyond f16; the message begins with the token's number in
//           the block. Block and scales then hold nothing of use.
// Bytes:    identical on every CPU.
Result<void> encode_trellis_rows(const RotationTables& tables, std::span<const float> rows,
                                 BlockOrder order, const Kernels& kernels,
                                 std::span<std::byte> block, std::span<std::uint16_t> scales);

}  // namespace tqcache::codec
