#pragma once
// interop/wide_bf16.h: bf16 values as f32, for programs that do not have them, and back.

#include <cstddef>
#include <span>

#include "tqcache/base/aligned.h"

namespace tqcache::interop {

// Makes `values` twice as long: every bf16 an f32 of the same value, bit for bit also of a NaN.
void widen_bf16(AlignedBytes& values);

// `wide` holds f32 values, and `narrow` takes half as many bytes. What widen_bf16() made comes back
// bit for bit; other values are rounded (base/half.h).
void narrow_to_bf16(std::span<const std::byte> wide, std::span<std::byte> narrow);

}  // namespace tqcache::interop
