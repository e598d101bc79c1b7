// What only verify looks at: it reports everything, where a load stops or does not look.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "append_fixture.h"
#include "tqcache/cache/blocks.h"

namespace tqcache::test {
namespace verify_test {

using testing::ElementsAre;
using testing::IsEmpty;

// Sections of mixed_file(): layer, tensor, block.
constexpr std::size_t kDenseF32 = 0;   // 0 k 0
constexpr std::size_t kPackedK = 2;    // 1 k 0, 2 heads of 32, 4 bits
constexpr std::size_t kDenseBF16 = 4;  // 3 k 0
constexpr std::size_t kPacked36 = 5;   // 3 v 0, 1 head of 36 in 3 groups of 16, 1 bit
constexpr std::size_t kTailF16 = 8;    // 1 k 1, 44 tokens
constexpr std::size_t kArray = 12;

// The damage of mixed_file() after `change` to one section, with all digests made right.
std::vector<std::string> damage_after(std::size_t index,
                                      const std::function<void(std::span<std::byte>)>& change) {
  const Bytes file = change_section(mixed_file(), index, true, change);
  EXPECT_TRUE(load(file).ok());
  return damage_of(file);
}

std::function<void(std::span<std::byte>)> put(std::size_t at, auto value) {
  return [=](std::span<std::byte> bytes) { std::memcpy(&bytes[at], &value, sizeof(value)); };
}

TEST(Verify, TellsWhatItChecked) {
  for (const Compression compression : kCompressions) {
    const Bytes file = mixed_file(compression);
    const auto report = must(format::verify_cache(*memory_source(file)));
    EXPECT_THAT(report.damage, IsEmpty());
    EXPECT_EQ(report.sections_checked, 14u);
    EXPECT_EQ(report.bytes_checked, file.size());
    EXPECT_EQ(report.info.tokens.size(), 300u);
  }
}

TEST(Verify, ChecksAllOfAFileThatWasAppendedTo) {
  const Bytes file = appended_small_file();
  const auto report = must(format::verify_cache(*memory_source(file)));
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.sections_checked, 4u);
  EXPECT_EQ(report.bytes_checked, file.size());
}

TEST(Verify, LeavesBytesBehindTheEndOut) {
  Bytes file = appended_small_file();
  const std::size_t size = file.size();
  put_slot(file, format::announcement(header_of(file).slot));
  file.resize(size + 1000, std::byte{0x55});
  const auto report = must(format::verify_cache(*memory_source(file)));
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.info.trailing_bytes, 1000u);
  EXPECT_EQ(report.bytes_checked, size);
}

TEST(Verify, ReportsDenseValuesThatAreNotFinite) {
  EXPECT_THAT(
      damage_after(kDenseF32, put(4 * (32 * 17 + 5), 0x7f800000u)),
      ElementsAre("section 0 (layer 0 k, block 0): head 0 token 17: a value is not finite"));
  EXPECT_THAT(
      damage_after(kDenseBF16, put(2 * 36 * 255, std::uint16_t{0xffc0})),
      ElementsAre("section 4 (layer 3 k, block 0): head 0 token 255: a value is not finite"));
  EXPECT_THAT(damage_after(kTailF16, put(2 * (32 * 45 + 31), std::uint16_t{0xfc00})),
              ElementsAre("section 8 (layer 1 k, block 1): head 1 token 1: a value is not finite"));
}

TEST(Verify, AcceptsTheLargestFiniteValues) {
  EXPECT_THAT(damage_after(kDenseF32, put(0, 0x7f7fffffu)), IsEmpty());
  EXPECT_THAT(damage_after(kDenseBF16, put(0, std::uint16_t{0x7f7f})), IsEmpty());
  EXPECT_THAT(damage_after(kTailF16, put(0, std::uint16_t{0xfbff})), IsEmpty());
}

TEST(Verify, ReportsScalesThatAreNotFinite) {
  const std::size_t scales = 2 * 256 * (32 * 4 / 8);
  EXPECT_THAT(damage_after(kPackedK, put(scales + 2 * (256 + 9), std::uint16_t{0x7c00})),
              ElementsAre("section 2 (layer 1 k, block 0): head 1 token 9: a scale is not finite"));
}

