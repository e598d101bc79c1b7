// Zip files that are damaged, or that no writer of .npz files makes: each is refused where it is
// opened or read, and what does not matter is let through.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "interop/zip_builder.h"
#include "support/failing_source.h"
#include "tqcache/file.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::tensors {
namespace zip_damage_test {

using test::bytes_of;
using test::find_record;
using test::must;
using test::overwrite;
using test::zip_file;

constexpr std::string_view kCentral = "PK\x01\x02";
constexpr std::string_view kEnd = "PK\x05\x06";

Result<std::unique_ptr<ZipArchive>> open_zip(Bytes bytes) {
  return ZipArchive::open(memory_source(std::move(bytes)));
}

ErrorCode open_error(Bytes bytes) {
  const auto zip = open_zip(std::move(bytes));
  return zip ? ErrorCode::kBusy : zip.error().code;
}

// What reading the first member gives: read_start(), read_at(), read_end().
using ReadErrors = std::array<ErrorCode, 3>;

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kBusy : result.error().code;
}

ReadErrors read_errors(const Bytes& file) {
  const auto zip = must(open_zip(file));
  Bytes all(static_cast<std::size_t>(zip->members()[0].bytes));
  return {code_of(zip->read_start(0, all.size())), code_of(zip->read_at(0, 0, all)),
          code_of(zip->read_end(0, all))};
}

constexpr ReadErrors kNone = {ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy};

// "hello", as one member that is deflated, and that is said to be of so many bytes.
Bytes deflated_hello(std::uint32_t claimed) {
  constexpr std::string_view kText = "hello";
  // One block that is stored as it is, the last.
  Bytes file = zip_file({{"a", bytes_of(std::string("\x01\x05\0\xfa\xff", 5) + "hello")}});
  const auto crc = static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(kText.data()), kText.size()));
  const std::size_t central = find_record(file, kCentral);
  for (const std::size_t method : {std::size_t{8}, central + 10}) {
    overwrite<std::uint16_t>(file, method, Z_DEFLATED);
    overwrite(file, method + 6, crc);
    overwrite(file, method + 14, claimed);
  }
  return file;
}

TEST(Zip, ReadsADeflatedMember) {
  const auto zip = must(open_zip(deflated_hello(5)));
  EXPECT_FALSE(zip->members()[0].is_stored);
  Bytes part(3);
  for (int i = 0; i < 2; ++i) {  // inflated, then kept
    must(zip->read_at(0, 2, part));
    EXPECT_EQ(part, bytes_of("llo"));
  }
  must(zip->read_end(0, part));
  EXPECT_EQ(part, bytes_of("llo"));
  EXPECT_EQ(must(zip->read_start(0, 3)), bytes_of("hel"));
  EXPECT_EQ(must(zip->read_start(0, 300)), bytes_of("hello"));
}

// What is read of its start is read as far as it goes: its header tells whether that is enough.
TEST(Zip, ADeflatedMemberIsAsLongAsItSays) {
  EXPECT_EQ(read_errors(deflated_hello(5)), kNone);
  const ReadErrors shorter = read_errors(deflated_hello(6));
  EXPECT_EQ(shorter[1], ErrorCode::kTruncated);
  EXPECT_EQ(shorter[2], ErrorCode::kTruncated);
  const ReadErrors longer = read_errors(deflated_hello(4));
  EXPECT_EQ(longer[1], ErrorCode::kCorrupt);
  EXPECT_EQ(longer[2], ErrorCode::kCorrupt);
}

TEST(Zip, ADamagedDeflatedMemberIsRefused) {
  constexpr std::size_t kData = 31;
  Bytes file = deflated_hello(5);
  file[kData] = std::byte{7};  // a kind of block that there is not
  const ErrorCode corrupt = ErrorCode::kCorrupt;
  EXPECT_EQ(read_errors(file), (ReadErrors{corrupt, corrupt, corrupt}));
  file = deflated_hello(5);
  file[kData + 5] ^= std::byte{1};  // 'h', which the checksum alone sees
  EXPECT_EQ(read_errors(file)[1], corrupt);
  EXPECT_EQ(read_errors(file)[2], corrupt);
}

TEST(Zip, AMemberWhoseHeaderReachesBehindTheEndIsRefused) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  overwrite<std::uint16_t>(file, 28, 0xffff);  // bytes of its extra field
  for (const ErrorCode error : read_errors(file)) {
    EXPECT_TRUE(error == ErrorCode::kCorrupt || error == ErrorCode::kTruncated);
  }
}

TEST(Zip, AMemberThatBeginsBehindTheEndIsRefused) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  overwrite<std::uint32_t>(file, find_record(file, kCentral) + 42, 0x7fffffff);
  for (const ErrorCode error : read_errors(file)) {
    EXPECT_TRUE(error == ErrorCode::kCorrupt || error == ErrorCode::kTruncated);
  }
}

