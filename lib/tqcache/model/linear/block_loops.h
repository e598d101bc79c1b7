#pragma once
// model/linear/block_loops.h: the reference quantization of a vector for products with GGML blocks.
//
// Forced inline, as in model/linear/kernel_loops.h.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model::loops {

// The index of a group's first code in a part, and of its first lane in one kind of sums.
template <class Code>
TQC_INLINE std::size_t code_place(std::size_t group, std::size_t part) {
  return (group / kStepGroups * kStepParts<Code> + part) * kPartCodes<Code> +
         group % kStepGroups * kGroupCodes<Code>;
}
TQC_INLINE std::size_t sum_place(std::size_t group, std::size_t kind) {
  return (group / kStepGroups * kStepSums + kind) * kStepLanes + group % kStepGroups * kGroupLanes;
}

// The place of value i of a group, counted from the place of its value 0.
template <class Code>
TQC_INLINE constexpr std::size_t place_in_group(std::size_t i) {
  constexpr std::size_t kApart = sizeof(Code);  // values that are neighbours in a part
  const std::size_t part = i / 16 * kApart + i % kApart;
  return part * kPartCodes<Code> + i % 16 / kApart;
}

// x from the start of a round.
template <class Code>
TQC_INLINE QuantizedView<Code> round_of(const QuantizedView<Code>& x, std::size_t round) {
  const std::size_t group = round * kRoundGroups;
  return {x.codes + code_place<Code>(group, 0), x.minus_sums + sum_place(group, 0),
          x.scales + group};
}

// How far a kernel reads behind a row whose last groups it reads `kAtOnce` at a time.
template <class Layout, std::size_t kAtOnce>
TQC_INLINE constexpr std::size_t bytes_behind(std::size_t n_groups) {
  const std::size_t n_absent = (kAtOnce - n_groups % kAtOnce) % kAtOnce;
  return Layout::kValues == kGroup ? n_absent * Layout::kBytes : 0;
}

// Rows follow each other, and are fetched this many bytes ahead: a processor alone stops at the
// border of a page.
TQC_INLINE void fetch_ahead(const std::byte* row, std::size_t n_bytes) {
  constexpr std::size_t kAhead = 4096;
  for (std::size_t at = 0; at < n_bytes; at += 64) __builtin_prefetch(row + kAhead + at, 0, 3);
}

inline constexpr std::uint32_t kNotFinite = 0x7f800000;  // bits of infinity; those of NaN are above
inline constexpr std::uint32_t kTiny = 27u << 23;        // bits of 2^-100

struct GroupScale {
  float scale;
  float inverse;
};

// `largest` holds the bits of the largest magnitude of the group.
template <class Code>
TQC_INLINE GroupScale group_scale(std::uint32_t largest) {
  if (largest >= kNotFinite) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  if (largest < kTiny) return {0.0f, 0.0f};
  constexpr float kLargestCode = std::numeric_limits<Code>::max();
  const float magnitude = std::bit_cast<float>(largest);
  return {magnitude / kLargestCode, kLargestCode / magnitude};
}

TQC_INLINE std::uint32_t largest_magnitude(const float* x) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Rounds to the nearest integer, ties to even: adding 1.5 * 2^23 (kExpRound) leaves it in the low
// bits.
TQC_INLINE std::int32_t round_code(float value) {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value + kExpRound) -
                                   std::bit_cast<std::uint32_t>(kExpRound));
}

template <class Code>
TQC_INLINE void quantize_group(const float* x, std::size_t group, Code* codes,
                               std::int32_t* minus_sums, float* scales) {
  const GroupScale scale = group_scale<Code>(largest_magnitude(x));
  scales[group] = scale.scale;
  std::int32_t code[kGroup] = {};
  if (scale.inverse != 0) {
    for (std::size_t i = 0; i < kGroup; ++i) code[i] = round_code(x[i] * scale.inverse);
  }
  constexpr std::size_t kApart = sizeof(Code);  // as in place_in_group
  for (std::size_t part = 0; part < kStepParts<Code>; ++part) {
    const std::int32_t* const from = code + part / kApart * (kGroup / 2) + part % kApart;
    Code* const to = codes + code_place<Code>(group, part);
    for (std::size_t i = 0; i < kGroupCodes<Code>; ++i) to[i] = static_cast<Code>(from[kApart * i]);
  }
  std::int32_t* const first = minus_sums + sum_place(group, 0);
  std::int32_t* const second = minus_sums + sum_place(group, 1);
  std::int32_t* const both = minus_sums + sum_place(group, 2);
  for (std::size_t l = 0; l < kGroupLanes; ++l) {
    const std::int32_t* const a = code + 4 * l;
    const std::int32_t* const b = a + kGroup / 2;
    first[l] = -(a[0] + a[1] + a[2] + a[3]);
    second[l] = -(b[0] + b[1] + b[2] + b[3]);
    both[l] = first[l] + second[l];
  }
}

template <class Code>
TQC_INLINE void quantize(const float* x, std::size_t n_groups, Code* codes,
                         std::int32_t* minus_sums, float* scales) {
  std::size_t group = 0;
  for (; group < n_groups; ++group) {
    quantize_group(x + group * kGroup, group, codes, minus_sums, scales);
  }
  constexpr float kZeros[kGroup] = {};
  for (; group % kRoundGroups != 0; ++group) {
    quantize_group(kZeros, group, codes, minus_sums, scales);
  }
}

}  // namespace tqcache::model::loops
