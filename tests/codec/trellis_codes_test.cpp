// Symbols, levels and packed codes of trellis paths (docs/reference/codec.md, "Trellis codes").

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/gaussian.h"
#include "support/matchers.h"
#include "tqcache/codec/trellis/trellis.h"

namespace tqcache::codec {
namespace trellis_codes_test {

using test::SplitMix64;

constexpr TrellisShape kShapes[] = {{32, 256}, {33, 17},   {1, 3},      {100, 256}, {64, 1},
                                    {40, 200}, {128, 256}, {1023, 255}, {1024, 256}};

std::vector<std::uint8_t> any_symbols(const TrellisShape& shape, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::uint8_t> symbols(shape.size());
  for (std::uint8_t& symbol : symbols) symbol = static_cast<std::uint8_t>(random.below(128));
  return symbols;
}

std::vector<std::int8_t> levels_of(const TrellisShape& shape,
                                   const std::vector<std::uint8_t>& symbols) {
  std::vector<std::int8_t> levels(shape.size());
  EXPECT_TRUE(decode_trellis(shape, symbols, levels).ok());
  return levels;
}

// Vector by vector, as the document says it.
std::vector<std::int8_t> levels_by_definition(const TrellisShape& shape,
                                              const std::vector<std::uint8_t>& symbols) {
  std::vector<std::int8_t> levels(shape.size());
  for (std::size_t v = 0; v < shape.n_vectors; ++v) {
    int state = 0;
    for (std::size_t i = 0; i < shape.dim; ++i) {
      const int k = symbols[i * shape.n_vectors + v] - kTrellisSymbolOffset;
      levels[i * shape.n_vectors + v] = static_cast<std::int8_t>(2 * k + (state & 1));
      state = (state >> 1) ^ (state & 1 ? 5 : 0) ^ (k & 1 ? 2 : 0);
    }
  }
  return levels;
}

// The block that block_layout.h defines.
std::vector<std::byte> block_by_definition(const TrellisShape& shape,
                                           const std::vector<std::int8_t>& levels, BlockOrder order,
                                           std::uint8_t absent = 0) {
  const BlockShape packed{static_cast<int>(shape.dim), 8, order};
  std::vector<std::uint8_t> codes(kBlockTokens * shape.dim, absent);
  for (std::size_t v = 0; v < shape.n_vectors; ++v) {
    for (std::size_t i = 0; i < shape.dim; ++i) {
      const int code = levels[i * shape.n_vectors + v] + kTrellisCodeOffset;
      codes[v * shape.dim + i] = static_cast<std::uint8_t>(code);
    }
  }
  std::vector<std::byte> block(packed.block_bytes());
  pack_block(packed, codes, block);
  return block;
}

template <class Value>
void expect_refused(const Result<Value>& result, const std::string& message) {
  EXPECT_THAT(result, test::FailsWith(ErrorCode::kCorrupt, message));
}

TEST(TrellisCodes, AnySymbolsDecode) {
  for (const TrellisShape& shape : kShapes) {
    const std::vector<std::uint8_t> symbols = any_symbols(shape, shape.dim);
    ASSERT_EQ(levels_of(shape, symbols), levels_by_definition(shape, symbols)) << shape.dim;
  }
}

TEST(TrellisCodes, LevelsComeBackToTheirSymbols) {
  for (const TrellisShape& shape : kShapes) {
    const std::vector<std::uint8_t> symbols = any_symbols(shape, shape.dim + 1);
    std::vector<std::uint8_t> back(shape.size());
    ASSERT_TRUE(trellis_symbols(shape, levels_of(shape, symbols), back).ok());
    ASSERT_EQ(back, symbols) << shape.dim;
  }
}

TEST(TrellisCodes, SymbolsAbove127AreRefused) {
  const TrellisShape shape{40, 27};
  for (const std::size_t vector : {0u, 7u, 26u}) {
    for (const int bad : {128, 200, 255}) {
      std::vector<std::uint8_t> symbols = any_symbols(shape, 3);
      symbols[39 * shape.n_vectors + vector] = static_cast<std::uint8_t>(bad);
      symbols.back() = 255;
      const std::string message = "vector " + std::to_string(vector) + ": a symbol above 127";
      std::vector<std::int8_t> levels(shape.size());
      expect_refused(decode_trellis(shape, symbols, levels), message);
      std::vector<std::byte> block(BlockShape{40, 8, BlockOrder::kKeys}.block_bytes());
      expect_refused(decode_trellis_block(shape, symbols, BlockOrder::kKeys, block), message);
    }
  }
}

TEST(TrellisCodes, LevelsThatFormNoPathAreReported) {
  const TrellisShape shape{40, 27};
  const std::vector<std::int8_t> good = levels_of(shape, any_symbols(shape, 4));
  std::vector<std::uint8_t> symbols(shape.size());
  for (const std::size_t component : {0u, 20u, 39u}) {
    for (const std::size_t vector : {0u, 8u, 26u}) {
      std::vector<std::int8_t> levels = good;
      levels[component * shape.n_vectors + vector] ^= 1;
      expect_refused(trellis_symbols(shape, levels, symbols),
                     "vector " + std::to_string(vector) + ": its levels are no path");
    }
  }
}

// Another symbol's level of the right parity leads elsewhere, so that what follows is wrong.
TEST(TrellisCodes, ALevelOfAnotherClassShowsInWhatFollows) {
  const TrellisShape shape{40, 1};
  std::vector<std::int8_t> levels = levels_of(shape, any_symbols(shape, 5));
  levels[10] ^= 2;
  std::vector<std::uint8_t> symbols(shape.size());
  EXPECT_FALSE(trellis_symbols(shape, levels, symbols).ok());
}

TEST(TrellisBlocks, HoldWhatTheLayoutSays) {
  for (const TrellisShape& shape : kShapes) {
    const std::vector<std::uint8_t> symbols = any_symbols(shape, shape.dim + 2);
    const std::vector<std::int8_t> levels = levels_of(shape, symbols);
    for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
      const std::vector<std::byte> expected = block_by_definition(shape, levels, order);
      for (const Kernels* kernels : all_kernels()) {
        std::vector<std::byte> block(expected.size(), std::byte{0xee});
        ASSERT_TRUE(decode_trellis_block(shape, symbols, order, block, *kernels).ok());
        ASSERT_EQ(block, expected) << kernels->name << ", dim " << shape.dim;
      }
    }
  }
}

TEST(TrellisBlocks, ComeBackToTheirSymbols) {
  for (const TrellisShape& shape : kShapes) {
    const std::vector<std::uint8_t> symbols = any_symbols(shape, shape.dim + 3);
    const std::vector<std::int8_t> levels = levels_of(shape, symbols);
    for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
      const std::vector<std::byte> block = block_by_definition(shape, levels, order);
      for (const Kernels* kernels : all_kernels()) {
        std::vector<std::uint8_t> back(shape.size());
        ASSERT_TRUE(trellis_block_symbols(shape, block, order, back, *kernels).ok());
        ASSERT_EQ(back, symbols) << kernels->name << ", dim " << shape.dim;
      }
    }
  }
}

