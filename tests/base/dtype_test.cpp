#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/bytes.h"

namespace tqcache {
namespace dtype_test {

constexpr Dtype kAll[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
// Around the size of the pieces in which runs are converted.
constexpr std::size_t kCounts[] = {0, 1, 2, 63, 64, 65, 127, 128, 200};

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.37f * static_cast<float>(i) - 7.0f;
  return values;
}

float rounded(Dtype dtype, float value) {
  if (dtype == Dtype::kF16) return f16_to_f32(f32_to_f16(value));
  if (dtype == Dtype::kBF16) return bf16_to_f32(f32_to_bf16(value));
  return value;
}

TEST(Dtype, IsFoundByItsName) {
  EXPECT_EQ(dtype_name(Dtype::kF32), "f32");
  EXPECT_EQ(dtype_name(Dtype::kF16), "f16");
  EXPECT_EQ(dtype_name(Dtype::kBF16), "bf16");
  for (const Dtype dtype : kAll) EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  for (const char* name : {"", "F16", "f1", "f166", "fp16"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

TEST(Dtype, HasASize) {
  EXPECT_EQ(dtype_size(Dtype::kF32), 4u);
  EXPECT_EQ(dtype_size(Dtype::kF16), 2u);
  EXPECT_EQ(dtype_size(Dtype::kBF16), 2u);
}

TEST(Dtype, RoundsEveryValueOfARunAtAnyAddress) {
  for (const Dtype dtype : kAll) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t offset : {0u, 1u, 3u}) {
        const std::vector<float> values = ramp(count);
        std::vector<std::byte> packed(offset + count * dtype_size(dtype));
        store_f32(dtype, values, packed.data() + offset);
        std::vector<float> loaded(count);
        load_f32(dtype, packed.data() + offset, loaded);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(loaded[i], rounded(dtype, values[i])) << dtype_name(dtype) << ' ' << i;
        }
      }
    }
  }
}

// Runs are converted by instructions where a processor has them: the bits are those of half.h.
TEST(Dtype, ConvertsRunsOfHalvesAsOneByOne) {
  std::vector<std::uint16_t> halves(1u << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  load_f32(Dtype::kBF16, std::as_bytes(std::span(halves)).data(), wide);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::uint32_t{halves[i]} << 16) << i;
  }
  load_f32(Dtype::kF16, std::as_bytes(std::span(halves)).data(), wide);
  std::vector<float> values;  // those of f16, halfway to the next, and beside all of these
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
              std::bit_cast<std::uint32_t>(f16_to_f32(halves[i])))
        << i;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(wide[i]);
    for (const std::uint32_t step : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      values.push_back(std::bit_cast<float>(bits + step));
    }
    values.push_back(wide[i] * 0x1p-13f);  // subnormal f16 in every place, and what rounds to zero
  }
  std::vector<std::uint16_t> stored(values.size());
  store_f32(Dtype::kF16, values, std::as_writable_bytes(std::span(stored)).data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(stored[i], f32_to_f16(values[i])) << std::bit_cast<std::uint32_t>(values[i]);
  }
}

TEST(Dtype, PacksLittleEndian) {
  const std::vector<float> values = {1.0f, -2.0f};
  std::vector<std::byte> packed(4);
  store_f32(Dtype::kBF16, values, packed.data());
  const std::vector<std::byte> expected = {std::byte{0x80}, std::byte{0x3f}, std::byte{0x00},
                                           std::byte{0xc0}};
  EXPECT_EQ(packed, expected);
}

TEST(Dtype, WritesNoByteBesidesTheRun) {
  for (const Dtype dtype : kAll) {
    const std::size_t size = 65 * dtype_size(dtype);
    std::vector<std::byte> packed(size + 2, std::byte{0xee});
    store_f32(dtype, ramp(65), packed.data() + 1);
    EXPECT_EQ(packed.front(), std::byte{0xee});
    EXPECT_EQ(packed.back(), std::byte{0xee});
  }
}

}  // namespace dtype_test
}  // namespace tqcache