TEST(Verify, ReportsUnusedBitsThatAreNotZero) {
  EXPECT_THAT(
      damage_after(kPacked36,
                   [](std::span<std::byte> bytes) { bytes[2 * 512 + 4 * 4] |= std::byte{0x10}; }),
      ElementsAre("section 5 (layer 3 v, block 0): head 0: part 0: unused bits of the codes "
                  "are not zero"));
  EXPECT_THAT(damage_after(kPacked36, [](std::span<std::byte> bytes) { bytes[4] ^= std::byte{8}; }),
              IsEmpty());
}

// Sections of block 0 of modes_file(): 2 heads of 64.
constexpr std::size_t kProdK = 2;    // 2 bits and 1 bit
constexpr std::size_t kAffineK = 6;  // one group of 4 bits
constexpr std::size_t kSinksK = 8;   // 4 bits, 4 sink tokens of f16
constexpr std::size_t kSinksV = 9;   // of bf16

std::vector<std::string> mode_damage_after(
    std::size_t index, const std::function<void(std::span<std::byte>)>& change) {
  static const Bytes kFile = modes_file();
  const Bytes file = change_section(kFile, index, true, change);
  EXPECT_TRUE(load(file).ok());
  return damage_of(file);
}

TEST(Verify, FindsNothingInAnyMode) { EXPECT_THAT(damage_of(modes_file()), IsEmpty()); }

TEST(Verify, ReportsScalesOfAnyPartAndBiasesThatAreNotFinite) {
  const std::uint16_t nan = 0x7e00;
  const std::size_t prod_scales = 2 * 256 * 64 * 3 / 8;
  EXPECT_THAT(mode_damage_after(kProdK, put(prod_scales + 512 * 3 + 2 * 7, nan)),
              ElementsAre("section 2 (layer 1 k, block 0): head 1 token 7: a scale is not finite"));
  const std::size_t affine_scales = 2 * 256 * 64 * 4 / 8;
  EXPECT_THAT(mode_damage_after(kAffineK, put(affine_scales + 512 + 2 * 255, nan)),
              ElementsAre("section 6 (layer 3 k, block 0): head 0 token 255: a scale is not "
                          "finite"));
}

TEST(Verify, ReportsUnusedBitsOfAnyPart) {
  // Part 0 takes 256 * 16 * 3 bits. Part 1 has 3 groups of 16 channels: nothing is unused there. So
  // a file with 8 outlier channels, half a group of values.
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3};
  plan.center = cache::Centering::kNone;
  const Bytes file =
      file_of(CacheBuilder(256).tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).build());
  const auto damage = [&](std::size_t at) {
    return damage_of(change_section(
        file, 1, true, [&](std::span<std::byte> bytes) { bytes[at] |= std::byte{1}; }));
  };
  const std::size_t group = 16 * 256 * 3 / 8;
  EXPECT_THAT(damage(4 * 8), ElementsAre("section 1 (layer 0 v, block 0): head 0: part 0: unused "
                                         "bits of the codes are not zero"));
  EXPECT_THAT(damage(group + 16 * 256 * 2 / 8 + 4 * 15),
              ElementsAre("section 1 (layer 0 v, block 0): head 0: part 1: unused bits of the "
                          "codes are not zero"));
}

TEST(Verify, ReportsCodesAndScalesOfSinkTokens) {
  const std::size_t scales = 2 * 256 * 64 * 4 / 8;
  // Keys: token 3 is lane 3 of group 0 of head 0.
  EXPECT_THAT(
      mode_damage_after(kSinksK,
                        [](std::span<std::byte> bytes) { bytes[4 * 3] |= std::byte{0x10}; }),
      ElementsAre("section 8 (layer 4 k, block 0): head 0: part 0: codes of a sink token are "
                  "not zero"));
  EXPECT_THAT(mode_damage_after(
                  kSinksK, [](std::span<std::byte> bytes) { bytes[4 * 4] ^= std::byte{0x10}; }),
              IsEmpty());
  EXPECT_THAT(mode_damage_after(kSinksV, put(scales + 512 + 2 * 3, std::uint16_t{1})),
              ElementsAre("section 9 (layer 4 v, block 0): head 1: a scale of a sink token is not "
                          "zero"));
  EXPECT_THAT(mode_damage_after(kSinksV, put(scales + 512 + 2 * 4, std::uint16_t{1})), IsEmpty());
}

