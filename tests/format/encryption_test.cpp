// Encrypted files: round trips, keys, and everything that somebody without the key could do to
// them.

#include "tqcache/format/encryption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "append_fixture.h"
#include "archive_fixture.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"

namespace tqcache::test {
namespace encryption_test {

using format::kEnvelopeBytes;
using format::Salt;
using testing::HasSubstr;
using testing::IsEmpty;

KeyRing ring(int first, int second = 0) {
  const auto key = [](int n) { return must(KeyRing::parse(Bytes(32, std::byte(n)))); };
  return second == 0 ? key(first) : key(first).with(key(second));
}

format::WriteOptions sealed(const KeyRing& keys = ring(1),
                            Compression compression = Compression::kNone) {
  return {.compression = compression, .n_threads = 1, .keys = keys};
}

Bytes sealed_file(const cache::Cache& cache, Compression compression = Compression::kNone,
                  const KeyRing& keys = ring(1)) {
  return must(format::write_cache_bytes(cache, sealed(keys, compression)));
}

Result<cache::Cache> open(const Bytes& file, const KeyRing& keys = ring(1)) {
  return load(file, {.n_threads = 1, .access = {keys}});
}

CacheFileInfo sealed_info(const Bytes& file, const KeyRing& keys = ring(1)) {
  return must(format::read_cache_info(*memory_source(file), keys));
}

std::vector<std::string> sealed_damage(const Bytes& file, const KeyRing& keys = ring(1)) {
  auto report = format::verify_cache(*memory_source(file), {.n_threads = 1, .access = {keys}});
  if (!report) return {report.error().message};
  return report->damage;
}

cache::Cache small_cache() { return CacheBuilder(3).dense({2, 4}).dense({2, 4}).build(); }

cache::Cache mixed_cache() {
  return CacheBuilder(300)
      .dense({1, 32}, Dtype::kF32)
      .turbo({2, 32}, 4, 3)
      .arrays()
      .mixed({1, 36}, Dtype::kBF16, 16, Dtype::kF16, 1)
      .build();
}

// A file on disk that is encrypted and appended to.
class SealedFile {
 public:
  explicit SealedFile(const cache::Cache& cache, const KeyRing& keys = ring(1)) : keys_(keys) {
    must(format::write_cache_file(cache, path(), sealed(keys)));
  }
  explicit SealedFile(const Bytes& bytes) : keys_(ring(1)) { write_all(path(), bytes); }
  std::filesystem::path path() const { return dir_ / "cache.tqkv"; }
  Bytes bytes() const { return read_all(path()); }
  Result<format::AppendReport> append(const cache::Cache& cache,
                                      const Progress& progress = {}) const {
    TQC_TRY_ASSIGN(format::CacheAppender appender, format::CacheAppender::open(path(), {keys_}));
    return appender.append(cache, sealed(keys_), progress);
  }

