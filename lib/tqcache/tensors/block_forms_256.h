#pragma once
// tensors/block_forms_256.h: blocks of 256 values, whose runs of 16 or 32 have small whole numbers,
// the steps, times one f16 as their scales (tensors/block_forms.h says what a form is).
//
// Codes of fewer bits than a byte stand above each other: bits 0 and 1 of 32 bytes are those of one
// group, bits 2 and 3 of the same bytes those of the next.

#include <cstddef>
#include <cstdint>

#include "tqcache/tensors/block_forms_32.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors::forms {

// Of every run a signed byte, eight to a word, the first in its lowest byte. Words, since bytes
// that are stored one by one and loaded together cost more than all the rest.
template <std::size_t kRuns>
struct Steps {
  std::uint64_t scale[kRuns / 8];
  std::uint64_t minimum[kRuns / 8];  // 0 in forms without minimum
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

// The same, put on top of a code of `place` bits.
TQC_FORM_INLINE void add_bits(const std::byte* bytes, std::size_t shift, std::size_t n,
                              std::size_t place, std::uint8_t* code) {
  std::uint8_t upper[kGroup];
  load_bits(bytes, shift, n, upper);
  for (std::size_t i = 0; i < kGroup; ++i) {
    code[i] = static_cast<std::uint8_t>(code[i] | (upper[i] << place));
  }
}

// What all of them have. Of the form itself: kScaleAt, where its f16 stands, kMinimumAt, where the
// f16 of the minimum does, and steps().
template <class Form, TensorType kTheType, std::size_t kTheBytes, std::size_t kTheRun,
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
    const Steps<kRuns> steps = Form::steps(block);
    const float scale = load_half(block + Form::kScaleAt);
    float minimum = 0;
    if constexpr (kWithMinimum) minimum = load_half(block + Form::kMinimumAt);
    Scales<kRuns> scales;
    for (std::size_t i = 0; i < kRuns; ++i) {
      scales.scale[i] = scale * step_at(steps.scale, i);
      scales.minimum[i] = minimum * step_at(steps.minimum, i);
    }
    return scales;
  }
};

struct Q2_K : Form256<Q2_K, TensorType::kQ2_K, 84, 16, 0, true> {
  static constexpr std::size_t kStepsAt = 0;  // [16] four bits each of scale and minimum
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
  static constexpr std::size_t kBitsAt = 0;  // bit g of byte i: the third one of code i of group g
  static constexpr std::size_t kCodesAt = 32;
  static constexpr std::size_t kStepsAt = 96;
  static constexpr std::size_t kScaleAt = 108;

  // Six bits less 32. The lower four of steps 0 to 7 are the lower halves of eight bytes, those of
  // 8 to 15 the upper ones; four bytes hold the upper two of steps i, i + 4, i + 8 and i + 12.
  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    constexpr std::uint64_t kFour = 0x0f0f0f0f0f0f0f0f, kTwo = 0x3030303030303030;
    const auto lower = load<std::uint64_t>(block + kStepsAt);
    const std::uint64_t upper = load<std::uint32_t>(block + kStepsAt + 8);
    const std::uint64_t first = upper << 4 | upper << 34, last = upper | (upper >> 2) << 32;
    return {
        {less_32((lower & kFour) | (first & kTwo)), less_32((lower >> 4 & kFour) | (last & kTwo))},
        {}};
  }

  // Of eight numbers of six bits: without the sixth, which becomes the sign.
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

// Six bits each of eight scales and minima: of the first four whole in eight bytes, whose upper two
// bits belong to the other four; their lower four stand in four bytes more.
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
  static constexpr std::size_t kBitsAt = 16;  // bit g of byte i: the fifth one of code i of group g
  static constexpr std::size_t kCodesAt = 48;

  TQC_FORM_INLINE Steps<kRuns> steps(const std::byte* block) {
    return load_six_bit_steps(block + kStepsAt);
  }

  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t g, std::uint8_t* code) {
    load_bits(block + kCodesAt + g / 2 * kGroup, g % 2 * 4, 4, code);
    add_bits(block + kBitsAt, g, 1, 4, code);
  }
};

// Groups g, g + 1, g + 2 and g + 3 of half a block: the lower four bits of the first two stand in
// 64 bytes, those of the last two above them.
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

}  // namespace tqcache::tensors::forms
