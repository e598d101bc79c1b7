// Blobs that are cut, changed, or those of another key: each is told, none is taken.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "store/blob_fixture.h"
#include "support/matchers.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace blob_damage_test {

using testing::HasSubstr;

void expect_error(const std::string& key, ByteView blob, ErrorCode code, std::string_view message) {
  EXPECT_THAT(decode(key, blob), test::FailsWith(code, HasSubstr(message)));
}

class AnyBlob : public testing::TestWithParam<const char*> {
 protected:
  const std::string key_ = sample(GetParam()).key;
  Bytes blob_ = sample_bytes(GetParam());
};

TEST_P(AnyBlob, EveryFlippedBitIsRefused) {
  for (std::size_t i = 0; i < blob_.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      blob_[i] ^= std::byte(1 << bit);
      ASSERT_FALSE(decode(key_, blob_).ok()) << "byte " << i << " bit " << bit;
      blob_[i] ^= std::byte(1 << bit);
    }
  }
  EXPECT_TRUE(decode(key_, blob_).ok());
}

TEST_P(AnyBlob, EveryTruncationIsRefused) {
  for (std::size_t n = 0; n < blob_.size(); ++n) {
    const auto decoded = decode(key_, ByteView(blob_).first(n));
    ASSERT_FALSE(decoded.ok()) << n;
    ASSERT_EQ(decoded.error().code, ErrorCode::kTruncated) << n;
  }
}

TEST_P(AnyBlob, TrailingBytesAreRefused) {
  blob_.push_back(std::byte{0});
  expect_error(key_, blob_, ErrorCode::kCorrupt, "1 bytes after the end");
}

TEST_P(AnyBlob, UnderAnotherKeyIsAMismatch) {
  for (const SampleBlob& other : sample_blobs()) {
    if (other.name == GetParam()) continue;
    expect_error(other.key, blob_, ErrorCode::kMismatch, "the blob is that of another key");
  }
  std::string near = key_;
  near.back() = near.back() == '0' ? '1' : '0';
  expect_error(near, blob_, ErrorCode::kMismatch, "the blob is that of another key");
}

// Whatever else a later version changes, its magic and the checksum of its header stand where they
// do now.
TEST_P(AnyBlob, OfALaterVersionIsUnsupported) {
  put_number(blob_, 8, std::uint32_t{4});
  reseal_blob(blob_);
  expect_error(key_, blob_, ErrorCode::kUnsupported, "version 4 is newer than version 3");
}

// Digests that fit are no reason to trust: kinds, sizes and offsets are looked at for themselves.
TEST_P(AnyBlob, OfAnotherKindThanItsKeyIsCorrupt) {
  const auto kind = number_at<std::uint32_t>(blob_, 12);
  for (std::uint32_t other = 1; other <= store::kBlobKinds; ++other) {
    if (other == kind) continue;
    put_number(blob_, 12, other);
    reseal_blob(blob_);
    EXPECT_FALSE(decode(key_, blob_).ok()) << other;
  }
}

// What comes out is read, and then can be written, or an error that says something.
TEST_P(AnyBlob, WithAChangedDescriptionIsReadOrRefused) {
  const auto n = number_at<std::uint64_t>(blob_, 24);
  for (std::size_t i = 64; i < 64 + n; ++i) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      const std::byte before = std::exchange(blob_[i], std::byte(value));
      reseal_blob(blob_);
      const auto decoded = decode(key_, blob_);
      EXPECT_TRUE(decoded ? store::encode_blob(key_, *decoded).ok()
                          : !decoded.error().message.empty())
          << i;
      blob_[i] = before;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AnyBlob,
                         testing::Values("parameters", "block", "state", "data", "record", "usage",
                                         "next"),
                         [](const auto& each) { return std::string(each.param); });

class DamagedBlob : public testing::Test {
 protected:
  void expect_corrupt(std::string_view message) {
    reseal_blob(blob_);
    expect_error(key_, blob_, ErrorCode::kCorrupt, message);
  }

  const std::string key_ = sample("data").key;
  Bytes blob_ = sample_bytes("data");
};

