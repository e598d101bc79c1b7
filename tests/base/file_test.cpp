// Reading: open_file, memory_source, read_file, MappedFile, map_file.

#include "tqcache/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

#include "child_process.h"
#include "support/temp_dir.h"

namespace tqcache {
namespace file_test {

using test::TempDir;
using test::write_all;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

Bytes counting(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

Bytes copy(ByteView view) { return Bytes(view.begin(), view.end()); }

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, std::string_view message) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_EQ(result.error().message, message);
}

// Every kind of source, over the same 100 bytes.
class ByteSources : public testing::TestWithParam<std::string> {
 protected:
  ByteSources() {
    write_all(folder_ / "file", counting(100));
    if (GetParam() == "File") source_ = std::move(*open_file(folder_ / "file"));
    if (GetParam() == "Memory") source_ = memory_source(counting(100));
    if (GetParam() == "Mapping") source_ = memory_source(*map_file(folder_ / "file"));
  }
  TempDir folder_;
  std::unique_ptr<ByteSource> source_;
};

INSTANTIATE_TEST_SUITE_P(All, ByteSources, testing::Values("File", "Memory", "Mapping"),
                         [](const auto& instance) { return instance.param; });

TEST_P(ByteSources, ReadAnyRange) {
  const Bytes whole = counting(100);
  EXPECT_EQ(source_->size(), 100u);
  for (const std::size_t offset : {0u, 1u, 50u, 99u, 100u}) {
    Bytes bytes(100 - offset);
    ASSERT_TRUE(source_->read_at(offset, bytes).ok()) << offset;
    EXPECT_EQ(bytes, copy(ByteView(whole).subspan(offset)));
  }
}

TEST_P(ByteSources, RefuseARangeBeyondTheEnd) {
  Bytes one(1);
  Bytes many(60);
  expect_error(source_->read_at(100, one), ErrorCode::kTruncated,
               "byte 100: 1 bytes wanted, 0 left");
  expect_error(source_->read_at(41, many), ErrorCode::kTruncated,
               "byte 41: 60 bytes wanted, 59 left");
  for (const std::uint64_t offset : {std::uint64_t{101}, kMax - 59, kMax}) {
    EXPECT_EQ(source_->read_at(offset, many).error().code, ErrorCode::kTruncated) << offset;
    EXPECT_EQ(source_->read_at(offset, {}).error().code, ErrorCode::kTruncated) << offset;
  }
}

TEST(OpenFile, TellsAMissingFileFromAnUnreadableOne) {
  const TempDir folder;
  write_all(folder / "file", "text");
  expect_error(open_file(folder / "missing"), ErrorCode::kNotFound, "no such file");
  expect_error(open_file(folder / "no/such"), ErrorCode::kNotFound, "no such file");
  expect_error(open_file(folder / "file/below"), ErrorCode::kNotFound, "no such file");
  expect_error(open_file(""), ErrorCode::kNotFound, "no such file");
  expect_error(open_file(folder.path()), ErrorCode::kIo, "is a folder, not a file");
  expect_error(open_file("/dev/null"), ErrorCode::kIo, "is not a regular file");
}

TEST(OpenFile, DoesNotWaitForTheWriterOfAPipe) {
  const TempDir folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(open_file(folder / "pipe"), ErrorCode::kIo, "is not a regular file");
}

TEST(OpenFile, FollowsASymbolicLink) {
  const TempDir folder;
  write_all(folder / "file", "text");
  std::filesystem::create_symlink("file", folder / "link");
  EXPECT_EQ((*open_file(folder / "link"))->size(), 4u);
}

TEST(OpenFile, SaysWhatTheSystemSays) {
  const TempDir folder;
  std::filesystem::create_symlink("loop", folder / "loop");
  expect_error(open_file(folder / "loop"), ErrorCode::kIo,
               "open: " + std::generic_category().message(ELOOP));
}

TEST(OpenFile, HasTheSizeThatItHasNow) {
  const TempDir folder;
  write_all(folder / "file", counting(100));
  const std::unique_ptr<ByteSource> source = *open_file(folder / "file");
  std::filesystem::resize_file(folder / "file", 140);
  EXPECT_EQ(source->size(), 140u);
  Bytes bytes(40);
  EXPECT_TRUE(source->read_at(100, bytes).ok());
  std::filesystem::resize_file(folder / "file", 7);
  EXPECT_EQ(source->size(), 7u);
}

TEST(OpenFile, GivesTruncatedWhenTheFileIsCutMeanwhile) {
  const TempDir folder;
  write_all(folder / "file", counting(100));
  const std::unique_ptr<ByteSource> source = *open_file(folder / "file");
  std::filesystem::resize_file(folder / "file", 40);
  Bytes bytes(60);
  expect_error(source->read_at(20, bytes), ErrorCode::kTruncated,
               "byte 20: 60 bytes wanted, 20 left");
  EXPECT_TRUE(source->read_at(20, std::span(bytes).first(20)).ok());
}

TEST(OpenFile, GivesIoWhenReadingFails) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const int status = test::in_child([&] {
    const std::unique_ptr<ByteSource> source = *open_file(folder / "file");
    if (!test::fail_system_calls({SYS_pread64}, EIO)) return test::kNotPossibleHere;
    Bytes bytes(2);
    const Result<void> result = source->read_at(1, bytes);
    return !result && result.error().message == "byte 1: read: Input/output error" ? 0 : 1;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
}

TEST(ReadFile, ReadsTheWholeFile) {
  const TempDir folder;
  write_all(folder / "file", counting(100'000));
  write_all(folder / "empty", "");
  EXPECT_EQ(*read_file(folder / "file", 100'000), counting(100'000));
  EXPECT_TRUE(read_file(folder / "empty", 0)->empty());
}

TEST(ReadFile, RefusesAFileAboveTheLimitBeforeItAllocates) {
  const TempDir folder;
  write_all(folder / "file", "12345");
  expect_error(read_file(folder / "file", 4), ErrorCode::kTooLarge,
               "5 bytes, more than the 4 allowed");
  // A file of holes, larger than any memory: allocating first would throw.
  std::filesystem::resize_file(folder / "file", std::uintmax_t{1} << 43);
  EXPECT_EQ(read_file(folder / "file", 1 << 20).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(read_file(folder / "missing", 4).error().code, ErrorCode::kNotFound);
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TempDir folder;
  write_all(folder / "file", counting(10'000));
  const MappedFile mapped = *MappedFile::open(folder / "file");
  EXPECT_EQ(copy(mapped.bytes()), counting(10'000));
}

TEST(MappedFile, ShowsNothingOfAnEmptyFile) {
  const TempDir folder;
  write_all(folder / "file", "");
  EXPECT_TRUE(MappedFile::open(folder / "file")->bytes().empty());
}

TEST(MappedFile, RefusesWhatOpenFileRefuses) {
  const TempDir folder;
  expect_error(MappedFile::open(folder / "missing"), ErrorCode::kNotFound, "no such file");
  expect_error(MappedFile::open(folder.path()), ErrorCode::kIo, "is a folder, not a file");
}

TEST(MapFile, KeepsTheBytesForAsLongAsAnyPieceOfThem) {
  const TempDir folder;
  write_all(folder / "file", counting(10'000));
  SharedBytes piece;
  {
    const SharedBytes whole = *map_file(folder / "file");
    EXPECT_EQ(copy(whole.view()), counting(10'000));
    piece = whole.part(64, 100);
  }
  std::filesystem::remove(folder / "file");
  const Bytes all = counting(10'000);
  EXPECT_EQ(copy(piece.view()), copy(ByteView(all).subspan(64, 100)));
  expect_error(map_file(folder / "missing"), ErrorCode::kNotFound, "no such file");
}

TEST(MappedFile, KeepsItsBytesWhenItMoves) {
  const TempDir folder;
  write_all(folder / "a", "first");
  write_all(folder / "b", "second");
  MappedFile a = *MappedFile::open(folder / "a");
  MappedFile b = *MappedFile::open(folder / "b");
  const std::byte* const address = b.bytes().data();
  a = std::move(b);
  EXPECT_EQ(a.bytes().data(), address);
  const MappedFile c = std::move(a);
  EXPECT_EQ(copy(c.bytes()), copy(as_bytes("second")));
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move)
}

TEST(MappedFile, OutlivesTheNameOfItsFile) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const MappedFile mapped = *MappedFile::open(folder / "file");
  std::filesystem::remove(folder / "file");
  EXPECT_EQ(copy(mapped.bytes()), copy(as_bytes("text")));
}

}  // namespace file_test
}  // namespace tqcache
