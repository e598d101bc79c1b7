#include "tqcache/hash.h"

#include <gtest/gtest.h>

namespace tqcache {
namespace hash_test {

std::string sha256_hex(std::string_view text) { return to_hex(sha256(as_bytes(text))); }

// FIPS 180-4 examples.
TEST(Sha256, EqualsThePublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, DoesNotDependOnThePiecesItCameIn) {
  const std::string text(300, 'x');
  const ByteView whole = as_bytes(text);
  for (const std::size_t cut : {0u, 1u, 55u, 56u, 63u, 64u, 65u, 299u, 300u}) {
    Sha256Hasher hasher;
    hasher.update(whole.first(cut));
    hasher.update({});
    hasher.update(whole.subspan(cut));
    EXPECT_EQ(hasher.finish(), sha256(whole)) << cut;
  }
}

TEST(Sha256, GoesOnAfterTheHasherMoved) {
  Sha256Hasher first;
  first.update(as_bytes("ab"));
  Sha256Hasher second = std::move(first);
  second.update(as_bytes("c"));
  EXPECT_EQ(second.finish(), sha256(as_bytes("abc")));
}

// xxHash's own test vectors for no input and seed 0.
TEST(Xxh3, EqualsThePublishedVectors) {
  EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128({}).high, 0x99aa06d3014798d8u);
  EXPECT_EQ(xxh3_128({}).low, 0x6001c324468d497fu);
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
}

TEST(Xxh3, ChangesWithEveryBit) {
  Bytes bytes(257);
  const Checksum128 before = xxh3_128(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte{1} << bit;
      EXPECT_NE(xxh3_128(bytes), before) << i << ' ' << bit;
      bytes[i] ^= std::byte{1} << bit;
    }
  }
  EXPECT_EQ(xxh3_128(bytes), before);
}

TEST(Hex, IsLowerCaseWithTheMostSignificantDigitFirst) {
  const Bytes bytes = {std::byte{0x00}, std::byte{0x0f}, std::byte{0xa9}};
  EXPECT_EQ(to_hex(bytes), "000fa9");
  EXPECT_EQ(to_hex(ByteView{}), "");
  EXPECT_EQ(to_hex(Checksum128{.low = 1, .high = 0x23}), "00000000000000230000000000000001");
}

}  // namespace hash_test
}  // namespace tqcache