TEST_F(DamagedBlob, AWrongMagicIsRefused) {
  blob_[3] = std::byte{'V'};
  expect_error(key_, blob_, ErrorCode::kCorrupt, "not a blob of a store");
  expect_error(key_, as_bytes("no"), ErrorCode::kCorrupt, "not a blob of a store");
}

TEST_F(DamagedBlob, TheHeaderHasAChecksum) {
  blob_[20] ^= std::byte{1};
  expect_error(key_, blob_, ErrorCode::kCorrupt, "header: checksum mismatch");
}

TEST_F(DamagedBlob, ThereIsNoVersion0) {
  put_number(blob_, 8, std::uint32_t{0});
  expect_corrupt("version 0");
}

TEST_F(DamagedBlob, ThereAreSevenKinds) {
  put_number(blob_, 12, std::uint32_t{0});
  expect_corrupt("kind 0");
  put_number(blob_, 12, std::uint32_t{8});
  expect_corrupt("kind 8");
}

TEST_F(DamagedBlob, ReservedBytesAreZero) {
  blob_[48] = std::byte{1};
  expect_corrupt("reserved bytes");
}

TEST_F(DamagedBlob, TheDescriptionIsWithinTheBlob) {
  for (const std::uint64_t n : {std::uint64_t{blob_.size()}, store::kMaxDescriptionBytes}) {
    put_number(blob_, 24, n);
    expect_corrupt("the description reaches past the end");
  }
  for (const std::uint64_t n : {store::kMaxDescriptionBytes + 1, ~std::uint64_t{0}}) {
    put_number(blob_, 24, n);
    reseal_blob(blob_);
    expect_error(key_, blob_, ErrorCode::kTooLarge, "a description of");
  }
}

TEST_F(DamagedBlob, TheDescriptionHasAChecksum) {
  blob_[100] ^= std::byte{1};
  expect_error(key_, blob_, ErrorCode::kCorrupt, "description: checksum mismatch");
}

TEST_F(DamagedBlob, TheDescriptionIsAFlatBuffer) {
  std::fill(blob_.begin() + 64, blob_.begin() + 80, std::byte{0xff});
  expect_corrupt("description: not a valid FlatBuffer");
  put_number(blob_, 24, std::uint64_t{0});
  expect_corrupt("description: not a valid FlatBuffer");
}

// Gaps between sections are zero, and so is what stands between description and sections.
TEST_F(DamagedBlob, PaddingIsZero) {
  Bytes changed = blob_;
  const auto sections = (64 + number_at<std::uint64_t>(blob_, 24) + 63) / 64 * 64;
  changed[sections + 192 + 5] = std::byte{1};
  expect_error(key_, changed, ErrorCode::kCorrupt, "section 2 (layer 1 array 0): bytes before it");
  const std::string usage_key = sample("usage").key;
  Bytes usage = sample_bytes("usage");
  ASSERT_NE(number_at<std::uint64_t>(usage, 24) % 64, 0U);
  usage.back() = std::byte{1};
  expect_error(usage_key, usage, ErrorCode::kCorrupt, "bytes between description and sections");
}

TEST_F(DamagedBlob, SectionsEndWithTheBlob) {
  blob_.resize(blob_.size() + 64);
  put_number(blob_, 16, std::uint64_t{blob_.size()});
  expect_corrupt("64 bytes too many");
  blob_.resize(blob_.size() - 65);
  put_number(blob_, 16, std::uint64_t{blob_.size()});
  expect_corrupt("reaches past the end");
}

TEST_F(DamagedBlob, SectionsHaveChecksums) {
  blob_.back() ^= std::byte{1};
  expect_error(key_, blob_, ErrorCode::kCorrupt, "section 5 (layer 2 array 1): checksum mismatch");
}

// Made once and kept: whatever becomes of this library, it reads them, and writes the same.
TEST(GoldenBlobs, AreReadAndWrittenByteForByte) {
  const std::filesystem::path folder = TQCACHE_GOLDEN_BLOBS;
  for (const SampleBlob& each : sample_blobs()) {
    const Bytes golden = read_all(folder / (each.name + ".tqkb"));
    EXPECT_TRUE(decode(each.key, golden).ok()) << each.name;
    EXPECT_EQ(sample_bytes(each.name), golden) << each.name;
  }
}

}  // namespace blob_damage_test
}  // namespace tqcache::test
