// Packed codes are one little-endian stream of bits, least significant first
// (docs/reference/codec.md §5).

#include <gtest/gtest.h>

#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::codec {
namespace packing_test {

using Codes = std::vector<std::uint8_t>;

std::vector<int> packed_values(const Codes& codes, int bits) {
  std::vector<std::byte> packed(packed_size(codes.size(), bits), std::byte{0xee});
  pack_codes(codes, bits, packed);
  std::vector<int> values;
  for (const std::byte value : packed) values.push_back(std::to_integer<int>(value));
  return values;
}

Codes random_codes(std::size_t count, int bits, std::uint64_t seed) {
  test::SplitMix64 random(seed);
  Codes codes(count);
  for (std::uint8_t& code : codes) {
    code = static_cast<std::uint8_t>(random.below(std::uint64_t{1} << bits));
  }
  return codes;
}

TEST(Packing, PutsTheFirstCodeInTheLowestBits) {
  EXPECT_EQ(packed_values({1, 0, 1, 1, 0, 0, 0, 1}, 1), (std::vector{0b10001101}));
  EXPECT_EQ(packed_values({3, 2, 1, 0}, 2), (std::vector{0b00'01'10'11}));
  EXPECT_EQ(packed_values({0xa, 0x3, 0xf, 0x0}, 4), (std::vector{0x3a, 0x0f}));
  EXPECT_EQ(packed_values({0x12, 0xfe}, 8), (std::vector{0x12, 0xfe}));
}

// The worked example of docs/reference/codec.md §5.
TEST(Packing, LetsACodeStraddleTwoBytes) {
  EXPECT_EQ(packed_values({1, 2, 3, 4, 5, 6, 7, 0}, 3), (std::vector{0xd1, 0x58, 0x1f}));
}

TEST(Packing, LeavesUnusedHighBitsZero) {
  EXPECT_EQ(packed_values({7, 7, 7}, 3), (std::vector{0xff, 0x01}));
  EXPECT_EQ(packed_values({1}, 1), (std::vector{0x01}));
}

TEST(Packing, FollowsTheBitStreamForEveryWidth) {
  for (int bits = 1; bits <= 8; ++bits) {
    const Codes codes = random_codes(101, bits, 9);
    const std::vector<int> packed = packed_values(codes, bits);
    std::vector<int> expected(packed.size(), 0);
    for (std::size_t n = 0; n < codes.size() * static_cast<std::size_t>(bits); ++n) {
      const std::size_t width = static_cast<std::size_t>(bits);
      const int bit = (codes[n / width] >> (n % width)) & 1;
      expected[n / 8] |= bit << (n % 8);
    }
    EXPECT_EQ(packed, expected) << bits << " bits";
  }
}

TEST(Packing, RoundTripsEveryWidthAndLength) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::size_t count = 0; count <= 130; ++count) {
      const Codes codes = random_codes(count, bits, count);
      std::vector<std::byte> packed(packed_size(count, bits));
      pack_codes(codes, bits, packed);
      Codes back(count);
      unpack_codes(packed, bits, back);
      ASSERT_EQ(back, codes) << bits << " bits, " << count << " codes";
    }
  }
}

TEST(Packing, DoesNotLookAtUnusedBits) {
  const std::vector<std::byte> packed = {std::byte{0xff}, std::byte{0xff}};
  Codes codes(3);
  unpack_codes(packed, 3, codes);
  EXPECT_EQ(codes, (Codes{7, 7, 7}));
}

}  // namespace packing_test
}  // namespace tqcache::codec
