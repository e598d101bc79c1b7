// Every byte of a file matters: whatever is changed, cut or added is found.

#include <gtest/gtest.h>

#include <initializer_list>

#include "file_fixture.h"

namespace tqcache::test {
namespace {

// Small files of every kind of section, stored and compressed.
Bytes small_mixed_file(Compression compression) {
  cache::Cache cache =
      CacheBuilder(2).dense({1, 8}, Dtype::kBF16).turbo({1, 32}, 4, 3).arrays().build();
  // Something to compress, so that there are frames to damage.
  cache::ArraysLayer zeros;
  zeros.arrays.push_back({"zeros", Dtype::kF32, {50}, AlignedBytes(200)});
  cache.layers.emplace_back(std::move(zeros));
  return file_of(cache, compression);
}

// A load fails, or gives the same cache when the byte was of no weight; verify always tells.
void expect_found(const Bytes& damaged, const cache::Cache& original, const std::string& what) {
  if (const auto loaded = load(damaged, {.n_threads = 1})) {
    ASSERT_EQ(difference(*loaded, original), "") << what;
  }
  ASSERT_FALSE(damage_of(damaged).empty()) << what;
}

class Damage : public testing::TestWithParam<Compression> {
 protected:
  const Bytes file_ = small_mixed_file(GetParam());
  const cache::Cache cache_ = must(load(file_));
};

TEST_P(Damage, OfAnyBitIsFound) {
  for (std::size_t i = 0; i < file_.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes damaged = file_;
      damaged[i] ^= std::byte(1u << bit);
      expect_found(damaged, cache_, "byte " + std::to_string(i) + " bit " + std::to_string(bit));
    }
  }
}

// Changes every byte of the manifest in each of these ways, with the checksums made right.
void expect_manifest_safe(const Bytes& file, std::initializer_list<unsigned> flips) {
  const cache::Cache original = must(load(file));
  const auto manifest = value_at<std::uint64_t>(file, kManifestOffsetAt);
  for (std::size_t i = manifest; i < file.size(); ++i) {
    for (const unsigned flip : flips) {
      Bytes damaged = file;
      damaged[i] ^= std::byte(flip);
      reseal(damaged);
      // Most bytes are the content name's business. What is not is the writer's name, room that
      // FlatBuffers leaves between its parts, and where two parts are equal: all without weight.
      if (const auto loaded = load(damaged, {.n_threads = 1})) {
        ASSERT_EQ(difference(*loaded, original), "") << "byte " << i;
      }
      damage_of(damaged);
    }
  }
}

TEST_P(Damage, OfAnyByteOfTheManifestThatKeepsTheChecksumsRightIsSafe) {
  expect_manifest_safe(file_, {0x01, 0x80, 0xff});
}

TEST(DamagedManifest, OfAnyModeIsSafe) {
  CacheBuilder builder(256);
  builder.identity().rope.n_dims = 32;
  cache::SidePlan plan;
  plan.n_sinks = 1;
  for (const codec::Mode mode : {codec::Mode::kProd, codec::Mode::kMixed, codec::Mode::kAffine}) {
    plan.codec = {
        .mode = mode, .bits = 2, .outlier_channels = 8, .outlier_bits = 3, .group_size = 32};
    builder.sides({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan);
  }
  expect_manifest_safe(file_of(builder.build()), {0x81});
}

TEST_P(Damage, ByCuttingIsFoundAtEveryLength) {
  for (std::size_t size = 0; size < file_.size(); ++size) {
    const Bytes cut(file_.begin(), file_.begin() + static_cast<std::ptrdiff_t>(size));
    const auto loaded = load(cut);
    ASSERT_FALSE(loaded.ok()) << size;
    ASSERT_EQ(loaded.error().code, ErrorCode::kTruncated) << size << loaded.error().message;
    ASSERT_FALSE(format::verify_cache(*memory_source(cut)).ok()) << size;
  }
}

TEST_P(Damage, ByAddingBytesIsFound) {
  for (std::size_t n = 1; n <= 16; ++n) {
    for (const std::byte value : {std::byte{0}, std::byte{0xff}}) {
      Bytes longer = file_;
      longer.resize(file_.size() + n, value);
      expect_refused(longer, ErrorCode::kCorrupt, "bytes behind the end");
    }
  }
}

TEST_P(Damage, ByTakingBytesOutIsFound) {
  for (std::size_t i = 0; i < file_.size(); ++i) {
    Bytes shorter = file_;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i));
    ASSERT_FALSE(load(shorter).ok()) << i;
    shorter.push_back(std::byte{0});
    if (shorter == file_) continue;  // taken out of the zeros at the end
    expect_found(shorter, cache_, "byte " + std::to_string(i) + " taken out");
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Damage, testing::Values(Compression::kNone, Compression::kZstd),
                         [](const auto& test) {
                           return test.param == Compression::kZstd ? "Zstd" : "Stored";
                         });

// A source that ends early between being opened and being read.
class ShrinkingSource : public ByteSource {
 public:
  ShrinkingSource(Bytes bytes, std::uint64_t readable)
      : source_(memory_source(std::move(bytes))), readable_(readable) {}
  std::uint64_t size() const override { return source_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset + out.size() > readable_) return Error{ErrorCode::kTruncated, "cut meanwhile"};
    return source_->read_at(offset, out);
  }

 private:
  std::unique_ptr<ByteSource> source_;
  std::uint64_t readable_;
};

TEST(DamageWhileReading, IsAnErrorAndNoCrash) {
  const Bytes file = small_file();
  for (std::size_t readable = 0; readable < file.size(); ++readable) {
    const ShrinkingSource source(file, readable);
    ASSERT_EQ(format::read_cache(source).error().code, ErrorCode::kTruncated) << readable;
  }
}

}  // namespace
}  // namespace tqcache::test
