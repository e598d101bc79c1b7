#pragma once
// tensors/block_layouts.h: the layouts of GGML's quantized blocks.
//
// A GGML block has one or eight groups of 32 values. Value i of a block is
//
//   scale[i / kRun] * (code[i] - kOffset) - minimum[i / kRun]
//
// in f32, in this order; layouts without minimum omit the last term. Kernels read codes in their
// own way; codes() here defines the result.
//
//   kType, kValues, kBytes   as in BlockType
//   kRun                     values that share a scale: 16 or 32
//   kOffset                  the code of zero
//   kHasMinimum
//   codes(block, g, code)    the codes of group g, [32]
//   scales(block)            scale and minimum of every run
//
// Source: ggml ggml-common.h (block_q4_0 and the others), ggml-quants.c (dequantize_row_*).

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/tensors/tensor.h"

// SIMD kernels inline these: a separate copy could be compiled for other processors.
#define TQC_FORM_INLINE [[gnu::always_inline]] static inline

namespace tqcache::tensors::layouts {

// --- Blocks of 32 values with one scale
//
// Each byte has two 4-bit codes: the lower halves are values 0 to 15, the upper halves 16 to 31.

inline constexpr std::size_t kGroup = 32;  // values

// One scale and one minimum per run of a block.
template <std::size_t kRuns>
struct Scales {
  float scale[kRuns];
  float minimum[kRuns];
};

template <class T>
TQC_FORM_INLINE T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

TQC_FORM_INLINE float load_half(const std::byte* bytes) {
  return f16_to_f32(load<std::uint16_t>(bytes));
}

// Codes of 4 bits.
TQC_FORM_INLINE void load_nibbles(const std::byte* bytes, std::uint8_t* code) {
  for (std::size_t i = 0; i < kGroup / 2; ++i) {
    const auto both = std::to_integer<std::uint8_t>(bytes[i]);
    code[i] = both & 15;
    code[kGroup / 2 + i] = static_cast<std::uint8_t>(both >> 4);
  }
}

// Adds the fifth bits of these codes: bit i of the integer belongs to code i.
TQC_FORM_INLINE void add_fifth_bits(const std::byte* word, std::uint8_t* code) {
  const auto bits = load<std::uint32_t>(word);
  for (std::size_t i = 0; i < kGroup; ++i) {
    code[i] = static_cast<std::uint8_t>(code[i] | ((bits >> i) & 1u) << 4);
  }
}

// All of them begin with the scale, followed by the negated minimum.
template <TensorType kTheType, std::size_t kTheBytes, int kTheOffset, bool kWithMinimum>
struct Form32 {
  static constexpr TensorType kType = kTheType;
  static constexpr std::size_t kValues = 32;
  static constexpr std::size_t kBytes = kTheBytes;
  static constexpr std::size_t kRun = 32;
  static constexpr int kOffset = kTheOffset;
  static constexpr bool kHasMinimum = kWithMinimum;

  TQC_FORM_INLINE Scales<1> scales(const std::byte* block) {
    return {{load_half(block)}, {kWithMinimum ? -load_half(block + 2) : 0.0f}};
  }
};

struct Q8_0 : Form32<TensorType::kQ8_0, 34, 128, false> {
  static constexpr std::size_t kCodesAt = 2;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    for (std::size_t i = 0; i < kGroup; ++i) {
      code[i] = std::to_integer<std::uint8_t>(block[kCodesAt + i] ^ std::byte{128});
    }
  }
};

struct Q4_0 : Form32<TensorType::kQ4_0, 18, 8, false> {
  static constexpr std::size_t kCodesAt = 2;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
  }
};

struct Q4_1 : Form32<TensorType::kQ4_1, 20, 0, true> {
  static constexpr std::size_t kCodesAt = 4;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
  }
};

struct Q5_0 : Form32<TensorType::kQ5_0, 22, 16, false> {
  static constexpr std::size_t kBitsAt = 2;
  static constexpr std::size_t kCodesAt = 6;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
    add_fifth_bits(block + kBitsAt, code);
  }
};

struct Q5_1 : Form32<TensorType::kQ5_1, 24, 0, true> {
  static constexpr std::size_t kBitsAt = 4;
  static constexpr std::size_t kCodesAt = 8;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
    add_fifth_bits(block + kBitsAt, code);
  }
};

// The values of the sixteen codes of iq4_nl (ggml-common.h, kvalues_iq4nl).
inline constexpr std::array<std::int8_t, 16> kIq4NlValues = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// A code here is the value in the table.
struct IQ4_NL : Form32<TensorType::kIQ4_NL, 18, 128, false> {
  static constexpr std::size_t kCodesAt = 2;
  static constexpr const auto& kTable = kIq4NlValues;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
    for (std::size_t i = 0; i < kGroup; ++i) {
      code[i] = static_cast<std::uint8_t>(kIq4NlValues[code[i]] + kOffset);
    }
  }
};