 private:
  TempDir dir_;
  KeyRing keys_;
};

// --- round trips

TEST(EncryptedFile, HoldsTheSameAsAPlainOne) {
  const std::vector<cache::Cache> caches = {CacheBuilder(0).dense({2, 4}).build(),
                                            small_cache(),
                                            mixed_cache(),
                                            preset_cache(),
                                            archive_cache(),
                                            CacheBuilder(300).dense({1, 4}).hide_tokens().build()};
  for (const cache::Cache& cache : caches) {
    for (const Compression compression : kCompressions) {
      const Bytes file = sealed_file(cache, compression);
      const auto loaded = open(file);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      EXPECT_EQ(difference(*loaded, cache), "");
      EXPECT_THAT(sealed_damage(file), IsEmpty());
      const Bytes plain = file_of(cache, compression);
      EXPECT_EQ(sealed_info(file).content_name, info_of(plain).content_name);
      EXPECT_EQ(value_at<std::uint64_t>(file, kManifestOffsetAt),
                value_at<std::uint64_t>(plain, kManifestOffsetAt));
    }
  }
}

TEST(EncryptedFile, IsReadInPartsAndMapped) {
  const cache::Cache cache = mixed_cache();
  const SealedFile file(cache);
  const format::ReadOptions options{.n_threads = 2, .access = {ring(1)}};
  EXPECT_EQ(difference(must(format::map_cache(file.path(), options)), cache), "");
  const SealedFile dense(CacheBuilder(300).dense({1, 32}).build());
  const auto first = must(format::read_cache(
      *must(open_file(dense.path())), {.n_threads = 1, .first_tokens = 100, .access = {ring(1)}}));
  EXPECT_EQ(first.n_tokens(), 100);
}

TEST(EncryptedFile, IsConvertedWithoutAPlainCopy) {
  const cache::Cache cache = CacheBuilder(300).dense({1, 64}).build();
  const SealedFile source(cache);
  const TempDir dir;
  const auto out = dir / "out.tqkv";
  must(format::convert_file(*must(open_file(source.path())), out, {}, sealed(ring(2, 1)), {},
                            {.access = {ring(1)}}));
  const Bytes converted = read_all(out);
  EXPECT_EQ(sealed_info(converted, ring(2)).encryption->key_id, ring(2).first_id());
  const auto plain = dir / "plain.tqkv";
  const Bytes plain_source = file_of(cache);
  must(format::convert_file(*memory_source(plain_source), plain, {}, {.n_threads = 1}));
  EXPECT_EQ(sealed_info(converted, ring(2)).content_name, info_of(read_all(plain)).content_name);
}

TEST(EncryptedFile, HasOtherBytesEachTime) {
  const cache::Cache cache = small_cache();
  const Bytes a = sealed_file(cache), b = sealed_file(cache);
  EXPECT_NE(sealed_info(a).encryption->file_id, sealed_info(b).encryption->file_id);
  EXPECT_NE(sealed_info(a).encryption->writes, sealed_info(b).encryption->writes);
}

// --- keys

TEST(EncryptedFile, IsRefusedWithoutItsKey) {
  const SealedFile file(mixed_cache());
  const Bytes bytes = file.bytes();
  const std::string id = to_hex(ring(1).first_id());
  for (const KeyRing& keys : {KeyRing(), ring(2), ring(2, 3)}) {
    const auto refused = [&](const Result<void>& result) {
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().code, ErrorCode::kNoKey);
      EXPECT_THAT(result.error().message, HasSubstr(id));
      if (!keys.empty()) {
        EXPECT_THAT(result.error().message, HasSubstr(to_hex(keys.first_id())));
      }
    };
    const auto source = memory_source(bytes);
    refused(dropped(open(bytes, keys)));
    refused(dropped(format::read_cache_info(*source, keys)));
    refused(dropped(format::verify_cache(*source, {.n_threads = 1, .access = {keys}})));
    refused(dropped(format::map_cache(file.path(), {.n_threads = 1, .access = {keys}})));
    refused(dropped(format::CacheAppender::open(file.path(), {keys})));
    refused(dropped(format::compact_file(file.path(), sealed(keys), {}, {keys})));
    refused(dropped(format::rekey_file(file.path(), {keys}, file.path(), sealed(keys))));
    const TempDir dir;
    refused(
        format::convert_file(*source, dir / "out.tqkv", {}, sealed(keys), {}, {.access = {keys}}));
    EXPECT_EQ(dir.entry_count(), 0u);
  }
  EXPECT_EQ(file.bytes(), bytes);
}

TEST(EncryptedFile, IsReadWithAnyKeyOfTheRing) {
  const Bytes file = sealed_file(small_cache(), Compression::kNone, ring(2, 1));
  EXPECT_EQ(sealed_info(file, ring(1, 2)).encryption->key_id, ring(2).first_id());
  EXPECT_FALSE(open(file, ring(1)).ok());
  EXPECT_TRUE(open(file, ring(1, 2)).ok());
}

TEST(PlainFile, IsReadAlsoWithKeysButNotAppendedTo) {
  const cache::Cache cache = small_cache();
  EXPECT_TRUE(open(file_of(cache)).ok());
  const CacheOnDisk file(cache);
  auto appender = must(format::CacheAppender::open(file.path(), {ring(1)}));
  const auto refused = appender.append(grown(cache, 2), sealed());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.bytes(), file_of(cache));
}

