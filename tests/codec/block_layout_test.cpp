// Where codes stand in a block (docs/reference/codec.md, "Packed codes").

#include "tqcache/codec/block_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/gaussian.h"

namespace tqcache::codec {
namespace block_layout_test {

using test::SplitMix64;

constexpr int kHeadDims[] = {8, 24, 32, 33, 48, 80, 100, 128, 512, 1024};

std::vector<std::uint8_t> random_codes(std::size_t count, int bits, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::uint8_t> codes(count);
  for (std::uint8_t& code : codes) {
    code = static_cast<std::uint8_t>(random.below(std::uint64_t{1} << bits));
  }
  return codes;
}

std::vector<BlockShape> all_shapes() {
  std::vector<BlockShape> shapes;
  for (const int head_dim : kHeadDims) {
    for (int bits = 1; bits <= 8; ++bits) {
      shapes.push_back({head_dim, bits, BlockOrder::kKeys});
      shapes.push_back({head_dim, bits, BlockOrder::kValues});
    }
  }
  return shapes;
}

std::string name_of(const BlockShape& shape) {
  return std::string(shape.order == BlockOrder::kKeys ? "keys" : "values") + " head_dim " +
         std::to_string(shape.head_dim) + " bits " + std::to_string(shape.bits);
}

TEST(BlockLayout, TakesBitsTimesValuesWhereHeadDimIsAMultipleOfThirtyTwo) {
  for (const int head_dim : {32, 64, 96, 128, 192, 256, 512}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const std::size_t expected = kBlockTokens * static_cast<std::size_t>(head_dim * bits) / 8;
      EXPECT_EQ((BlockShape{head_dim, bits, BlockOrder::kKeys}).block_bytes(), expected);
      EXPECT_EQ((BlockShape{head_dim, bits, BlockOrder::kValues}).block_bytes(), expected);
    }
  }
}

TEST(BlockLayout, CutsTheLastUnitOfKeys) {
  // 80 = 2 * 32 + 16 components: four lines of bytes are left over.
  const auto lines = [](int bits) { return BlockShape{80, bits, BlockOrder::kKeys}.tail_lines(); };
  EXPECT_EQ(lines(1), 1u);
  EXPECT_EQ(lines(2), 1u);
  EXPECT_EQ(lines(3), 2u);
  EXPECT_EQ(lines(4), 2u);
  EXPECT_EQ(lines(5), 3u);
  EXPECT_EQ(lines(6), 3u);
  EXPECT_EQ(lines(7), 4u);
  EXPECT_EQ(lines(8), 4u);
  EXPECT_EQ((BlockShape{80, 4, BlockOrder::kValues}).block_bytes(), 256u * 80u / 2u);
}

TEST(BlockLayout, PackedLinesOfAUnitNeverShrinkAndEndAtBits) {
  for (int bits = 1; bits <= 8; ++bits) {
    EXPECT_EQ(packed_lines(bits, 0), 0u);
    EXPECT_EQ(packed_lines(bits, kUnitLines), static_cast<std::size_t>(bits));
    for (std::size_t n = 1; n <= kUnitLines; ++n) {
      EXPECT_GE(packed_lines(bits, n), packed_lines(bits, n - 1));
    }
  }
}

TEST(BlockLayout, GivesBackEveryCode) {
  for (const BlockShape& shape : all_shapes()) {
    const auto codes = random_codes(kBlockTokens * shape.dim(), shape.bits, 1);
    std::vector<std::byte> block(shape.block_bytes(), std::byte{0xee});
    pack_block(shape, codes, block);
    std::vector<std::uint8_t> unpacked(codes.size(), 0xee);
    unpack_block(shape, block, unpacked);
    EXPECT_EQ(unpacked, codes) << name_of(shape);
  }
}

TEST(BlockLayout, GivesBackTheCodesOfOneToken) {
  for (const BlockShape& shape : all_shapes()) {
    const auto codes = random_codes(kBlockTokens * shape.dim(), shape.bits, 2);
    std::vector<std::byte> block(shape.block_bytes());
    pack_block(shape, codes, block);
    for (const std::size_t token : {0u, 1u, 15u, 16u, 200u, 255u}) {
      std::vector<std::uint8_t> unpacked(shape.dim());
      unpack_token(shape, block, token, unpacked);
      EXPECT_TRUE(std::equal(unpacked.begin(), unpacked.end(),
                             codes.begin() + static_cast<std::ptrdiff_t>(token * shape.dim())))
          << name_of(shape) << " token " << token;
    }
  }
}

TEST(BlockLayout, AnyBytesUnpackToCodesBelowTwoToTheBits) {
  for (const BlockShape& shape : all_shapes()) {
    std::vector<std::byte> block(shape.block_bytes());
    SplitMix64 random(3);
    for (std::byte& byte : block) byte = static_cast<std::byte>(random.next());
    std::vector<std::uint8_t> codes(kBlockTokens * shape.dim());
    unpack_block(shape, block, codes);
    EXPECT_LT(*std::max_element(codes.begin(), codes.end()), 1 << shape.bits) << name_of(shape);
  }
}

// One code set to its highest value, all others 0.
std::vector<std::byte> block_with(const BlockShape& shape, std::size_t token,
                                  std::size_t component) {
  std::vector<std::uint8_t> codes(kBlockTokens * shape.dim(), 0);
  codes[token * shape.dim() + component] = static_cast<std::uint8_t>((1 << shape.bits) - 1);
  std::vector<std::byte> block(shape.block_bytes());
  pack_block(shape, codes, block);
  return block;
}

struct SetByte {
  std::size_t offset;
  int value;
  bool operator==(const SetByte&) const = default;
};

std::vector<SetByte> set_bytes(const std::vector<std::byte>& block) {
  std::vector<SetByte> set;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block[i] != std::byte{0}) set.push_back({i, std::to_integer<int>(block[i])});
  }
  return set;
}

