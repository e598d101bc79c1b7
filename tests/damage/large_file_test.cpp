// A file beyond 4 GiB, all of it sparse, is read like any other.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "damage.h"
#include "support/long_tests.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"

namespace tqcache::test {
namespace large_file_test {

constexpr cache::HeadShape kShape = {128, 1024};
constexpr std::uint64_t kSectionBytes = std::uint64_t{128} * 256 * 1024 * 2;  // f16: 64 MiB
constexpr std::int64_t kBlocks = 41;
constexpr std::int64_t kTokens = kBlocks * cache::kTokenBlock;
constexpr std::array<std::uint16_t, 4> kMark = {0x3c00, 0x4000, 0x4200, 0x4400};  // 1 to 4

ByteView mark_bytes() { return std::as_bytes(std::span(kMark)); }

// What the section table says of one section's content.
void set_content(SectionInfo& section, ByteView content) {
  section.checksum = xxh3_128(content);
  section.raw_sha256 = sha256(content);
}

// 82 sections of zeros, the last of which begins with a mark.
Manifest large_manifest() {
  cache::Cache cache = CacheBuilder(kTokens).build();
  const cache::DenseTensor tensor{Dtype::kF16, std::vector<AlignedBytes>(kBlocks)};
  cache.layers.emplace_back(cache::AttentionLayer{kShape, tensor, tensor});
  Manifest manifest = format::manifest_of(*cache::reader_of(cache));
  manifest.writer = "a test";
  Bytes content(kSectionBytes);
  set_content(manifest.sections[0], content);
  std::uint64_t offset = format::kHeaderBytes;
  for (SectionInfo& section : manifest.sections) {
    section.file_offset = offset;
    section.stored_bytes = section.raw_bytes;
    section.checksum = manifest.sections[0].checksum;
    section.raw_sha256 = manifest.sections[0].raw_sha256;
    offset += kSectionBytes;
  }
  std::ranges::copy(mark_bytes(), content.begin());
  set_content(manifest.sections.back(), content);
  manifest.content_name = format::content_name(manifest);
  return manifest;
}

void write_at(int file, std::uint64_t offset, ByteView bytes) {
  const ::ssize_t n = ::pwrite(file, bytes.data(), bytes.size(), static_cast<::off_t>(offset));
  ASSERT_EQ(n, static_cast<::ssize_t>(bytes.size()));
}

// Writes what is not zero, and leaves holes between.
void write_sparse(const std::filesystem::path& path, const Manifest& manifest) {
  const Bytes bytes = must(format::encode_manifest(manifest));
  const SectionInfo& last = manifest.sections.back();
  format::HeaderSlot slot;
  slot.manifest_offset = last.file_offset + last.stored_bytes;
  slot.file_bytes = slot.manifest_offset + bytes.size();
  slot.manifest_checksum = xxh3_128(bytes);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  write_at(file, 0, format::encode_slot(slot));
  write_at(file, last.file_offset, mark_bytes());
  write_at(file, slot.manifest_offset, bytes);
  ASSERT_EQ(::close(file), 0);
}

class LargeFile : public testing::Test {
 protected:
  void SetUp() override {
#ifdef TQCACHE_TEST_SANITIZED
    GTEST_SKIP() << "takes minutes with a sanitizer";
#endif
    write_sparse(path_, manifest_);
    source_ = must(open_file(path_));
    ASSERT_GT(source_->size(), std::uint64_t{5} << 30);
  }

  const TempDir dir_;
  const std::filesystem::path path_ = dir_ / "large.tqkv";
  const Manifest manifest_ = large_manifest();
  std::unique_ptr<ByteSource> source_;
};

TEST_F(LargeFile, IsReadBeyond4GiB) {
  const auto reader = must(format::SectionReader::open(*source_));
  const std::size_t last = manifest_.sections.size() - 1;
  ASSERT_GT(reader.info().sections[last].file_offset, std::uint64_t{5} << 30);
  AlignedBytes raw;
  must(reader.read(last, raw));
  EXPECT_TRUE(std::ranges::equal(ByteView(raw).first(sizeof(kMark)), mark_bytes()));
  must(reader.read(0, raw));
  EXPECT_TRUE(std::ranges::all_of(raw, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(LargeFile, GivesItsFirstTokensForThePriceOfThese) {
  const cache::Cache first = must(format::read_cache(
      *source_,
      {.first_tokens = 100, .access = {.memory = MemoryBudget().at_most(2 * kSectionBytes)}}));
  EXPECT_EQ(first.n_tokens(), 100);
  must(cache::validate(first));
}

TEST_F(LargeFile, IsRefusedWhereItTakesMoreMemoryThanIsAllowed) {
  const std::uint64_t all = manifest_.sections.size() * kSectionBytes;
  EXPECT_EQ(format::read_cache(*source_, {.access = {.memory = MemoryBudget().at_most(all - 1)}})
                .error()
                .code,
            ErrorCode::kTooLarge);
}

TEST_F(LargeFile, IsVerifiedToItsEnd) {
  if (!runs_long_tests()) GTEST_SKIP() << "5 GiB to hash: tools/check.sh --long";
  const auto report = must(format::verify_cache(*source_));
  EXPECT_EQ(report.damage, std::vector<std::string>{});
  EXPECT_EQ(report.sections_checked, manifest_.sections.size());
  EXPECT_EQ(report.bytes_checked, source_->size());
}

}  // namespace large_file_test
}  // namespace tqcache::test
