// Planes of bytes: what goes where, and that every bit comes back.

#include "tqcache/format/sections/byte_planes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "file_fixture.h"

namespace tqcache::test {
namespace byte_planes_test {

Bytes split(ByteView raw, std::size_t width) {
  Bytes planes(raw.size());
  format::split_planes(raw, width, planes);
  return planes;
}

Bytes joined(ByteView planes, std::size_t width) {
  const std::size_t n = planes.size() / width;
  std::vector<ByteView> views;
  for (std::size_t i = 0; i < width; ++i) views.push_back(planes.subspan(i * n, n));
  Bytes raw(planes.size());
  format::join_planes(views, raw);
  return raw;
}

template <class Word>
Bytes planes_of_words(const std::vector<Word>& words) {
  return split(object_bytes(words), sizeof(Word));
}

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

// docs/reference/format.md §6.5.
TEST(BytePlanes, HaveTheExponentFirstAndTheSignLast) {
  // bf16 1, -1, 3: exponents 127, 127, 128; mantissas 0, 0, 64.
  EXPECT_EQ(planes_of_words<std::uint16_t>({0x3f80, 0xbf80, 0x4040}),
            bytes({0x7f, 0x7f, 0x80, 0x00, 0x01, 0x80}));
  // f16 1, -1.75: exponent 15, the upper bits of mantissas 0 and 7.
  EXPECT_EQ(planes_of_words<std::uint16_t>({0x3c00, 0xbf00}), bytes({0x78, 0x7e, 0x00, 0x01}));
  // f32 1, -1.1: exponent 127.
  EXPECT_EQ(planes_of_words<std::uint32_t>({0x3f800000, 0xbf8ccccd}),
            bytes({0x7f, 0x7f, 0x00, 0x19, 0x00, 0x99, 0x00, 0x9b}));
}

TEST(BytePlanes, GiveEveryWordOf16BitsBack) {
  std::vector<std::uint16_t> words(65536);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  EXPECT_EQ(joined(planes_of_words(words), 2),
            Bytes(object_bytes(words).begin(), object_bytes(words).end()));
}

TEST(BytePlanes, GiveWordsOf32BitsBack) {
  Random random(3);
  std::vector<std::uint32_t> words(4096);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random.next());
  words[0] = 0;
  words[1] = 0xffffffff;
  words[2] = 0x80000000;  // -0
  words[3] = 0x7fc00001;  // a NaN with a payload
  EXPECT_EQ(joined(planes_of_words(words), 4),
            Bytes(object_bytes(words).begin(), object_bytes(words).end()));
}

TEST(BytePlanes, MayHaveAnyNumberOfWords) {
  Random random(4);
  for (const std::size_t n : {0u, 1u, 2u, 7u, 15u, 16u, 17u, 63u, 64u, 65u, 129u, 1000u}) {
    Bytes raw(4 * n);
    for (std::byte& byte : raw) byte = static_cast<std::byte>(random.next());
    EXPECT_EQ(joined(split(raw, 2), 2), raw) << n;
    EXPECT_EQ(joined(split(raw, 4), 4), raw) << n;
  }
}

}  // namespace byte_planes_test
}  // namespace tqcache::test
