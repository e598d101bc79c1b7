// One test a rule of docs/reference/format.md §5 and §6: what may stand in a section.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "file_fixture.h"

namespace tqcache::test {
namespace section_test {

// The file's first section is 192 bytes of zeros.
Bytes zeros_file() {
  cache::Cache cache = CacheBuilder(3).dense({8, 4}).build();
  cache::Tensor& k = std::get<0>(cache.layers[0]).k;
  std::ranges::fill(std::get<0>(k).blocks[0], std::byte{0});
  return file_of(cache);
}
constexpr std::size_t kRawBytes = 192;

Bytes zstd_frame(const Bytes& raw, bool with_content_size = true) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, with_content_size ? 1 : 0);
  Bytes frame(ZSTD_compressBound(raw.size()));
  frame.resize(ZSTD_compress2(context, frame.data(), frame.size(), raw.data(), raw.size()));
  ZSTD_freeCCtx(context);
  return frame;
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A skippable frame that holds `size` bytes (RFC 8878, 3.1.2).
Bytes skippable_frame(std::uint32_t size) {
  ByteWriter out;
  out.write(std::uint32_t{0x184D2A50});
  out.write(size);
  out.append(Bytes(size));
  return std::move(out).take();
}

void expect_frame_refused(const Bytes& frame, std::string_view part) {
  expect_refused(replace_first_section(zeros_file(), frame, Compression::kZstd),
                 ErrorCode::kCorrupt, part);
}

TEST(ZstdSection, IsReadWhenItIsOneFrameOfTheRightSize) {
  const Bytes file =
      replace_first_section(zeros_file(), zstd_frame(Bytes(kRawBytes)), Compression::kZstd);
  EXPECT_EQ(difference(must(load(file)), must(load(zeros_file()))), "");
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
}

TEST(ZstdSection, RefusesWhatIsNoFrame) {
  expect_frame_refused(Bytes(20, std::byte{'x'}), "section 0 (layer 0 k, block 0): zstd: ");
}

TEST(ZstdSection, RefusesAFrameCutShort) {
  Bytes frame = zstd_frame(Bytes(kRawBytes));
  frame.pop_back();
  expect_frame_refused(frame, "zstd: ");
}

TEST(ZstdSection, RefusesBytesBehindTheFrame) {
  const Bytes frame = zstd_frame(Bytes(kRawBytes));
  expect_frame_refused(joined(frame, Bytes(3)), "3 bytes behind the frame");
  expect_frame_refused(joined(frame, skippable_frame(2)), "10 bytes behind the frame");
}

TEST(ZstdSection, RefusesTwoFramesThatTogetherHoldTheRightSize) {
  const Bytes half = zstd_frame(Bytes(kRawBytes / 2));
  expect_frame_refused(joined(half, half), "bytes behind the frame");
}

TEST(ZstdSection, RefusesASkippableFrame) {
  expect_frame_refused(skippable_frame(12), "does not say that it holds 192 bytes");
  expect_frame_refused(joined(skippable_frame(2), zstd_frame(Bytes(kRawBytes))),
                       "behind the frame");
}

TEST(ZstdSection, RefusesAFrameThatDoesNotSayItsSize) {
  expect_frame_refused(zstd_frame(Bytes(kRawBytes), false), "does not say that it holds 192 bytes");
}

TEST(ZstdSection, RefusesAFrameOfAnotherSize) {
  for (const std::size_t size : {0u, 1u, 191u, 193u, 100000u}) {
    expect_frame_refused(zstd_frame(Bytes(size)), "does not say that it holds 192 bytes");
  }
}

TEST(ZstdSection, RefusesAFrameThatLiesAboutItsSize) {
  for (const std::size_t size : {100u, 191u, 193u, 200u}) {
    Bytes frame = zstd_frame(Bytes(size));
    ASSERT_EQ(frame[5], std::byte(size));  // Frame_Content_Size, one byte
    frame[5] = std::byte{kRawBytes};
    expect_frame_refused(frame, "zstd: ");
  }
}

TEST(ZstdSection, RefusesAFrameThatWantsADictionary) {
  Bytes frame = zstd_frame(Bytes(kRawBytes));
  ASSERT_EQ(frame[4], std::byte{0x20});  // Frame_Header_Descriptor: single segment, no more
  frame[4] |= std::byte{1};              // a Dictionary_ID of one byte follows
  frame.insert(frame.begin() + 5, std::byte{7});
  expect_frame_refused(frame, "zstd: ");
}

TEST(Section, RefusesAWrongChecksum) {
  Bytes file = small_file();
  file[format::kHeaderBytes] ^= std::byte{1};
  expect_refused(file, ErrorCode::kCorrupt, "section 0 (layer 0 k, block 0): checksum mismatch");
}

TEST(Section, RefusesPaddingThatIsNotZero) {
  Bytes file = small_file();
  file[format::kHeaderBytes + 63] = std::byte{1};
  expect_refused(file, ErrorCode::kCorrupt,
                 "section 0 (layer 0 k, block 0): padding behind it is not zero");
}

TEST(Section, OfAnotherPlaceIsRefused) {
  Bytes file = file_of(CacheBuilder(256).dense({1, 32}).build());
  const CacheFileInfo info = info_of(file);
  const auto at = [&](std::size_t i) {
    return file.begin() + static_cast<std::ptrdiff_t>(info.sections[i].file_offset);
  };
  std::swap_ranges(at(0), at(1), at(1));
  expect_refused(file, ErrorCode::kCorrupt, "section 0 (layer 0 k, block 0): checksum mismatch");
  EXPECT_THAT(damage_of(file), testing::SizeIs(2));
}

TEST(Section, OfAnotherFileIsRefused) {
  const Bytes a = file_of(CacheBuilder(256, 1).dense({1, 32}).build());
  const Bytes b = file_of(CacheBuilder(256, 2).dense({1, 32}).build());
  ASSERT_EQ(a.size(), b.size());
  Bytes spliced(a.begin(), a.begin() + format::kHeaderBytes);
  spliced.insert(spliced.end(), b.begin() + format::kHeaderBytes, b.end());
  expect_refused(spliced, ErrorCode::kCorrupt, "manifest: checksum mismatch");
  std::copy(a.end() - 1000, a.end(), spliced.end() - 1000);
  EXPECT_FALSE(load(spliced).ok());
}

}  // namespace section_test
}  // namespace tqcache::test