// Programs from before encryption know bits 0 to 3, and refuse others as unsupported.
TEST(EncryptedFile, IsRefusedByOlderReaders) {
  constexpr std::uint32_t kKnownBefore = 15;  // of the program before encryption
  EXPECT_NE(value_at<std::uint32_t>(sealed_file(small_cache()), kRequiredAt) & ~kKnownBefore, 0u);
  Bytes plain = file_of(small_cache());
  patch(plain, kRequiredAt, std::uint32_t{256});
  reseal_slot(plain);
  expect_refused(plain, ErrorCode::kUnsupported, "bits 256");
}

// --- secrecy

// Whether `part` occurs in `bytes`.
bool has(const Bytes& bytes, ByteView part) {
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

// 16 bytes at each multiple of 16 of the secrets of a cache: tokens, identity, values.
std::vector<Bytes> secrets_of(const cache::Cache& cache) {
  std::vector<Bytes> secrets;
  const auto add = [&](ByteView bytes) {
    for (std::size_t at = 0; at + 16 <= bytes.size(); at += 16) {
      const ByteView part = bytes.subspan(at, 16);
      const bool is_plain = std::ranges::all_of(part, [&](std::byte b) { return b == part[0]; });
      if (!is_plain) secrets.emplace_back(part.begin(), part.end());
    }
  };
  add(object_bytes(cache.tokens));
  const Bytes plain = file_of(cache);
  for (const SectionInfo& section : info_of(plain).sections) {
    add(ByteView(plain).subspan(section.file_offset, section.stored_bytes));
    add(section.raw_sha256);
  }
  add(cache.identity.weights_fingerprint);
  add(cache.identity.tokenizer_fingerprint);
  add(info_of(plain).content_name);
  secrets.emplace_back(as_bytes("tqcache.attention").begin(), as_bytes("tqcache.attention").end());
  return secrets;
}

TEST(EncryptedFile, ShowsNothingOfItsContent) {
  cache::Cache cache = mixed_cache();
  for (std::size_t i = 0; i < cache.identity.weights_fingerprint.size(); ++i) {
    cache.identity.weights_fingerprint[i] = std::byte(17 * i + 3);
  }
  const SealedFile file(cache);
  const cache::Cache longer = grown(cache, 300);
  must(file.append(longer));
  const Bytes bytes = file.bytes();
  const Bytes plain = appended_file(cache, longer);
  std::size_t n_found_in_plain = 0;
  for (const cache::Cache& each : {cache, longer}) {
    for (const Bytes& secret : secrets_of(each)) {
      ASSERT_FALSE(has(bytes, secret));
      n_found_in_plain += has(plain, secret);
    }
  }
  EXPECT_GT(n_found_in_plain, 100u);  // so the search does find
}

// --- integrity

// A header that fits whatever stands behind it: the attacker knows all checksums.
Bytes resealed(Bytes file) {
  const auto offset = value_at<std::uint64_t>(file, kManifestOffsetAt);
  const Checksum128 sum = xxh3_128(ByteView(file).subspan(offset));
  format::HeaderSlot like = header_of(sealed_file(small_cache())).slot;
  like.manifest_checksum = sum;
  const format::SlotBytes encoded = format::encode_slot(like);
  std::copy_n(encoded.begin() + 40, 16, file.begin() + 40);
  reseal_slot(file);
  return file;
}

TEST(EncryptedFile, EveryChangedByteIsFound) {
  const cache::Cache cache = small_cache();
  const Bytes file = sealed_file(cache);
  for (std::size_t at = 0; at < file.size(); ++at) {
    Bytes damaged = file;
    damaged[at] ^= std::byte{0x10};
    ASSERT_THAT(sealed_damage(damaged), testing::Not(IsEmpty())) << at;
    const auto loaded = open(damaged);
    // Only the slot that is not in use does not matter.
    ASSERT_TRUE(!loaded || (at >= 64 && at < 128)) << at;
  }
}

TEST(EncryptedFile, EveryChangedByteIsFoundThoughAllChecksumsAreRight) {
  const Bytes file = sealed_file(small_cache());
  const auto manifest = static_cast<std::size_t>(value_at<std::uint64_t>(file, kManifestOffsetAt));
  std::set<ErrorCode> codes;
  for (std::size_t at = manifest; at < file.size(); ++at) {
    Bytes damaged = file;
    damaged[at] ^= std::byte{0x10};
    const auto loaded = open(resealed(damaged));
    ASSERT_FALSE(loaded.ok()) << at;
    codes.insert(loaded.error().code);
    const std::size_t in_envelope = at - manifest;
    if (in_envelope >= 32 && in_envelope < 112) {
      EXPECT_THAT(loaded.error().message, HasSubstr("authentication failed")) << at;
    }
  }
  EXPECT_THAT(
      codes, testing::ElementsAre(ErrorCode::kCorrupt, ErrorCode::kUnsupported, ErrorCode::kNoKey));
  // The header's own fields.
  for (std::size_t at = kGenerationAt; at < 40; ++at) {
    Bytes damaged = file;
    damaged[at] ^= std::byte{2};
    reseal_slot(damaged);
    EXPECT_FALSE(open(damaged).ok()) << at;
  }
}

TEST(EncryptedFile, TheGenerationIsAuthenticated) {
  Bytes file = sealed_file(small_cache());
  patch(file, kGenerationAt, std::uint32_t{3});
  reseal_slot(file);
  expect_error(dropped(open(file)), ErrorCode::kCorrupt, "authentication failed");
  file = sealed_file(small_cache());
  patch(file, kOptionalAt, std::uint32_t{1});
  reseal_slot(file);
  expect_error(dropped(open(file)), ErrorCode::kCorrupt, "authentication failed");
}

TEST(EncryptedFile, SectionsCannotBeExchanged) {
  Bytes file = sealed_file(small_cache());
  const CacheFileInfo info = sealed_info(file);
  const auto begin = [&](std::size_t i) {
    return file.begin() + static_cast<std::ptrdiff_t>(info.sections[i].file_offset);
  };
  const auto size = static_cast<std::ptrdiff_t>(info.sections[0].stored_bytes);
  ASSERT_EQ(info.sections[0].stored_bytes, info.sections[2].stored_bytes);
  std::swap_ranges(begin(0), begin(0) + size, begin(2));
  expect_error(dropped(open(file)), ErrorCode::kCorrupt, "section 0 (layer 0 k");
  EXPECT_EQ(sealed_damage(file).size(), 2u);
}

// Even somebody who has the key of the manifest, but of another file, cannot move a section: each
// is bound to its place by its associated data.
TEST(EncryptedFile, ASectionIsBoundToItsPlace) {
  const auto cipher = must(format::FileCipher::make(ring(1)));
  SectionInfo section;
  section.raw_bytes = section.stored_bytes = 40;
  Bytes bytes(40, std::byte{5});
  cipher->seal_section(3, bytes, bytes, section);
  const auto refused = [&](const format::FileCipher& with, const auto& change) {
    SectionInfo other = section;
    change(other);
    Bytes copy = bytes;
    return !with.unseal_section(other, copy).ok() && copy == Bytes(40);
  };
  EXPECT_FALSE(refused(*cipher, [](SectionInfo&) {}));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.layer = 1; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.block = 1; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.tensor = cache::TensorKind::kValues; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.packed = true; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.compression = Compression::kZstd; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.raw_bytes += 1; }));
  EXPECT_TRUE(refused(*cipher, [](SectionInfo& s) { s.seal.number = 4; }));
  // Another file with the same key, another write of the same file.
  EXPECT_TRUE(refused(*must(format::FileCipher::make(ring(1))), [](SectionInfo&) {}));
  EXPECT_TRUE(refused(*must(cipher->for_append({})), [](SectionInfo&) {}));
}

