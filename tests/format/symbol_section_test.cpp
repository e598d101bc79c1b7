// One test a rule of docs/reference/format.md §6.6: what may stand in a section of symbols.

#include "tqcache/format/sections/symbol_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "archive_fixture.h"
#include "tqcache/format/sections/symbol_classes.h"
#include "tqcache/format/sections/symbol_density.h"

namespace tqcache::test {
namespace symbol_section_test {

Bytes with_first_section(const Bytes& file, const Bytes& stored) {
  return replace_first_section(file, stored, Compression::kSymbols);
}

TEST(SymbolSection, GivesBackEveryByte) {
  for (const std::int64_t n_sinks : {0, 4, 256}) {
    for (const float step : {0.05f, 0.4f, 1.5f}) {
      const cache::Cache cache = archive_cache(step, n_sinks);
      const Bytes file = file_of(cache, Compression::kZstd);
      EXPECT_EQ(difference(must(load(file)), cache), "") << n_sinks << ", " << step;
      EXPECT_THAT(damage_of(file), testing::IsEmpty());
      for (const SectionInfo& section : info_of(file).sections) {
        EXPECT_EQ(section.compression == Compression::kSymbols, section.packed);
      }
    }
  }
}

TEST(SymbolSection, IsSmallerThanTheCodesByZstd) {
  const cache::Cache cache = archive_cache(0.4f, 0, {4, 128});
  std::uint64_t bytes = 0;
  std::uint64_t values = 0;
  for (const SectionInfo& section : info_of(file_of(cache, Compression::kZstd)).sections) {
    if (!section.packed) continue;
    bytes += section.stored_bytes;
    values += 4 * 128 * 256;
  }
  EXPECT_LT(8.0 * static_cast<double>(bytes) / static_cast<double>(values), 2.62);
}

TEST(SymbolSection, HasTheContentNameOfTheStoredOne) {
  const cache::Cache cache = archive_cache();
  EXPECT_EQ(info_of(file_of(cache, Compression::kZstd)).content_name,
            info_of(file_of(cache)).content_name);
}

TEST(SymbolSection, IsReadWhoeverWroteIt) {
  const Bytes file = file_of(archive_cache());
  const Bytes changed = with_first_section(file, symbols_of(file).bytes());
  EXPECT_EQ(difference(must(load(changed)), must(load(file))), "");
  EXPECT_THAT(damage_of(changed), testing::IsEmpty());
}

void expect_stored_refused(const Bytes& stored, std::string_view part) {
  expect_refused(with_first_section(file_of(archive_cache()), stored), ErrorCode::kCorrupt, part);
}

TEST(SymbolSection, RefusesOtherDensities) {
  for (const int density : {0, 3, 8, 255}) {
    StoredSymbols stored = symbols_of(file_of(archive_cache()));
    stored.densities[1] = static_cast<std::byte>(density);
    expect_stored_refused(stored.bytes(),
                          "class 1: " + std::to_string(density) + " symbols a byte");
  }
}

TEST(SymbolSection, RefusesAContentOfAnotherSize) {
  StoredSymbols stored = symbols_of(file_of(archive_cache()));
  stored.content.pop_back();
  expect_stored_refused(stored.bytes(), "does not say that it holds 20992 bytes");
}

TEST(SymbolSection, RefusesOneThatIsCutShort) {
  expect_stored_refused(Bytes(2, std::byte{1}), "no room for the classes");
  expect_stored_refused(Bytes(3, std::byte{1}), "no room for the classes");
}

TEST(SymbolSection, RefusesSymbolsThatAreNone) {
  StoredSymbols stored = symbols_of(file_of(archive_cache()));
  stored.content[5] = std::byte{128};
  expect_stored_refused(stored.bytes(), "head 0: vector 5: a symbol above 127");
}

TEST(SymbolSection, RefusesScalesThatAreNotFinite) {
  StoredSymbols stored = symbols_of(file_of(archive_cache()));
  stored.content.back() = std::byte{0xf8};
  expect_stored_refused(stored.bytes(), "a scale that is not finite");
}

TEST(SymbolSection, IsForModeTrellisAlone) {
  const Bytes file = file_of(CacheBuilder(256).turbo({2, 40}, 8, 8).build());
  const Bytes changed = change_manifest(
      file, [](Manifest& manifest) { manifest.sections[0].compression = Compression::kSymbols; });
  expect_refused(changed, ErrorCode::kCorrupt, "symbols, but not of mode trellis");
}

// Codes that are no path are kept as they are.
TEST(SymbolSection, IsNotMadeOfOtherCodes) {
  cache::Cache cache = archive_cache();
  auto& tensor = std::get<cache::TurboTensor>(std::get<0>(cache.layers[0]).k);
  const ByteView packed = tensor.packed[0].bytes.view();
  AlignedBytes bytes(packed.begin(), packed.end());
  bytes[77] ^= std::byte{1};
  tensor.packed[0].bytes = SharedBytes(std::move(bytes));
  const Bytes file = file_of(cache, Compression::kZstd);
  EXPECT_EQ(info_of(file).sections[0].compression, Compression::kZstd);
  EXPECT_EQ(difference(must(load(file)), cache), "");
}

TEST(SymbolClasses, GiveBackWhatTheyHold) {
  const std::vector<std::uint8_t> few = {62, 63, 64, 65, 64, 64, 63, 62};
  const std::vector<std::uint8_t> some = {56, 71, 64, 63, 60, 66, 64, 65};
  const std::vector<std::uint8_t> any = {0, 127, 3, 64, 90, 12, 1, 2};
  const auto expect_back = [](unsigned density, const std::vector<std::uint8_t>& symbols) {
    std::vector<std::uint8_t> packed(symbols.size() / density);
    format::pack_symbols(density, symbols, packed);
    std::vector<std::uint8_t> again(symbols.size());
    format::unpack_symbols(density, packed, again);
    EXPECT_EQ(again, symbols);
  };
  expect_back(4, few);
  expect_back(2, some);
  expect_back(1, any);
}

TEST(SymbolClasses, StandAsDenselyAsTheyFit) {
  std::vector<std::uint8_t> symbols = {62, 65, 64, 63};
  EXPECT_EQ(format::highest_density(symbols), 4u);
  symbols[3] = 66;
  EXPECT_EQ(format::highest_density(symbols), 2u);
  symbols[2] = 72;
  EXPECT_EQ(format::highest_density(symbols), 1u);
  symbols[2] = 55;
  EXPECT_EQ(format::highest_density(symbols), 1u);
}

TEST(SymbolDensity, KnowsTheBitsOfAHuffmanCode) {
  EXPECT_EQ(format::huffman_bits({}), 0u);
  EXPECT_EQ(format::huffman_bits(std::vector<std::uint32_t>{0, 7, 0}), 0u);
  EXPECT_EQ(format::huffman_bits(std::vector<std::uint32_t>{7, 0, 2}), 9u);
  // Lengths 1, 2, 3, 3; then four of 2; then those of Fibonacci's numbers, as long as can be.
  EXPECT_EQ(format::huffman_bits(std::vector<std::uint32_t>{8, 4, 2, 2}), 28u);
  EXPECT_EQ(format::huffman_bits(std::vector<std::uint32_t>{3, 3, 3, 4}), 26u);
  EXPECT_EQ(format::huffman_bits(std::vector<std::uint32_t>{1, 1, 2, 3, 5, 8}), 45u);
}

// 4,096 symbols, of which so many in a hundred are 64 and the others its neighbors.
std::vector<std::uint8_t> symbols_around(std::uint64_t percent) {
  Random random(5);
  std::vector<std::uint8_t> symbols(4096);
  for (std::uint8_t& symbol : symbols) {
    const bool is_middle = random.below(100) < percent;
    symbol = static_cast<std::uint8_t>(is_middle ? 64 : 63 + 2 * random.below(2));
  }
  return symbols;
}

TEST(SymbolDensity, IsHigherTheMoreIsTheSame) {
  std::vector<std::uint8_t> even = symbols_around(0);
  for (std::size_t i = 0; i < even.size(); ++i) even[i] = static_cast<std::uint8_t>(60 + i % 8);
  EXPECT_EQ(format::best_density(even), 1u);
  EXPECT_GT(format::best_density(symbols_around(70)), 1u);
  EXPECT_EQ(format::best_density(symbols_around(97)), 4u);
}

TEST(SymbolDensity, IsNoHigherThanSymbolsFit) {
  std::vector<std::uint8_t> symbols = symbols_around(97);
  symbols[17] = 70;
  EXPECT_EQ(format::best_density(symbols), 2u);
  symbols[17] = 80;
  EXPECT_EQ(format::best_density(symbols), 1u);
}

}  // namespace symbol_section_test
}  // namespace tqcache::test
