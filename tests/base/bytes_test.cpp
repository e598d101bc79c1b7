#include "tqcache/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace tqcache {
namespace bytes_test {

constexpr std::string_view kText = "cache";

Bytes sample() {
  ByteWriter writer;
  writer.write<std::uint8_t>(0x01);
  writer.write<std::uint16_t>(0x0203);
  writer.write<std::uint32_t>(0x04050607);
  writer.write<std::uint64_t>(0x08090a0b0c0d0e0f);
  writer.write<std::int32_t>(-2);
  writer.write<float>(1.5f);
  writer.write<double>(-0.25);
  writer.append_sized(as_bytes(kText));
  return std::move(writer).take();
}

Result<void> read_sample(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto a, in.read<std::uint8_t>());
  TQC_TRY_ASSIGN(const auto b, in.read<std::uint16_t>());
  TQC_TRY_ASSIGN(const auto c, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto d, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(const auto e, in.read<std::int32_t>());
  TQC_TRY_ASSIGN(const auto f, in.read<float>());
  TQC_TRY_ASSIGN(const auto g, in.read<double>());
  TQC_TRY_ASSIGN(const auto length, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(const auto text, in.take_string(length));
  EXPECT_EQ(a, 0x01);
  EXPECT_EQ(b, 0x0203);
  EXPECT_EQ(c, 0x04050607u);
  EXPECT_EQ(d, 0x08090a0b0c0d0e0fu);
  EXPECT_EQ(e, -2);
  EXPECT_EQ(f, 1.5f);
  EXPECT_EQ(g, -0.25);
  EXPECT_EQ(text, kText);
  return {};
}

TEST(ByteWriter, WritesLittleEndian) {
  ByteWriter writer;
  writer.write<std::uint32_t>(0x04030201);
  const Bytes expected = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  EXPECT_EQ(writer.bytes(), expected);
}

TEST(ByteWriter, PutsTheLengthBeforeSizedBytes) {
  ByteWriter writer;
  writer.append_sized(as_bytes("ab"));
  writer.append_sized({});
  const Bytes expected = {std::byte{2},   {}, {}, {}, {}, {}, {}, {}, std::byte{'a'},
                          std::byte{'b'}, {}, {}, {}, {}, {}, {}, {}, {}};
  EXPECT_EQ(writer.bytes(), expected);
}

TEST(ByteReader, ReadsWhatWasWritten) {
  const Bytes bytes = sample();
  ByteReader in(bytes);
  EXPECT_TRUE(read_sample(in).ok());
  EXPECT_EQ(in.position(), bytes.size());
  EXPECT_EQ(in.remaining(), 0u);
}

TEST(ByteReader, FindsEveryTruncation) {
  const Bytes whole = sample();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // Exactly as long as it says, so that the address sanitizer sees a read beyond it.
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    ByteReader in(cut);
    const Result<void> result = read_sample(in);
    ASSERT_FALSE(result.ok()) << size;
    EXPECT_EQ(result.error().code, ErrorCode::kTruncated) << size;
    EXPECT_LE(in.position(), size);
  }
}

TEST(ByteReader, StaysWhereItIsAfterAnError) {
  const Bytes bytes(3);
  ByteReader in(bytes);
  ASSERT_TRUE(in.read<std::uint8_t>().ok());
  const Result<std::uint32_t> wide = in.read<std::uint32_t>();
  ASSERT_FALSE(wide.ok());
  EXPECT_EQ(wide.error().message, "byte 1: 4 bytes wanted, 2 left");
  EXPECT_EQ(in.position(), 1u);
  EXPECT_TRUE(in.read<std::uint16_t>().ok());
}

TEST(ByteReader, RefusesALengthThatWouldWrapAround) {
  const Bytes bytes(16);
  ByteReader in(bytes);
  ASSERT_TRUE(in.take(8).ok());
  for (const std::uint64_t count : {std::uint64_t{9}, std::numeric_limits<std::uint64_t>::max(),
                                    std::numeric_limits<std::uint64_t>::max() - 7}) {
    const Result<ByteView> view = in.take(count);
    ASSERT_FALSE(view.ok()) << count;
    EXPECT_EQ(view.error().code, ErrorCode::kTruncated);
  }
  EXPECT_EQ(in.take(8)->size(), 8u);
}

TEST(ByteReader, TakesNothingFromNothing) {
  ByteReader in{ByteView{}};
  EXPECT_TRUE(in.take(0)->empty());
  EXPECT_EQ(*in.take_string(0), "");
  EXPECT_FALSE(in.read<std::uint8_t>().ok());
}

TEST(ObjectBytes, ViewsTheMemoryOfNumbers) {
  const std::vector<std::uint16_t> numbers = {0x0201, 0x0403};
  const ByteView view = object_bytes(numbers);
  ASSERT_EQ(view.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(view[i], std::byte(i + 1));
}

}  // namespace bytes_test
}  // namespace tqcache
