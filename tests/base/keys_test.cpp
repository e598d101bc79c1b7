// Key files, key ids, and the ciphers under them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>

#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/access.h"
#include "tqcache/base/cipher.h"
#include "tqcache/hash.h"

namespace tqcache::test {
namespace keys_test {

using testing::HasSubstr;

Bytes bytes_of_hex(std::string_view hex) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// Another implementation (Python's hmac) gave these.
TEST(DeriveKey, IsHkdfSha256) {
  Bytes secret(32);
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(i);
  const SecretKey key(secret);
  EXPECT_EQ(to_hex(derive_key(key, {}, "tqcache key id 1").bytes()),
            "9ca1b12501fea23d7033d7c02b239311f37c42216608f06a4e1103509e5c0e33");
  EXPECT_EQ(to_hex(derive_key(key, Bytes(64, std::byte{7}), "tqcache file 1").bytes()),
            "ccb41f38c8ac2a3de44340c0a1a858edf57b961031a326a7fed4df5a97bbf747");
}

// Test case 16 of "The Galois/Counter Mode of Operation" (McGrew and Viega).
TEST(Seal, IsAes256Gcm) {
  const SecretKey key(
      bytes_of_hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"));
  Nonce nonce;
  std::ranges::copy(bytes_of_hex("cafebabefacedbaddecaf888"), nonce.begin());
  const Bytes associated = bytes_of_hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const Bytes plain = bytes_of_hex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  Bytes out(plain.size());
  const Tag tag = seal(key, nonce, associated, plain, out);
  EXPECT_EQ(to_hex(out),
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662");
  EXPECT_EQ(to_hex(tag), "76fc6ece0f4e1768cddf8853bb2d551b");
  EXPECT_TRUE(unseal(key, nonce, associated, tag, out));
  EXPECT_EQ(out, plain);
}

TEST(Unseal, LeavesNothingOfWhatItDoesNotAuthenticate) {
  const SecretKey key(Bytes(32, std::byte{1}));
  const Bytes plain(100, std::byte{5});
  Bytes sealed(plain.size());
  const Tag tag = seal(key, {}, {}, plain, sealed);
  const auto refused = [&](const SecretKey& with, const Nonce& nonce, const Bytes& associated,
                           Tag against) {
    Bytes bytes = sealed;
    const bool opened = unseal(with, nonce, associated, against, bytes);
    return !opened && bytes == Bytes(100);
  };
  Tag other = tag;
  other[15] ^= std::byte{1};
  EXPECT_TRUE(refused(key, {}, {}, other));
  EXPECT_TRUE(refused(key, {std::byte{1}}, {}, tag));
  EXPECT_TRUE(refused(key, {}, Bytes(1), tag));
  EXPECT_TRUE(refused(SecretKey(Bytes(32, std::byte{2})), {}, {}, tag));
}

TEST(Seal, TakesAnyLength) {
  const SecretKey key(Bytes(32, std::byte{1}));
  for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 4096u, 100001u}) {
    const Bytes plain(size, std::byte{9});
    Bytes bytes = plain;
    const Tag tag = seal(key, {}, {}, bytes, bytes);  // in place
    EXPECT_EQ(bytes == plain, size == 0) << size;
    EXPECT_TRUE(unseal(key, {}, {}, tag, bytes));
    EXPECT_EQ(bytes, plain);
  }
}

const std::string kHexA(64, 'a');
const std::string kHexB(64, 'B');

TEST(KeyRing, IsParsedFromBytesOrLines) {
  EXPECT_EQ(KeyRing::parse(Bytes(32, std::byte{0xaa})).value().ids(),
            KeyRing::parse(as_bytes(kHexA)).value().ids());
  const KeyRing two = KeyRing::parse(as_bytes(kHexB + "\r\n\n" + kHexA + "\n")).value();
  ASSERT_EQ(two.ids().size(), 2u);
  const KeyRing a = KeyRing::parse(as_bytes(kHexA)).value();
  EXPECT_EQ(two.ids()[1], a.first_id());
  EXPECT_NE(two.first_id(), a.first_id());
  EXPECT_EQ(two.only(a.first_id()).ids(), a.ids());
  EXPECT_TRUE(a.only(two.first_id()).empty());
  EXPECT_EQ(a.with(two).ids(), (std::vector<KeyId>{two.ids()[1], two.ids()[0]}));
  EXPECT_EQ(KeyRing::parse(as_bytes(kHexA + "\n" + kHexA)).value().ids(), a.ids());
}

TEST(KeyRing, RefusesOtherTextsWithoutRepeatingThem) {
  for (const std::string& text :
       {std::string(), std::string("\n\n"), std::string("secret"), std::string(63, 'a'),
        std::string(65, 'a'), std::string(63, 'a') + "g", std::string(33, '\0')}) {
    EXPECT_THAT(KeyRing::parse(as_bytes(text)),
                test::FailsWith(ErrorCode::kInvalidArgument, testing::Not(HasSubstr("secret"))));
  }
  std::string many;
  for (int i = 0; i < 100; ++i) many += std::string(62, 'c') + std::to_string(10 + i % 90) + "\n";
  EXPECT_FALSE(KeyRing::parse(as_bytes(many)).ok());
}

TEST(KeyRing, RefusesAFileThatOthersMayRead) {
  const TempDir dir;
  const auto path = dir / "a.key";
  write_all(path, as_bytes(kHexA));
  for (const ::mode_t mode : {0640u, 0604u, 0620u, 0644u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_THAT(KeyRing::read_file(path),
                test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("chmod 600")));
  }
  for (const ::mode_t mode : {0600u, 0400u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(KeyRing::read_file(path).ok());
  }
  EXPECT_EQ(KeyRing::read_file(dir / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(KeyRing::read_file(dir.path()).error().code, ErrorCode::kIo);
}

TEST(KeyRing, IsReadFromAPipe) {
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe(ends.data()), 0);
  ASSERT_EQ(::write(ends[1], kHexA.data(), kHexA.size()), 64);
  ::close(ends[1]);
  const auto read = KeyRing::read_file("/dev/fd/" + std::to_string(ends[0]));
  ::close(ends[0]);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->ids().size(), 1u);
}

TEST(SecretKey, IsGoneAfterAMove) {
  SecretKey key(Bytes(32, std::byte{3}));
  const SecretKey moved = std::move(key);
  EXPECT_EQ(moved.bytes()[0], std::byte{3});
  EXPECT_EQ(key.bytes()[0], std::byte{0});  // NOLINT(use-after-move)
}

TEST(FillRandom, GivesOtherBytesEachTime) {
  std::array<std::byte, 32> a{}, b{};
  ASSERT_TRUE(fill_random(a));
  ASSERT_TRUE(fill_random(b));
  EXPECT_NE(a, b);
}

}  // namespace keys_test
}  // namespace tqcache::test