TEST(Verify, ReportsSinkTokensThatAreNotFinite) {
  const std::size_t sinks = 2 * (256 * 64 * 4 / 8 + 512);
  EXPECT_THAT(mode_damage_after(kSinksK, put(sinks + 2 * (64 * 5 + 63), std::uint16_t{0x7c00})),
              ElementsAre("section 8 (layer 4 k, block 0): head 1 token 1: a value is not finite"));
  EXPECT_THAT(mode_damage_after(kSinksV, put(sinks, std::uint16_t{0x7f80})),
              ElementsAre("section 9 (layer 4 v, block 0): head 0 token 0: a value is not finite"));
  EXPECT_THAT(mode_damage_after(kSinksV, put(sinks, std::uint16_t{0x7c00})), IsEmpty());
}

TEST(Verify, TakesArraysAsTheyAre) {
  EXPECT_THAT(damage_after(kArray, put(0, 0xffffffffu)), IsEmpty());
}

TEST(Verify, ReportsContentThatOnlySha256Knows) {
  const Bytes file = change_section(mixed_file(), kDenseF32, false, put(0, std::uint8_t{1}));
  EXPECT_TRUE(load(file).ok());
  EXPECT_THAT(damage_of(file),
              ElementsAre("section 0 (layer 0 k, block 0): SHA-256 of the content mismatch"));
}

TEST(Verify, GoesOnAndReportsEverything) {
  Bytes file = mixed_file();
  const CacheFileInfo info = info_of(file);
  const SectionInfo& array = info.sections[kArray];
  file[format::kSlotBytes + 5] = std::byte{1};
  file[info.sections[1].file_offset] ^= std::byte{1};
  file[info.sections[9].file_offset + 7] ^= std::byte{1};
  file[array.file_offset] ^= std::byte{1};
  file[array.file_offset + array.stored_bytes] ^= std::byte{1};
  for (const unsigned n_threads : {1u, 4u}) {
    const auto report = must(format::verify_cache(*memory_source(file), {.n_threads = n_threads}));
    EXPECT_THAT(report.damage,
                ElementsAre("header slot 1: not a .tqkv file",
                            "section 1 (layer 0 v, block 0): checksum mismatch",
                            "section 9 (layer 1 v, block 1): checksum mismatch",
                            "section 12 (layer 2 array 0): checksum mismatch",
                            "section 12 (layer 2 array 0): padding behind it is not zero"));
  }
}

// Sections of 32 MiB of zeros in a file of a few kilobytes.
TEST(Verify, RefusesASmallFileOfHugeSections) {
  cache::Cache cache = CacheBuilder(256).dense({1024, 32}, Dtype::kF32).build();
  auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    for (AlignedBytes& block : std::get<cache::DenseTensor>(*tensor).blocks) {
      std::ranges::fill(block, std::byte{0});
    }
  }
  const Bytes small = file_of(cache, Compression::kZstd);
  ASSERT_LT(small.size(), 100'000u);
  expect_error(dropped(format::verify_cache(*memory_source(small))), ErrorCode::kTooLarge,
               "--max-memory");
  expect_error(dropped(format::read_cache(*memory_source(small))), ErrorCode::kTooLarge,
               "section 0 (layer 0 k, block 0)");
  EXPECT_TRUE(format::verify_cache(*memory_source(file_of(cache, Compression::kNone))).ok());
}

TEST(Verify, HoldsNoMoreThanASectionAThread) {
  const Bytes file = mixed_file();
  std::uint64_t largest = 0;
  for (const SectionInfo& section : info_of(file).sections) {
    largest = std::max(largest, section.raw_bytes);
  }
  const auto verify = [&](std::uint64_t max) {
    return dropped(format::verify_cache(*memory_source(file),
                                        {.access = {.memory = MemoryBudget().at_most(max)}}));
  };
  EXPECT_TRUE(verify(largest).ok());
  expect_error(verify(largest - 1), ErrorCode::kTooLarge, "are allowed");
}

}  // namespace verify_test
}  // namespace tqcache::test