TEST(TrellisBlocks, ThatFormNoPathAreReported) {
  const TrellisShape shape{40, 200};
  std::vector<std::int8_t> levels = levels_of(shape, any_symbols(shape, 6));
  levels[39 * shape.n_vectors + 150] ^= 1;
  std::vector<std::uint8_t> symbols(shape.size());
  for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
    const std::vector<std::byte> block = block_by_definition(shape, levels, order);
    expect_refused(trellis_block_symbols(shape, block, order, symbols),
                   "vector 150: its levels are no path");
  }
}

TEST(TrellisBlocks, OtherTokensAreNotLookedAt) {
  const TrellisShape shape{40, 19};
  const std::vector<std::uint8_t> expected = any_symbols(shape, 7);
  const std::vector<std::int8_t> levels = levels_of(shape, expected);
  for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
    const std::vector<std::byte> block = block_by_definition(shape, levels, order, 0x5b);
    std::vector<std::uint8_t> symbols(shape.size());
    EXPECT_TRUE(trellis_block_symbols(shape, block, order, symbols).ok());
    EXPECT_EQ(symbols, expected);
  }
}

TEST(TrellisBlocks, CodeZeroIsAPath) {
  const TrellisShape shape{40, 256};
  for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
    const std::vector<std::byte> block(BlockShape{40, 8, order}.block_bytes());
    std::vector<std::uint8_t> symbols(shape.size(), 1);
    ASSERT_TRUE(trellis_block_symbols(shape, block, order, symbols).ok());
    EXPECT_EQ(symbols, std::vector<std::uint8_t>(shape.size(), 0));
  }
}

}  // namespace trellis_codes_test
}  // namespace tqcache::codec