TEST(EncryptedFile, PartsOfAnotherFileWithTheSameKeyAreRefused) {
  const cache::Cache cache = small_cache();
  const Bytes file = sealed_file(cache), other = sealed_file(cache);
  ASSERT_EQ(file.size(), other.size());
  const auto manifest =
      static_cast<std::ptrdiff_t>(value_at<std::uint64_t>(file, kManifestOffsetAt));
  Bytes spliced = file;  // its sections
  std::copy(other.begin() + 128, other.begin() + manifest, spliced.begin() + 128);
  expect_error(dropped(open(spliced)), ErrorCode::kCorrupt, "authentication failed");
  spliced = file;  // its header and manifest
  std::copy(other.begin(), other.begin() + 128, spliced.begin());
  std::copy(other.begin() + manifest, other.end(), spliced.begin() + manifest);
  expect_error(dropped(open(spliced)), ErrorCode::kCorrupt, "authentication failed");
  spliced = file;  // its envelope
  std::copy_n(other.begin() + manifest, kEnvelopeBytes, spliced.begin() + manifest);
  expect_error(dropped(open(resealed(spliced))), ErrorCode::kCorrupt, "authentication failed");
}

TEST(EncryptedFile, CannotBeCut) {
  const Bytes file = sealed_file(small_cache());
  for (std::size_t size = 0; size < file.size(); size += 7) {
    EXPECT_FALSE(open(Bytes(file.begin(), file.begin() + std::ptrdiff_t(size))).ok()) << size;
  }
  Bytes cut(file.begin(), file.end() - 8);
  patch(cut, kFileBytesAt, std::uint64_t{cut.size()});
  EXPECT_FALSE(open(resealed(cut)).ok());
  const auto manifest = value_at<std::uint64_t>(file, kManifestOffsetAt);
  for (const std::size_t n : {1u, 127u, 128u}) {
    Bytes envelope(file.begin(), file.begin() + std::ptrdiff_t(manifest + n));
    patch(envelope, kFileBytesAt, std::uint64_t{envelope.size()});
    expect_error(dropped(open(resealed(envelope))), ErrorCode::kCorrupt, "too short");
  }
}