void PrintTo(const SetByte& byte, std::ostream* out) {
  *out << "byte " << byte.offset << " = " << byte.value;
}

using Bytes = std::vector<SetByte>;

// The worked example of docs/reference/codec.md: token 21, component 45 of keys with head_dim 64.
// Group 1, lane 5; component 45 is number 13 of unit 1: line of bytes 3, byte 1 of the lane.
TEST(BlockLayout, KeysStandWhereTheWorkedExampleHasThem) {
  const auto at = [](int bits) {
    return set_bytes(block_with({64, bits, BlockOrder::kKeys}, 21, 45));
  };
  constexpr std::size_t kInLine = 5 * 4 + 1;
  // A group has 2 units of `bits` lines; line l of unit 1 of group 1 is number 3 * bits + l.
  const auto line = [](std::size_t bits, std::size_t l) { return (3 * bits + l) * 64 + kInLine; };
  EXPECT_EQ(at(1), (Bytes{{line(1, 0), 1 << 3}}));
  EXPECT_EQ(at(2), (Bytes{{line(2, 0), 3 << 6}}));
  EXPECT_EQ(at(3), (Bytes{{line(3, 1), 7 << 3}}));
  EXPECT_EQ(at(4), (Bytes{{line(4, 1), 15 << 4}}));
  EXPECT_EQ(at(5), (Bytes{{line(5, 0), 1 << 3}, {line(5, 2), 15 << 4}}));
  EXPECT_EQ(at(6), (Bytes{{line(6, 0), 3 << 6}, {line(6, 1), 3 << 6}, {line(6, 2), 3 << 6}}));
  EXPECT_EQ(
      at(7),
      (Bytes{
          {line(7, 0), 1 << 3}, {line(7, 1), 3 << 6}, {line(7, 2), 3 << 6}, {line(7, 3), 3 << 6}}));
  EXPECT_EQ(at(8), (Bytes{{line(8, 3), 255}}));
}

// Values: token 45, component 21 of head_dim 64. The same lane and line, but of unit 1 of 8.
TEST(BlockLayout, ValuesStandWhereTheWorkedExampleHasThem) {
  const auto at = [](int bits) {
    return set_bytes(block_with({64, bits, BlockOrder::kValues}, 45, 21));
  };
  constexpr std::size_t kInLine = 5 * 4 + 1;
  const auto line = [](std::size_t bits, std::size_t l) { return (9 * bits + l) * 64 + kInLine; };
  EXPECT_EQ(at(2), (Bytes{{line(2, 0), 3 << 6}}));
  EXPECT_EQ(at(3), (Bytes{{line(3, 1), 7 << 3}}));
  EXPECT_EQ(at(4), (Bytes{{line(4, 1), 15 << 4}}));
  EXPECT_EQ(at(8), (Bytes{{line(8, 3), 255}}));
}

// At 3 bits, lines of bytes 6 and 7 of a unit have no line of their own: component 24 + 1 of
// token 0, code 0b101, is bits 0, 1 and 2 of the fourth field of six bits, whose pairs of bits
// stand on top of lines 0, 1 and 2.
TEST(BlockLayout, TheFourthFieldOfSixBitsStandsAboveTheOtherThree) {
  const BlockShape shape = {32, 3, BlockOrder::kKeys};
  std::vector<std::uint8_t> codes(kBlockTokens * shape.dim(), 0);
  codes[25] = 0b101;
  codes[29] = 0b110;  // the field's bits 3, 4 and 5
  std::vector<std::byte> block(shape.block_bytes());
  pack_block(shape, codes, block);
  // field = 0b110101: pairs 01, 01, 11
  EXPECT_EQ(set_bytes(block), (Bytes{{1, 0x40}, {64 + 1, 0x40}, {128 + 1, 0xc0}}));
}

}  // namespace block_layout_test
}  // namespace tqcache::codec
