#pragma once
// tensors/block_forms_32.h: blocks of 32 values with one scale (tensors/block_forms.h says what a
// form is).
//
// Halves of a code stand in a byte: the lower ones are values 0 to 15, the upper ones 16 to 31.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/tensors/tensor.h"

// Kernels for a vector unit call these, and must not leave a copy for other processors.
#define TQC_FORM_INLINE [[gnu::always_inline]] static inline

namespace tqcache::tensors::forms {

inline constexpr std::size_t kGroup = 32;  // values

// Of every run of a block.
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

// Codes of four bits.
TQC_FORM_INLINE void load_nibbles(const std::byte* bytes, std::uint8_t* code) {
  for (std::size_t i = 0; i < kGroup / 2; ++i) {
    const auto both = std::to_integer<std::uint8_t>(bytes[i]);
    code[i] = both & 15;
    code[kGroup / 2 + i] = static_cast<std::uint8_t>(both >> 4);
  }
}

// Their fifth bits: bit i of a word is that of code i.
TQC_FORM_INLINE void add_fifth_bits(const std::byte* word, std::uint8_t* code) {
  const auto bits = load<std::uint32_t>(word);
  for (std::size_t i = 0; i < kGroup; ++i) {
    code[i] = static_cast<std::uint8_t>(code[i] | ((bits >> i) & 1u) << 4);
  }
}

// What all of them have: the scale in front, and the minimum, of the other sign, behind it.
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

// What the sixteen codes of iq4_nl stand for (ggml-common.h, kvalues_iq4nl).
inline constexpr std::array<std::int8_t, 16> kIq4NlValues = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Its code here is the value that stands in the table.
struct IQ4_NL : Form32<TensorType::kIQ4_NL, 18, 128, false> {
  static constexpr std::size_t kCodesAt = 2;
  TQC_FORM_INLINE void codes(const std::byte* block, std::size_t, std::uint8_t* code) {
    load_nibbles(block + kCodesAt, code);
    for (std::size_t i = 0; i < kGroup; ++i) {
      code[i] = static_cast<std::uint8_t>(kIq4NlValues[code[i]] + kOffset);
    }
  }
};

}  // namespace tqcache::tensors::forms
