#include "tqcache/interop/llama/llama_turbo.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "tqcache/base/dtype.h"

namespace tqcache::interop {
namespace {

constexpr std::size_t kN = kTurboBlock;

constexpr LlamaTurbo kLayouts[] = {{"turbo2", 2, 34}, {"turbo3", 3, 50}, {"turbo4", 4, 68}};

// The upper half of each codebook, from the inside out; the lower half mirrors it.
constexpr std::array kUpper2 = {0.039994f, 0.133462f};
constexpr std::array kUpper3 = {0.021460f, 0.065717f, 0.117832f, 0.190685f};
constexpr std::array kUpper4 = {0.006938f, 0.020989f, 0.035597f, 0.051262f,
                                0.068756f, 0.089527f, 0.117195f, 0.173926f};

// Which components change their sign before and after the Walsh transform: bit i of word i / 64.
// numpy.random.default_rng(42).choice([-1, 1], 128), drawn twice.
constexpr std::array<std::uint64_t, 2> kBefore = {0x42f85949e46a0359, 0x49f250a9a4c63bbb};
constexpr std::array<std::uint64_t, 2> kAfter = {0x3f628fdc16acee90, 0xbea56562b7a5357a};
constexpr float kInverseRoot = 0.08838834764831845f;  // 1 / sqrt(128)

template <std::size_t kCount>
float look_up(const std::array<float, kCount>& upper, unsigned index) {
  return index >= kCount ? upper[index - kCount] : -upper[kCount - 1 - index];
}

unsigned byte_at(ByteView bytes, std::size_t i) { return std::to_integer<unsigned>(bytes[i]); }

// Where codes stand in a block: after a norm, and in turbo4 two more bytes.
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

// The second number of a turbo4 block was the residual's norm once, and is zero since.
bool has_residual(const LlamaTurbo& turbo, ByteView block) {
  return turbo.bits == 4 && (byte_at(block, 2) | byte_at(block, 3)) != 0;
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
  const auto code = turbo.bits == 2 ? code2 : turbo.bits == 3 ? code3 : code4;
  for (std::size_t i = 0; i < kN; ++i) x[i] = code(block, i) * norm;
  // The way back: the signs trade places.
  flip_signs(kAfter, x);
  walsh(x);
  for (float& value : x) value *= kInverseRoot;
  flip_signs(kBefore, x);
}

}  // namespace

const LlamaTurbo* find_llama_turbo(std::string_view name) {
  const auto* found = std::ranges::find(kLayouts, name, &LlamaTurbo::name);
  return found == std::end(kLayouts) ? nullptr : found;
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
      return Error{ErrorCode::kUnsupported, "turbo4 with residuals, an older layout"};
    }
    decode_block(turbo, block, x);
    const std::span<float> part = values.subspan(i * kN, std::min(kN, values.size() - i * kN));
    std::copy_n(x.begin(), part.size(), part.begin());
  }
  return {};
}

}  // namespace tqcache::interop
