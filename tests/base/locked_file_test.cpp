// Writing in place, by one at a time: LockedFile.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <thread>

#include "child_process.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"

namespace tqcache {
namespace locked_file_test {

namespace fs = std::filesystem;
using test::read_all;
using test::TempDir;
using test::write_all;

constexpr std::string_view kBusy = "another process is writing it";

std::string text_of(const fs::path& path) {
  const Bytes bytes = read_all(path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::unique_ptr<LockedFile> open_locked(const fs::path& path) {
  return std::move(*LockedFile::open(path));
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, std::string_view message) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_EQ(result.error().message, message);
}

TEST(LockedFile, ReadsAndWritesInPlace) {
  const TempDir folder;
  write_all(folder / "file", "0123456789");
  const auto file = open_locked(folder / "file");
  ASSERT_TRUE(file->write_at(2, as_bytes("ab")).ok());
  ASSERT_TRUE(file->write_at(9, as_bytes("xyz")).ok());
  ASSERT_TRUE(file->write_at(12, as_bytes("!")).ok());
  ASSERT_TRUE(file->flush().ok());
  EXPECT_EQ(file->size(), 13u);
  Bytes bytes(5);
  ASSERT_TRUE(file->read_at(8, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("8xyz!")));
  EXPECT_EQ(text_of(folder / "file"), "01ab45678xyz!");
}

TEST(LockedFile, KeepsWhatItIsAndWhoMayReadIt) {
  const TempDir folder;
  write_all(folder / "file", "text");
  fs::permissions(folder / "file", fs::perms{0640});
  struct stat before {};
  ASSERT_EQ(::stat((folder / "file").c_str(), &before), 0);
  ASSERT_TRUE(open_locked(folder / "file")->write_at(0, as_bytes("T")).ok());
  struct stat after {};
  ASSERT_EQ(::stat((folder / "file").c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_mode, before.st_mode);
}

TEST(LockedFile, IsNotWrittenBehindItsEnd) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const auto file = open_locked(folder / "file");
  expect_error(file->write_at(5, as_bytes("x")), ErrorCode::kInvalidArgument,
               "byte 5: written behind the end");
  EXPECT_EQ(file->write_at(std::numeric_limits<std::uint64_t>::max(), {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(text_of(folder / "file"), "text");
}

TEST(LockedFile, IsCutAndNeverStretched) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const auto file = open_locked(folder / "file");
  expect_error(file->truncate(5), ErrorCode::kInvalidArgument,
               "cannot be cut to 5 bytes: it has fewer");
  ASSERT_TRUE(file->truncate(4).ok());
  ASSERT_TRUE(file->truncate(2).ok());
  EXPECT_EQ(file->size(), 2u);
  EXPECT_EQ(text_of(folder / "file"), "te");
}

TEST(LockedFile, RefusesASecondOneOfTheSameProcess) {
  const TempDir folder;
  write_all(folder / "file", "text");
  {
    const auto first = open_locked(folder / "file");
    expect_error(LockedFile::open(folder / "file"), ErrorCode::kBusy, kBusy);
    fs::create_hard_link(folder / "file", folder / "other");
    expect_error(LockedFile::open(folder / "other"), ErrorCode::kBusy, kBusy);
  }
  EXPECT_TRUE(LockedFile::open(folder / "file").ok());
}

TEST(LockedFile, RefusesASecondProcess) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const auto open_in_child = [&] {
    return test::in_child([&] {
      const auto file = LockedFile::open(folder / "file");
      if (file.ok()) return 0;
      return file.error().code == ErrorCode::kBusy ? 1 : 2;
    });
  };
  {
    const auto first = open_locked(folder / "file");
    EXPECT_EQ(open_in_child(), 1);
  }
  EXPECT_EQ(open_in_child(), 0);
}

TEST(LockedFile, IsFreeAgainWhenItsProcessWasKilled) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const int status = test::in_child([&] {
    const auto file = LockedFile::open(folder / "file");
    if (file.ok()) ::kill(::getpid(), SIGKILL);
    return 1;
  });
  EXPECT_EQ(status, -SIGKILL);
  EXPECT_TRUE(LockedFile::open(folder / "file").ok());
}

TEST(LockedFile, DoesNotKeepReadersOut) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const auto file = open_locked(folder / "file");
  const std::unique_ptr<ByteSource> reader = std::move(*open_file(folder / "file"));
  ASSERT_TRUE(file->write_at(4, as_bytes(" and more")).ok());
  EXPECT_EQ(reader->size(), 13u);
  Bytes bytes(4);
  ASSERT_TRUE(reader->read_at(9, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("more")));
  ASSERT_TRUE(file->truncate(3).ok());
  EXPECT_EQ(reader->size(), 3u);
  expect_error(reader->read_at(2, bytes), ErrorCode::kTruncated, "byte 2: 4 bytes wanted, 1 left");
}

TEST(LockedFile, KeepsOutThoseWhoWouldReplaceTheFile) {
  const TempDir folder;
  write_all(folder / "file", "old");
  const auto file = open_locked(folder / "file");
  expect_error(write_file_atomically(folder / "file", as_bytes("new"), Overwrite::kAllow),
               ErrorCode::kBusy, kBusy);
  EXPECT_EQ(text_of(folder / "file"), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(LockedFile, IsKeptOutByOneWhoReplacesTheFile) {
  const TempDir folder;
  write_all(folder / "file", "old");
  {
    AtomicFile replacement = *AtomicFile::create(folder / "file", Overwrite::kAllow);
    expect_error(LockedFile::open(folder / "file"), ErrorCode::kBusy, kBusy);
    ASSERT_TRUE(replacement.write(as_bytes("new")).ok());
    ASSERT_TRUE(replacement.commit().ok());
    EXPECT_TRUE(LockedFile::open(folder / "file").ok()) << "commit() ends the lock";
  }
  { AtomicFile given_up = *AtomicFile::create(folder / "file", Overwrite::kAllow); }
  EXPECT_TRUE(LockedFile::open(folder / "file").ok());
}

// Never the file that stood there before: what is written to that one would be lost.
TEST(LockedFile, IsTheFileThatStandsUnderTheNameWhenItIsLocked) {
  const TempDir folder;
  write_all(folder / "file", "new.");
  std::atomic<bool> stop{false};
  std::thread replacer([&] {
    while (!stop) {
      const Result<void> result =
          write_file_atomically(folder / "file", as_bytes("new."), Overwrite::kAllow);
      EXPECT_TRUE(result || result.error().code == ErrorCode::kBusy) << result.error().message;
    }
  });
  for (int opened = 0; opened < 300;) {
    const auto file = LockedFile::open(folder / "file");
    if (!file.ok()) {
      EXPECT_EQ(file.error().code, ErrorCode::kBusy) << file.error().message;
      continue;
    }
    ++opened;
    EXPECT_TRUE((*file)->write_at(0, as_bytes("mark")).ok());
    EXPECT_EQ(text_of(folder / "file"), "mark");
  }
  stop = true;
  replacer.join();
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(LockedFile, RefusesWhatIsNoRegularFile) {
  const TempDir folder;
  write_all(folder / "file", "text");
  fs::create_symlink("file", folder / "link");
  fs::create_symlink("missing", folder / "dangling");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(LockedFile::open(folder / "missing"), ErrorCode::kNotFound, "no such file");
  expect_error(LockedFile::open(folder / "file/below"), ErrorCode::kNotFound, "no such file");
  expect_error(LockedFile::open(folder / "link"), ErrorCode::kIo, "is a symbolic link");
  expect_error(LockedFile::open(folder / "dangling"), ErrorCode::kIo, "is a symbolic link");
  expect_error(LockedFile::open(folder.path()), ErrorCode::kIo, "is a folder, not a file");
  expect_error(LockedFile::open(folder / "pipe"), ErrorCode::kIo, "is not a regular file");
  expect_error(LockedFile::open("/dev/null"), ErrorCode::kIo, "is not a regular file");
}

TEST(LockedFile, RefusesAFileThatMayNotBeWritten) {
  const TempDir folder;
  write_all(folder / "file", "text");
  fs::permissions(folder / "file", fs::perms{0444});
  fs::permissions(folder.path(), fs::perms{0755});
  const int status = test::in_child([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return test::kNotPossibleHere;
    const auto file = LockedFile::open(folder / "file");
    if (file.ok()) return 1;
    return file.error().message == "open: Permission denied" ? 0 : 2;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "cannot give up root";
  EXPECT_EQ(status, 0);
}

// What stands in the file and what is told while the system call `number` fails.
struct FailedCall {
  const char* name;
  long number;
  int error_number;
  const char* message;
};

class LockedFileFailure : public testing::TestWithParam<FailedCall> {};

INSTANTIATE_TEST_SUITE_P(
    Calls, LockedFileFailure,
    testing::Values(
        FailedCall{"Open", SYS_openat, EIO, "open: Input/output error"},
        FailedCall{"Stat", SYS_newfstatat, EIO, "stat: Input/output error"},
        FailedCall{"Lock", SYS_flock, EIO, "lock: Input/output error"},
        FailedCall{"NoLockService", SYS_flock, ENOLCK, "lock: its file system has no locks"},
        FailedCall{"NoLocks", SYS_flock, EOPNOTSUPP, "lock: its file system has no locks"},
        FailedCall{"Write", SYS_pwrite64, ENOSPC, "write: No space left on device"},
        FailedCall{"Truncate", SYS_ftruncate, EIO, "truncate: Input/output error"},
        FailedCall{"Flush", SYS_fdatasync, EIO, "flush: Input/output error"}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(LockedFileFailure, SaysWhatTheSystemSays) {
  const TempDir folder;
  write_all(folder / "file", "text");
  const int status = test::in_child([&] {
    const fs::path path = folder / "file";
    if (!test::fail_system_calls({GetParam().number}, GetParam().error_number)) {
      return test::kNotPossibleHere;
    }
    const auto use = [&]() -> Result<void> {
      TQC_TRY_ASSIGN(const auto file, LockedFile::open(path));
      TQC_TRY(file->write_at(0, as_bytes("TE")));
      TQC_TRY(file->truncate(4));
      return file->flush();
    };
    const Result<void> result = use();
    if (result.ok() || result.error().code != ErrorCode::kIo) return 1;
    return result.error().message == GetParam().message ? 0 : 2;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(fs::file_size(folder / "file"), 4u);
}

}  // namespace locked_file_test
}  // namespace tqcache