TEST(Zip, AMemberThatEndsBehindTheEndIsTruncated) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  const std::size_t central = find_record(file, kCentral);
  const auto size = static_cast<std::uint32_t>(file.size());
  overwrite(file, central + 20, size);
  overwrite(file, central + 24, size);
  const ErrorCode truncated = ErrorCode::kTruncated;
  EXPECT_EQ(read_errors(file), (ReadErrors{truncated, truncated, truncated}));
  const auto zip = must(open_zip(file));
  Bytes last(1);
  EXPECT_FALSE(zip->read_at(0, size - 1, last).ok());
}

TEST(Zip, RefusesADamagedDirectory) {
  const Bytes good = zip_file({{"a", bytes_of("hello")}, {"b", bytes_of("!")}});
  const std::size_t central = find_record(good, kCentral);
  const std::size_t end = find_record(good, kEnd);
  Bytes file = good;
  file[central] = std::byte{'Q'};
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
  file = good;
  overwrite<std::uint16_t>(file, end + 8, 3);  // one member more than there is
  overwrite<std::uint16_t>(file, end + 10, 3);
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
  file = good;
  // Another number on this disk than in all, which libzip 1.11 takes for one of several disks.
  overwrite<std::uint16_t>(file, end + 8, 1);
  EXPECT_THAT(open_error(file), testing::AnyOf(ErrorCode::kCorrupt, ErrorCode::kUnsupported));
  file = good;
  overwrite<std::uint32_t>(file, end + 16, 0x7fffffff);  // begins behind the end
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
  file = good;
  overwrite<std::uint32_t>(file, end + 12, 0x7fffffff);  // ends there
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
}

TEST(Zip, RefusesAnArchiveOfSeveralDisks) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  const std::size_t end = find_record(file, kEnd);
  overwrite<std::uint16_t>(file, end + 4, 1);
  overwrite<std::uint16_t>(file, end + 6, 1);
  EXPECT_EQ(open_error(file), ErrorCode::kUnsupported);
}

TEST(Zip, RefusesEveryTruncatedArchive) {
  for (const std::uint64_t zip64_from : {0ull, 0xffffffffull}) {
    const Bytes file = zip_file({{"a", bytes_of("hello")}}, zip64_from);
    for (std::size_t size = 0; size < file.size(); ++size) {
      const ErrorCode code =
          open_error(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
      EXPECT_EQ(code, ErrorCode::kCorrupt) << size;
    }
  }
}

TEST(Zip, AZip64LocatorThatLeadsNowhereIsRefused) {
  Bytes file = zip_file({{"a", bytes_of("hello")}}, 0);
  overwrite<std::uint64_t>(file, find_record(file, "PK\x06\x07") + 8, ~std::uint64_t{0});
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
  // And in a file that is too short for a record.
  EXPECT_EQ(open_error(bytes_of("PK\x06\x07" + std::string(20, '\0'))), ErrorCode::kCorrupt);
}

TEST(Zip, ACommentIsNoLocator) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  overwrite<std::uint16_t>(file, file.size() - 2, 4);
  const Bytes comment = bytes_of("PK\x06\x07");
  file.insert(file.end(), comment.begin(), comment.end());
  EXPECT_EQ(read_errors(file), kNone);
}

TEST(Zip, ANameNeedNotBeUtf8UnlessItSaysSo) {
  Bytes file = zip_file({{"\xff", bytes_of("hello")}});
  EXPECT_EQ(must(open_zip(file))->members()[0].name, "\xff");
  constexpr std::uint16_t kIsUtf8 = 1 << 11;
  overwrite(file, 6, kIsUtf8);
  overwrite(file, find_record(file, kCentral) + 8, kIsUtf8);
  EXPECT_EQ(open_error(file), ErrorCode::kCorrupt);
}

// Whether all of an archive's members can be read, in each way.
Result<void> read_all(std::shared_ptr<const ByteSource> file) {
  TQC_TRY(begins_as_zip(*file));
  TQC_TRY_ASSIGN(const auto zip, ZipArchive::open(std::move(file)));
  for (std::size_t i = 0; i < zip->members().size(); ++i) {
    Bytes all(static_cast<std::size_t>(zip->members()[i].bytes));
    TQC_TRY(zip->read_start(i, all.size()));
    TQC_TRY(zip->read_at(i, 0, all));
    TQC_TRY(zip->read_end(i, all));
  }
  return {};
}

TEST(Zip, EveryFailingReadIsReported) {
  const Bytes stored = zip_file({{"a", bytes_of("hello")}, {"b", bytes_of("!")}}, 0);
  for (const Bytes& file : {stored, deflated_hello(5)}) {
    std::size_t n_failures = 0;
    const std::size_t n_reads = test::fail_every_read(file, [&](const ByteSource& source) {
      const auto done = read_all({std::shared_ptr<void>(), &source});
      if (done) return;
      EXPECT_EQ(done.error().code, ErrorCode::kIo) << done.error().message;
      ++n_failures;
    });
    EXPECT_EQ(n_failures, n_reads);
    EXPECT_GT(n_reads, 8u);
  }
}

}  // namespace zip_damage_test
}  // namespace tqcache::tensors