TEST(EncryptedFile, AnotherSchemeIsUnsupported) {
  Bytes file = sealed_file(small_cache());
  patch(file, static_cast<std::size_t>(value_at<std::uint64_t>(file, kManifestOffsetAt)),
        std::uint32_t{2});
  expect_error(dropped(open(resealed(file))), ErrorCode::kUnsupported, "encryption scheme 2");
}

TEST(EncryptedFile, TheBitHasToBeRight) {
  Bytes file = sealed_file(small_cache());
  patch(file, kRequiredAt, std::uint32_t{0});
  reseal_slot(file);
  EXPECT_FALSE(open(file).ok());
  Bytes plain = file_of(small_cache());
  patch(plain, kRequiredAt, format::kFeatureEncrypted);
  reseal_slot(plain);
  EXPECT_FALSE(open(plain).ok());
  // A plain file whose manifest says that it is encrypted.
  Manifest manifest = sealed_info(sealed_file(small_cache()));
  Bytes forged = with_manifest(file_of(small_cache()), manifest);
  patch(forged, kRequiredAt, std::uint32_t{0});
  reseal_slot(forged);
  expect_error(dropped(open(forged)), ErrorCode::kCorrupt, "required features");
}

// --- appending

// The encrypted messages of a state: write and number, and the tag of each.
using Messages = std::map<std::tuple<Salt, std::uint32_t>, std::array<std::byte, 16>>;

