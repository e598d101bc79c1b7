#pragma once
// base/half.h: f16 and bf16 as bit patterns, and their exact conversion from and to f32.
//
// Rounding is to nearest, ties to even, in software: the bits of a file must not depend on
// whether the CPU has a conversion instruction. Infinities stay. A NaN keeps its sign and the
// upper bits of its payload and is made quiet (bf16_to_f32 keeps all its bits), as the instructions
// of x86 and Arm do. No step needs subnormal f32 arithmetic, so a process that flushes subnormals
// to zero gets the same bits.

#include <bit>
#include <cstdint>
#include <optional>

#include "tqcache/bytes.h"

namespace tqcache {

inline constexpr std::uint16_t kF16Infinity = 0x7c00;

// `yes` or `no`, selected with masks. With ?: compilers move the floating-point sum, which could
// trap, behind a branch, and then cannot vectorize a loop of conversions.
inline std::uint32_t select_bits(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t shifted = (half & 0x7fffu) << 13;  // f16 fields at f32 positions
  const std::uint32_t quiet = select_bits(shifted > 0x0f800000u, 0x00400000u, 0u);
  const std::uint32_t special = shifted | 0x7f800000u | quiet;  // infinity or NaN
  const std::uint32_t normal = shifted + (112u << 23);          // exponent bias: f16 15, f32 127
  // Subnormal: 2^-14 with this mantissa, less 2^-14, which is exact.
  const float tiny = std::bit_cast<float>(shifted + (113u << 23)) - 0x1p-14f;
  const std::uint32_t finite =
      select_bits(shifted < 0x00800000u, std::bit_cast<std::uint32_t>(tiny), normal);
  return std::bit_cast<float>(sign | select_bits(shifted >= 0x0f800000u, special, finite));
}

inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t special = select_bits(magnitude > 0x7f800000u, nan, 0x7c00u);
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  // Below 2^-14: adding 0.5, whose last place is 2^-24, lets the FPU round to an f16 subnormal.
  const float lifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t tiny = std::bit_cast<std::uint32_t>(lifted) - 0x3f000000u;
  const std::uint32_t finite = select_bits(magnitude < 0x38800000u, tiny, normal);
  // Values from 65520 up, halfway between 65504 and its successor, round to infinity.
  return static_cast<std::uint16_t>(sign | select_bits(magnitude >= 0x477ff000u, special, finite));
}

inline float bf16_to_f32(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The index of the first value that is infinite or NaN. `packed` may have any alignment.
std::optional<std::size_t> find_not_finite(Dtype dtype, ByteView packed);

}  // namespace tqcache