// Twice the values of the sixteen codes of e2m1, a number of 4 bits (ggml-common.h, kvalues_mxfp4).
inline constexpr std::array<std::int8_t, 16> kMxfp4Values = {0, 1,  2,  3,  4,  6,  8,  12,
                                                             0, -1, -2, -3, -4, -6, -8, -12};

// A code here is the value in the table. The scale is a power of two: 2^(e - 128).
struct MXFP4 : Form32<TensorType::kMXFP4, 17, 16, false> {
  static constexpr std::size_t kCodesAt = 1;
  static constexpr const auto& kTable = kMxfp4Values;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
    for (std::size_t i = 0; i < kGroup; ++i) {
      code[i] = static_cast<std::uint8_t>(kMxfp4Values[code[i]] + kOffset);
    }
  }
  TQC_FORM_INLINE Scales<1> scales(const std::byte* block) { return {{scale(block)}, {0.0f}}; }
  TQC_FORM_INLINE float scale(const std::byte* block) {
    const auto e = std::to_integer<std::uint32_t>(*block);
    return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};

// Forms whose codes are values of a table.
template <class Layout>
concept WithTable = requires {
  Layout::kTable;
};

// --- Blocks of 256 values in runs of 16 or 32. The scale of a run is a small integer (step) times
// one f16.
//
// Codes of fewer than 8 bits share bytes: bits 0 and 1 of 32 bytes are the codes of one group, bits
// 2 and 3 of the same bytes the codes of the next.

// A signed byte per run, eight in each integer, the first in its lowest byte. Integers, because
// storing single bytes and loading them together would cost more than all the rest.
template <std::size_t kRuns>
struct Steps {
  std::uint64_t scale[kRuns / 8];
  std::uint64_t minimum[kRuns / 8];  // 0 in layouts without minimum
};

TQC_FORM_INLINE float step_at(const std::uint64_t* words, std::size_t run) {
  return static_cast<float>(static_cast<std::int8_t>(words[run / 8] >> run % 8 * 8 & 255));
}

// Bits [shift, shift + n) of each of 32 bytes.
TQC_FORM_INLINE void load_bits(const std::byte* bytes, std::size_t shift, std::size_t n,
                               std::uint8_t* code) {
  const auto mask = static_cast<std::uint8_t>((1u << n) - 1u);
  for (std::size_t i = 0; i < kGroup; ++i) {
    code[i] = static_cast<std::uint8_t>(std::to_integer<unsigned>(bytes[i]) >> shift) & mask;
  }
}

// The same bits, added above a code of `place` bits.
TQC_FORM_INLINE void add_bits(const std::byte* bytes, std::size_t shift, std::size_t n,
                              std::size_t place, std::uint8_t* code) {
  std::uint8_t upper[kGroup];
  load_bits(bytes, shift, n, upper);
  for (std::size_t i = 0; i < kGroup; ++i) {
    code[i] = static_cast<std::uint8_t>(code[i] | (upper[i] << place));
  }
}

// The common part of these layouts. A layout itself defines kScaleAt and kMinimumAt, the positions
// of the f16 of scale and minimum, and steps().
template <class Layout, TensorType kTheType, std::size_t kTheBytes, std::size_t kTheRun,
          int kTheOffset, bool kWithMinimum>
struct Form256 {
  static constexpr TensorType kType = kTheType;
  static constexpr std::size_t kValues = 256;
  static constexpr std::size_t kBytes = kTheBytes;
  static constexpr std::size_t kRun = kTheRun;
  static constexpr std::size_t kRuns = kValues / kRun;
  static constexpr int kOffset = kTheOffset;
  static constexpr bool kHasMinimum = kWithMinimum;

  TQC_FORM_INLINE Scales<kRuns> scales(const std::byte* block) {
    const Steps<kRuns> steps = Layout::steps(block);
    const float scale = load_half(block + Layout::kScaleAt);
    float minimum = 0;
    if constexpr (kWithMinimum) minimum = load_half(block + Layout::kMinimumAt);
    Scales<kRuns> scales;
    for (std::size_t i = 0; i < kRuns; ++i) {
      scales.scale[i] = scale * step_at(steps.scale, i);
      scales.minimum[i] = minimum * step_at(steps.minimum, i);
    }
    return scales;
  }
};

struct Q2_K : Form256<Q2_K, TensorType::kQ2_K, 84, 16, 0, true> {
  static constexpr std::size_t kStepsAt = 0;  // [16] 4 bits of scale and 4 of minimum
  static constexpr std::size_t kCodesAt = 16;
  static constexpr std::size_t kScaleAt = 80;
  static constexpr std::size_t kMinimumAt = 82;

  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    constexpr std::uint64_t kFour = 0x0f0f0f0f0f0f0f0f;
    const auto first = load<std::uint64_t>(block + kStepsAt);
    const auto last = load<std::uint64_t>(block + kStepsAt + 8);
    return {{first & kFour, last & kFour}, {first >> 4 & kFour, last >> 4 & kFour}};
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    load_bits(block + kCodesAt + g / 4 * kGroup, g % 4 * 2, 2, code);
  }
};