// Adds those of a file's state; fails when a pair of key and nonce occurs with another tag.
void collect(const Bytes& file, Messages& messages, std::set<Salt>& manifests) {
  const CacheFileInfo info = sealed_info(file);
  EXPECT_TRUE(manifests.insert(info.encryption->writes.back()).second) << "a write key is reused";
  for (const SectionInfo& section : info.sections) {
    const std::tuple key(info.encryption->writes[section.seal.write], section.seal.number);
    const auto [at, is_new] = messages.emplace(key, section.seal.tag);
    if (!is_new) {
      EXPECT_EQ(at->second, section.seal.tag) << "a nonce is reused";
    }
  }
}

TEST(EncryptedAppend, NeverRepeatsAKeyAndNonce) {
  cache::Cache cache = CacheBuilder(100).dense({1, 4}).turbo({1, 32}, 4, 3).arrays().build();
  const SealedFile file(cache);
  Messages messages;
  std::set<Salt> manifests;
  collect(file.bytes(), messages, manifests);
  for (int i = 0; i < 40; ++i) {
    const cache::Cache longer = grown(cache, 37, static_cast<unsigned>(i));
    if (i % 4 == 1) {  // cut short, and repeated
      const auto stop = [](std::uint64_t done, std::uint64_t) { return done == 0; };
      EXPECT_FALSE(file.append(longer, stop).ok());
    }
    if (i % 4 == 2) {  // a copy goes its own way
      const SealedFile copy(file.bytes());
      must(copy.append(grown(cache, 5, 99)));
      collect(copy.bytes(), messages, manifests);
      const SealedFile same(file.bytes());  // and another the same way
      must(same.append(longer));
      collect(same.bytes(), messages, manifests);
    }
    must(file.append(longer));
    collect(file.bytes(), messages, manifests);
    cache = longer;
  }
  EXPECT_EQ(difference(must(open(file.bytes())), cache), "");
  EXPECT_THAT(sealed_damage(file.bytes()), IsEmpty());
  EXPECT_GE(manifests.size(), 61u);
}

TEST(EncryptedAppend, RepeatedAfterAnInterruptionWritesOtherBytes) {
  const cache::Cache cache = CacheBuilder(100).dense({1, 64}).dense({1, 64}).build();
  const SealedFile file(cache);
  const std::size_t before = file.bytes().size();
  const cache::Cache longer = grown(cache, 10);
  Bytes first;
  const auto stop = [&](std::uint64_t done, std::uint64_t) {
    if (done > 0) first = file.bytes();
    return done == 0;
  };
  EXPECT_FALSE(file.append(longer, stop).ok());
  ASSERT_GT(first.size(), before + 1000);  // a section stood there
  EXPECT_EQ(file.bytes().size(), before);
  must(file.append(longer));
  const Bytes second = file.bytes();
  std::size_t n_same = 0;
  for (std::size_t i = before + 64; i < first.size(); ++i) n_same += first[i] == second[i];
  EXPECT_LT(n_same, (first.size() - before) / 16);  // 1 in 256 by chance
}

TEST(EncryptedAppend, KeepsOnlyTheWritesThatAreUsed) {
  cache::Cache cache = CacheBuilder(10).dense({1, 4}).build();
  const SealedFile file(cache);
  for (int i = 0; i < 5; ++i) {
    cache = grown(cache, 1);
    must(file.append(cache));
    EXPECT_EQ(sealed_info(file.bytes()).encryption->writes.size(), 1u);  // the tail is replaced
  }
  cache = grown(cache, 300);
  must(file.append(cache));
  cache = grown(cache, 1);
  must(file.append(cache));
  EXPECT_EQ(sealed_info(file.bytes()).encryption->writes.size(), 2u);
  EXPECT_EQ(difference(must(open(file.bytes())), cache), "");
}

