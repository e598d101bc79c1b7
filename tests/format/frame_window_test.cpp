// A zstd frame may refer no further back than a reader is ready to look (docs/reference/format.md
// §6.4).

#include <gtest/gtest.h>

#include "file_fixture.h"

namespace tqcache::test {
namespace frame_window_test {

// 192 zeros, in a frame that says of itself that it needs a window of 2^log bytes and an eighth of
// that `eighths` times. RFC 8878, 3.1.1.
Bytes zeros_frame(unsigned log, unsigned eighths) {
  constexpr std::uint32_t kRawBytes = 192;
  ByteWriter out;
  out.write(std::uint32_t{0xFD2FB528});
  out.write(std::uint8_t{0x80});  // a window, and the content's size in 4 bytes
  out.write(static_cast<std::uint8_t>((log - 10) << 3 | eighths));
  out.write(kRawBytes);
  const std::uint32_t block = 1 | 1 << 1 | kRawBytes << 3;  // the last one: one byte, repeated
  out.write(static_cast<std::uint16_t>(block));
  out.write(static_cast<std::uint8_t>(block >> 16));
  out.write(std::uint8_t{0});
  return std::move(out).take();
}

Bytes file_with(const Bytes& frame) {
  cache::Cache cache = CacheBuilder(3).dense({8, 4}).build();
  std::ranges::fill(std::get<0>(std::get<0>(cache.layers[0]).k).blocks[0], std::byte{0});
  return replace_first_section(file_of(cache), frame, Compression::kZstd);
}

TEST(FrameWindow, MayBe128MiB) {
  EXPECT_TRUE(load(file_with(zeros_frame(10, 0))).ok());
  EXPECT_TRUE(load(file_with(zeros_frame(27, 0))).ok());
  EXPECT_TRUE(damage_of(file_with(zeros_frame(27, 0))).empty());
}

TEST(FrameWindow, MayNotBeLarger) {
  expect_refused(
      file_with(zeros_frame(27, 1)), ErrorCode::kCorrupt,
      "section 0 (layer 0 k, block 0): zstd: the frame needs a window of 150994944 bytes");
  expect_refused(file_with(zeros_frame(30, 7)), ErrorCode::kCorrupt,
                 "the frame needs a window of 2013265920 bytes");
  // More than zstd itself would ever take.
  expect_refused(file_with(zeros_frame(41, 7)), ErrorCode::kCorrupt, "too much memory");
}

}  // namespace frame_window_test
}  // namespace tqcache::test