struct Q3_K : Form256<Q3_K, TensorType::kQ3_K, 110, 16, 4, false> {
  static constexpr std::size_t kBitsAt = 0;  // bit g of byte i: the third bit of code i of group g
  static constexpr std::size_t kCodesAt = 32;
  static constexpr std::size_t kStepsAt = 96;
  static constexpr std::size_t kScaleAt = 108;

  // Six bits, minus 32. The lower four bits of steps 0 to 7 are the lower halves of eight bytes,
  // those of steps 8 to 15 the upper halves; four more bytes have the upper two bits of steps i, i
  // + 4, i + 8 and i + 12.
  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    constexpr std::uint64_t kFour = 0x0f0f0f0f0f0f0f0f, kTwo = 0x3030303030303030;
    const auto lower = load<std::uint64_t>(block + kStepsAt);
    const std::uint64_t upper = load<std::uint32_t>(block + kStepsAt + 8);
    const std::uint64_t first = upper << 4 | upper << 34, last = upper | (upper >> 2) << 32;
    return {
        {less_32((lower & kFour) | (first & kTwo)), less_32((lower >> 4 & kFour) | (last & kTwo))},
        {}};
  }

  // Subtracts 32 from eight 6-bit numbers: flips the sixth bit and extends it as the sign.
  TQC_FORM_INLINE std::uint64_t less_32(std::uint64_t words) {
    constexpr std::uint64_t kSixth = 0x2020202020202020;
    const std::uint64_t lifted = words ^ kSixth;
    const std::uint64_t sign = lifted & kSixth;
    return lifted | sign << 1 | sign << 2;
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    load_bits(block + kCodesAt + g / 4 * kGroup, g % 4 * 2, 2, code);
    add_bits(block + kBitsAt, g, 1, 2, code);
  }
};

// Eight 6-bit scales and eight 6-bit minima: the first four of each are complete in the first eight
// bytes, whose upper two bits belong to the other four; the lower four bits of those are in four
// more bytes.
TQC_FORM_INLINE Steps<8> load_six_bit_steps(const std::byte* bytes) {
  constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x30303030;
  const auto scales = load<std::uint32_t>(bytes);
  const auto minima = load<std::uint32_t>(bytes + 4);
  const auto lower = load<std::uint32_t>(bytes + 8);
  const std::uint64_t last_scales = (lower & kFour) | (scales >> 2 & kTwo);
  const std::uint64_t last_minima = (lower >> 4 & kFour) | (minima >> 2 & kTwo);
  return {{(scales & kSix) | last_scales << 32}, {(minima & kSix) | last_minima << 32}};
}

struct Q4_K : Form256<Q4_K, TensorType::kQ4_K, 144, 32, 0, true> {
  static constexpr std::size_t kScaleAt = 0;
  static constexpr std::size_t kMinimumAt = 2;
  static constexpr std::size_t kStepsAt = 4;
  static constexpr std::size_t kCodesAt = 16;

  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    return load_six_bit_steps(block + kStepsAt);
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    load_bits(block + kCodesAt + g / 2 * kGroup, g % 2 * 4, 4, code);
  }
};

struct Q5_K : Form256<Q5_K, TensorType::kQ5_K, 176, 32, 0, true> {
  static constexpr std::size_t kScaleAt = 0;
  static constexpr std::size_t kMinimumAt = 2;
  static constexpr std::size_t kStepsAt = 4;
  static constexpr std::size_t kBitsAt = 16;  // bit g of byte i: the fifth bit of code i of group g
  static constexpr std::size_t kCodesAt = 48;

  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    return load_six_bit_steps(block + kStepsAt);
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    load_bits(block + kCodesAt + g / 2 * kGroup, g % 2 * 4, 4, code);
    add_bits(block + kBitsAt, g, 1, 4, code);
  }
};

// Groups g, g + 1, g + 2 and g + 3 of half a block: 64 bytes have the lower four bits of the first
// two groups in their lower halves, those of the last two in their upper halves.
struct Q6_K : Form256<Q6_K, TensorType::kQ6_K, 210, 16, 32, false> {
  static constexpr std::size_t kCodesAt = 0;
  static constexpr std::size_t kBitsAt = 128;  // the upper two
  static constexpr std::size_t kStepsAt = 192;
  static constexpr std::size_t kScaleAt = 208;

  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    return {{load<std::uint64_t>(block + kStepsAt), load<std::uint64_t>(block + kStepsAt + 8)}, {}};
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    const std::size_t half = g / 4, quarter = g % 4;
    load_bits(block + kCodesAt + 64 * half + quarter % 2 * kGroup, quarter / 2 * 4, 4, code);
    add_bits(block + kBitsAt + half * kGroup, quarter * 2, 2, 4, code);
  }
};

template <class... Layout>
struct List {
  static constexpr std::size_t kSize = sizeof...(Layout);
};

using All = List<Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4>;

}  // namespace tqcache::tensors::layouts