TEST(EncryptedAppend, StaysWithTheKeyOfTheFile) {
  const cache::Cache cache = small_cache();
  const SealedFile file(cache);
  auto appender = must(format::CacheAppender::open(file.path(), {ring(2, 1)}));
  EXPECT_EQ(difference(must(appender.read()), cache), "");
  const cache::Cache longer = grown(cache, 2);
  must(appender.append(longer, sealed(ring(2, 1))));
  EXPECT_EQ(difference(must(open(file.bytes(), ring(1))), longer), "");
  must(appender.append(grown(longer, 2), {.n_threads = 1}));  // without keys, too
  EXPECT_EQ(sealed_info(file.bytes()).encryption->key_id, ring(1).first_id());
}

TEST(EncryptedAppend, GapsAreVerified) {
  const cache::Cache cache = small_cache();
  const SealedFile file(cache);
  must(file.append(grown(cache, 2)));
  Bytes bytes = file.bytes();
  const CacheFileInfo info = sealed_info(bytes);
  ASSERT_FALSE(info.gaps.empty());
  for (const format::GapInfo& gap : info.gaps) {
    bytes[gap.file_offset + 1] ^= std::byte{1};
    EXPECT_EQ(sealed_damage(bytes).size(), 1u);
    bytes[gap.file_offset + 1] ^= std::byte{1};
  }
}

// What is not promised: somebody who can write can bring back an older state.
TEST(EncryptedAppend, AnOlderStateIsStillAFile) {
  const cache::Cache cache = small_cache();
  const SealedFile file(cache);
  const Bytes before = file.bytes();
  must(file.append(grown(cache, 2)));
  EXPECT_EQ(difference(must(open(before)), cache), "");
}

// --- compacting and other keys

TEST(EncryptedCompact, KeepsTheKeyAndTheContent) {
  const cache::Cache cache = small_cache();
  const SealedFile file(cache);
  const cache::Cache longer = grown(cache, 2);
  must(file.append(longer));
  const CacheFileInfo before = sealed_info(file.bytes());
  must(format::compact_file(file.path(), sealed(), {}, {ring(2, 1)}));
  const CacheFileInfo after = sealed_info(file.bytes());
  EXPECT_EQ(after.content_name, before.content_name);
  EXPECT_EQ(after.encryption->key_id, ring(1).first_id());
  EXPECT_NE(after.encryption->file_id, before.encryption->file_id);
  EXPECT_EQ(after.gap_bytes, 0u);
  EXPECT_EQ(difference(must(open(file.bytes())), longer), "");
}

TEST(PlainCompact, StaysPlain) {
  const cache::Cache cache = small_cache();
  const CacheOnDisk file(cache);
  must(file.append(grown(cache, 2)));
  must(format::compact_file(file.path(), sealed()));
  EXPECT_FALSE(info_of(file.bytes()).encryption);
}

TEST(Rekey, EncryptsChangesTheKeyAndDecrypts) {
  const cache::Cache cache = mixed_cache();
  for (const Compression compression : kCompressions) {
    const CacheOnDisk file(cache, {.compression = compression, .n_threads = 1});
    const Bytes plain = file.bytes();
    must(format::rekey_file(file.path(), {}, file.path(), sealed(ring(1))));
    EXPECT_EQ(difference(must(open(file.bytes(), ring(1))), cache), "");
    must(format::rekey_file(file.path(), {ring(1)}, file.path(), sealed(ring(2))));
    EXPECT_FALSE(open(file.bytes(), ring(1)).ok());
    EXPECT_EQ(difference(must(open(file.bytes(), ring(2))), cache), "");
    EXPECT_EQ(sealed_info(file.bytes(), ring(2)).content_name, info_of(plain).content_name);
    must(format::rekey_file(file.path(), {ring(2)}, file.path(), {.n_threads = 1}));
    EXPECT_EQ(file.bytes(), plain);
    EXPECT_EQ(file.entry_count(), 1u);
  }
}

