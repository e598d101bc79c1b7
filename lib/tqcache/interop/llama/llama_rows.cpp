#include "tqcache/interop/llama/llama_rows.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "tqcache/base/half.h"
#include "tqcache/bytes.h"
#include "tqcache/tensors/block_layouts.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::interop {
namespace {

constexpr std::size_t kBlockValues = 32;
constexpr std::size_t kHalfBlock = kBlockValues / 2;

enum Id : std::uint32_t {
  kF32Id = 0,
  kF16Id = 1,
  kQ4_0Id = 2,
  kQ4_1Id = 3,
  kQ5_0Id = 6,
  kQ5_1Id = 7,
  kQ8_0Id = 8,
  kIq4NlId = 20,
  kBF16Id = 30,
};

constexpr std::array kRowTypes = {
    LlamaRowType{kF32Id, "f32", 1, 4, Dtype::kF32},
    LlamaRowType{kF16Id, "f16", 1, 2, Dtype::kF16},
    LlamaRowType{kQ4_0Id, "q4_0", 32, 18, std::nullopt},
    LlamaRowType{kQ4_1Id, "q4_1", 32, 20, std::nullopt},
    LlamaRowType{kQ5_0Id, "q5_0", 32, 22, std::nullopt},
    LlamaRowType{kQ5_1Id, "q5_1", 32, 24, std::nullopt},
    LlamaRowType{kQ8_0Id, "q8_0", 32, 34, std::nullopt},
    LlamaRowType{kIq4NlId, "iq4_nl", 32, 18, std::nullopt},
    LlamaRowType{kBF16Id, "bf16", 1, 2, Dtype::kBF16},
};

using tensors::layouts::kIq4NlValues;

using ConstValues = std::span<const float, kBlockValues>;
using BlockCodes = std::array<std::uint8_t, kBlockValues>;

template <class T>
void put(std::span<std::byte> block, std::size_t offset, T value) {
  std::memcpy(block.data() + offset, &value, sizeof(value));
}

void put_half(std::span<std::byte> block, std::size_t offset, float value) {
  put(block, offset, f32_to_f16(value));
}

// The nibbles of a GGML block: the lower ones hold the first half of the values.
void put_nibbles(const BlockCodes& codes, std::span<std::byte> bytes) {
  for (std::size_t j = 0; j < kHalfBlock; ++j) {
    bytes[j] = std::byte((codes[j] & 15u) | ((codes[kHalfBlock + j] & 15u) << 4));
  }
}

// Bit j of the word is the fifth bit of code j.
std::uint32_t fifth_bits(const BlockCodes& codes) {
  std::uint32_t word = 0;
  for (std::size_t j = 0; j < kBlockValues; ++j) {
    word |= static_cast<std::uint32_t>((codes[j] >> 4) & 1u) << j;
  }
  return word;
}

// For a value outside the integer range (infinite and NaN values, or a scale whose inverse is
// infinite) C leaves the conversion undefined, and x86 returns 0. So does this function.
std::uint8_t cut_to_code(float value, std::uint8_t largest) {
  if (!(value >= 0 && value < 256)) return 0;
  return std::min(largest, static_cast<std::uint8_t>(value));
}

// The value farthest from zero, with its sign; the first of equals.
float farthest(ConstValues values) {
  float distance = 0;
  float found = 0;
  for (const float value : values) {
    if (std::fabs(value) > distance) {
      distance = std::fabs(value);
      found = value;
    }
  }
  return found;
}

float inverse_or_zero(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

// q4_0 and q5_0: codes around `middle`; the value farthest from zero gets the lowest code.
float encode_symmetric(ConstValues values, int middle, BlockCodes& codes) {
  const float scale = farthest(values) / static_cast<float>(-middle);
  const float inverse = inverse_or_zero(scale);
  const float lift = static_cast<float>(middle) + 0.5f;
  const auto largest = static_cast<std::uint8_t>(2 * middle - 1);
  for (std::size_t j = 0; j < kBlockValues; ++j) {
    codes[j] = cut_to_code(values[j] * inverse + lift, largest);
  }
  return scale;
}

struct ScaleAndLowest {
  float scale;
  float lowest;
};

// q4_1 and q5_1: codes start at the lowest value.
ScaleAndLowest encode_from_lowest(ConstValues values, std::uint8_t largest, BlockCodes& codes) {
  float low = std::numeric_limits<float>::max();
  float high = -low;
  for (const float value : values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const float scale = (high - low) / static_cast<float>(largest);
  const float inverse = inverse_or_zero(scale);
  for (std::size_t j = 0; j < kBlockValues; ++j) {
    codes[j] = cut_to_code((values[j] - low) * inverse + 0.5f, largest);
  }
  return {scale, low};
}

void encode_q4_0(ConstValues values, std::span<std::byte> block) {
  BlockCodes codes;
  put_half(block, 0, encode_symmetric(values, 8, codes));
  put_nibbles(codes, block.subspan(2));
}

void encode_q4_1(ConstValues values, std::span<std::byte> block) {
  BlockCodes codes;
  const auto [scale, lowest] = encode_from_lowest(values, 15, codes);
  put_half(block, 0, scale);
  put_half(block, 2, lowest);
  put_nibbles(codes, block.subspan(4));
}

void encode_q5_0(ConstValues values, std::span<std::byte> block) {
  BlockCodes codes;
  put_half(block, 0, encode_symmetric(values, 16, codes));
  put(block, 2, fifth_bits(codes));
  put_nibbles(codes, block.subspan(6));
}

void encode_q5_1(ConstValues values, std::span<std::byte> block) {
  BlockCodes codes;
  const auto [scale, lowest] = encode_from_lowest(values, 31, codes);
  put_half(block, 0, scale);
  put_half(block, 2, lowest);
  put(block, 4, fifth_bits(codes));
  put_nibbles(codes, block.subspan(8));
}

// Halves are rounded away from zero. Values outside the range: as cut_to_code().
std::int8_t round_to_code(float value) {
  const float rounded = std::round(value);
  if (!(rounded >= -128 && rounded <= 127)) return 0;
  return static_cast<std::int8_t>(rounded);
}

void encode_q8_0(ConstValues values, std::span<std::byte> block) {
  const float scale = std::fabs(farthest(values)) / 127.0f;
  const float inverse = inverse_or_zero(scale);
  put_half(block, 0, scale);
  for (std::size_t j = 0; j < kBlockValues; ++j) {
    put(block, 2 + j, round_to_code(values[j] * inverse));
  }
}

// The code with the nearest value; the upper one of two equally near.
std::uint8_t nearest_iq4_nl(float value) {
  std::size_t code = 0;
  for (std::size_t step = 8; step > 0; step /= 2) {
    const int twice_the_middle = kIq4NlValues[code + step - 1] + kIq4NlValues[code + step];
    if (value + value >= static_cast<float>(twice_the_middle)) code += step;
  }
  return static_cast<std::uint8_t>(code);
}

// A GGML block with smaller values counts as zero (ggml-quants.c, GROUP_MAX_EPS).
constexpr float kIq4NlSmallest = 1e-15f;

// Chooses codes with the scale that maps the farthest value to the lowest code; then fits the scale
// to these codes, weighting each value by its square. The codes are not chosen again.
float encode_iq4_nl_codes(ConstValues values, BlockCodes& codes) {
  codes.fill(0);
  const float far = farthest(values);
  if (std::fabs(far) < kIq4NlSmallest) return 0;
  const float inverse = 1 / (far / static_cast<float>(kIq4NlValues[0]));
  float products = 0;
  float squares = 0;
  for (std::size_t j = 0; j < kBlockValues; ++j) {
    codes[j] = nearest_iq4_nl(inverse * values[j]);
    const float weight = values[j] * values[j];
    const auto code_value = static_cast<float>(kIq4NlValues[codes[j]]);
    products += weight * code_value * values[j];
    squares += weight * code_value * code_value;
  }
  return products / squares;
}

void encode_iq4_nl(ConstValues values, std::span<std::byte> block) {
  BlockCodes codes;
  put_half(block, 0, encode_iq4_nl_codes(values, codes));
  put_nibbles(codes, block.subspan(2));
}

void encode_block(std::uint32_t id, ConstValues values, std::span<std::byte> block) {
  switch (id) {
    case kQ4_0Id:
      return encode_q4_0(values, block);
    case kQ4_1Id:
      return encode_q4_1(values, block);
    case kQ5_0Id:
      return encode_q5_0(values, block);
    case kQ5_1Id:
      return encode_q5_1(values, block);
    case kQ8_0Id:
      return encode_q8_0(values, block);
    default:
      return encode_iq4_nl(values, block);
  }
}

constexpr std::size_t kN = kTurboBlock;

// Since its build b9914 the fork has turbo4 with other centroids and without a second number.
constexpr LlamaTurbo kTurboLayouts[] = {
    {"turbo2", 2, 34}, {"turbo3", 3, 50}, {"turbo4", 4, 68}, {"turbo4-66", 4, 66}};
constexpr std::uint64_t kOldTurbo4 = 68;

// The upper half of each codebook in ascending order; the lower half mirrors it.
constexpr std::array kUpper2 = {0.039994f, 0.133462f};
constexpr std::array kUpper3 = {0.021460f, 0.065717f, 0.117832f, 0.190685f};
constexpr std::array kUpper4 = {0.006938f, 0.020989f, 0.035597f, 0.051262f,
                                0.068756f, 0.089527f, 0.117195f, 0.173926f};
constexpr std::array kUpper4New = {0.011349f, 0.034299f, 0.058050f, 0.083292f,
                                   0.111036f, 0.143016f, 0.182877f, 0.241529f};

// Components whose sign flips before and after the Walsh transform: bit i % 64 of word i / 64.
// numpy.random.default_rng(42).choice([-1, 1], 128), drawn twice.
constexpr std::array<std::uint64_t, 2> kBefore = {0x42f85949e46a0359, 0x49f250a9a4c63bbb};
constexpr std::array<std::uint64_t, 2> kAfter = {0x3f628fdc16acee90, 0xbea56562b7a5357a};
constexpr float kInverseRoot = 0.08838834764831845f;  // 1 / sqrt(128)

template <std::size_t kCount>
float look_up(const std::array<float, kCount>& upper, unsigned index) {
  return index >= kCount ? upper[index - kCount] : -upper[kCount - 1 - index];
}

unsigned byte_at(ByteView bytes, std::size_t i) { return std::to_integer<unsigned>(bytes[i]); }

// The codes begin after a norm, and in turbo4 of 68 bytes after two further bytes.
float code2(ByteView block, std::size_t i) {
  return look_up(kUpper2, byte_at(block, 2 + i / 4) >> (2 * (i % 4)) & 3);
}
float code3(ByteView block, std::size_t i) {
  const unsigned low = byte_at(block, 2 + i / 4) >> (2 * (i % 4)) & 3;
  const unsigned high = byte_at(block, 34 + i / 8) >> (i % 8) & 1;
  return look_up(kUpper3, high << 2 | low);
}
float code4(ByteView block, std::size_t i) {
  return look_up(kUpper4, byte_at(block, 4 + i / 2) >> (4 * (i % 2)) & 15);
}

float code4_new(ByteView block, std::size_t i) {
  return look_up(kUpper4New, byte_at(block, 2 + i / 2) >> (4 * (i % 2)) & 15);
}

// The second number of a turbo4 block of 68 bytes used to be the norm of the residual; later it was
// zero.
bool has_residual(const LlamaTurbo& turbo, ByteView block) {
  return turbo.block_bytes == kOldTurbo4 && (byte_at(block, 2) | byte_at(block, 3)) != 0;
}

void flip_signs(const std::array<std::uint64_t, 2>& signs, std::span<float, kN> x) {
  for (std::size_t i = 0; i < kN; ++i) {
    if ((signs[i / 64] >> (i % 64) & 1) != 0) x[i] = -x[i];
  }
}

void walsh(std::span<float, kN> x) {
  for (std::size_t half = 1; half < kN; half *= 2) {
    for (std::size_t i = 0; i < kN; i += 2 * half) {
      for (std::size_t j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
    }
  }
}

void decode_block(const LlamaTurbo& turbo, ByteView block, std::span<float, kN> x) {
  float norm = 0;
  load_f32(Dtype::kF16, block.data(), {&norm, 1});
  const auto code = turbo.bits == 2                   ? code2
                    : turbo.bits == 3                 ? code3
                    : turbo.block_bytes == kOldTurbo4 ? code4
                                                      : code4_new;
  for (std::size_t i = 0; i < kN; ++i) x[i] = code(block, i) * norm;
  // Inverse direction: the two sign vectors swap places.
  flip_signs(kAfter, x);
  walsh(x);
  for (float& value : x) value *= kInverseRoot;
  flip_signs(kBefore, x);
}

}  // namespace

std::span<const LlamaRowType> row_types() { return kRowTypes; }

const LlamaRowType* find_row_type(std::uint32_t id) {
  const auto found = std::ranges::find(kRowTypes, id, &LlamaRowType::id);
  return found == kRowTypes.end() ? nullptr : &*found;
}

const LlamaRowType* find_row_type(std::string_view name) {
  const auto found = std::ranges::find(kRowTypes, name, &LlamaRowType::name);
  return found == kRowTypes.end() ? nullptr : &*found;
}

std::uint64_t row_bytes(const LlamaRowType& type, std::uint64_t n_values) {
  assert(n_values % type.block_values == 0);
  return n_values / type.block_values * type.block_bytes;
}

void decode_row(const LlamaRowType& type, ByteView row, std::span<float> values) {
  if (type.dense) return load_f32(*type.dense, row.data(), values);
  tensors::find_block_type(tensors::find_ggml_type(type.id)->type)->widen(row.data(), values);
}

void encode_row(const LlamaRowType& type, std::span<const float> values, std::span<std::byte> row) {
  if (type.dense) return store_f32(*type.dense, values, row.data());
  const std::size_t n_blocks = values.size() / kBlockValues;
  for (std::size_t i = 0; i < n_blocks; ++i) {
    encode_block(type.id, values.subspan(i * kBlockValues).first<kBlockValues>(),
                 row.subspan(i * type.block_bytes, type.block_bytes));
  }
}

const LlamaTurbo* find_llama_turbo(std::string_view name) {
  const auto* found = std::ranges::find(kTurboLayouts, name, &LlamaTurbo::name);
  return found == std::end(kTurboLayouts) ? nullptr : found;
}

std::uint64_t turbo_row_bytes(const LlamaTurbo& turbo, std::int64_t n_heads,
                              std::int64_t head_dim) {
  const auto blocks = (static_cast<std::uint64_t>(head_dim) + kTurboBlock - 1) / kTurboBlock;
  return static_cast<std::uint64_t>(n_heads) * blocks * turbo.block_bytes;
}

Result<void> decode_turbo_head(const LlamaTurbo& turbo, ByteView blocks, std::span<float> values) {
  std::array<float, kN> x;
  for (std::size_t i = 0; i * kN < values.size(); ++i) {
    const ByteView block = blocks.subspan(i * turbo.block_bytes, turbo.block_bytes);
    if (has_residual(turbo, block)) {
      return unsupported("turbo4 with residuals, an older layout");
    }
    decode_block(turbo, block, x);
    const std::span<float> part = values.subspan(i * kN, std::min(kN, values.size() - i * kN));
    std::copy_n(x.begin(), part.size(), part.begin());
  }
  return {};
}

}  // namespace tqcache::interop