TEST(Rekey, WritesAnotherFile) {
  const cache::Cache cache = small_cache();
  const CacheOnDisk file(cache);
  const TempDir dir;
  const auto out = dir / "out.tqkv";
  must(format::rekey_file(file.path(), {}, out, sealed()));
  EXPECT_EQ(file.bytes(), file_of(cache));
  EXPECT_EQ(difference(must(open(read_all(out))), cache), "");
  EXPECT_EQ(format::rekey_file(file.path(), {}, out, sealed()).error().code,
            ErrorCode::kInvalidArgument);  // it exists
}

TEST(Rekey, LeavesADamagedFileAlone) {
  Bytes bytes = sealed_file(small_cache());
  bytes[130] ^= std::byte{1};
  const SealedFile file(bytes);
  EXPECT_FALSE(format::rekey_file(file.path(), {ring(1)}, file.path(), sealed(ring(2))).ok());
  EXPECT_EQ(file.bytes(), bytes);
}

// Adds all sections of a plain file to a new one. `finish` ends it with that file's manifest.
Bytes stored_again(const Bytes& plain, const KeyRing& keys,
                   const std::function<void(format::StoredSectionWriter&, Manifest)>& finish) {
  const CacheFileInfo info = info_of(plain);
  const TempDir dir;
  auto file = must(AtomicFile::create(dir / "a.tqkv", Overwrite::kRefuse));
  auto writer = must(format::StoredSectionWriter::begin(file, keys));
  for (const format::SectionInfo& section : info.sections) {
    must(writer.add(section, ByteView(plain).subspan(section.file_offset, section.stored_bytes)));
  }
  finish(writer, info);
  must(file.commit());
  return read_all(dir / "a.tqkv");
}

TEST(StoredSections, AreEncrypted) {
  const cache::Cache cache = mixed_cache();
  const auto finish = [](format::StoredSectionWriter& writer, Manifest manifest) {
    must(writer.finish(std::move(manifest)));
  };
  const Bytes file = stored_again(file_of(cache, Compression::kZstd), ring(1), finish);
  EXPECT_EQ(difference(must(open(file)), cache), "");
}

TEST(StoredSections, AreDroppedBeyondThoseOfTheManifest) {
  const cache::Cache cache = small_cache();
  const Bytes shorter = file_of(CacheBuilder(3).dense({2, 4}).build());
  const auto finish = [](format::StoredSectionWriter& writer, Manifest manifest) {
    manifest.layers.pop_back();
    manifest.sections.resize(2);
    manifest.content_name = format::content_name(manifest);
    must(writer.finish(std::move(manifest)));
  };
  for (const KeyRing& keys : {KeyRing(), ring(1)}) {
    const Bytes file = stored_again(file_of(cache), keys, finish);
    const cache::Cache first = must(open(file, keys));
    EXPECT_EQ(first.layers.size(), 1u);
    EXPECT_THAT(sealed_damage(file, keys), IsEmpty());
    const Bytes whole = stored_again(shorter, keys, [](auto& writer, const Manifest& manifest) {
      must(writer.finish(manifest));
    });
    EXPECT_EQ(file.size(), whole.size());
  }
}

TEST(StoredSections, AreOfTheContentNameThatIsExpected) {
  const auto finish = [](format::StoredSectionWriter& writer, Manifest manifest) {
    manifest.content_name[0] ^= std::byte{1};
    EXPECT_EQ(writer.finish(std::move(manifest)).error().code, ErrorCode::kCorrupt);
  };
  (void)stored_again(file_of(small_cache()), {}, finish);
}

}  // namespace encryption_test
}  // namespace tqcache::test
