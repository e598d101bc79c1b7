// Writing: AtomicFile, write_file_atomically.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "child_process.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"

namespace tqcache {
namespace atomic_file_test {

namespace fs = std::filesystem;
using test::read_all;
using test::TempDir;
using test::write_all;

std::string text_of(const fs::path& path) {
  const Bytes bytes = read_all(path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

Result<void> save(const fs::path& path, std::string_view text, Overwrite overwrite) {
  return write_file_atomically(path, as_bytes(text), overwrite);
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, std::string_view message) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_EQ(result.error().message, message);
}

TEST(AtomicFile, AppearsUnderItsNameOnlyWhenItIsCommitted) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("hello ")).ok());
  ASSERT_TRUE(file.write(as_bytes("world")).ok());
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_EQ(file.size(), 11u);
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "hello world");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const TempDir folder;
  {
    AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
    ASSERT_TRUE(file.write(as_bytes("hello")).ok());
    EXPECT_EQ(folder.entry_count(), 1u);
  }
  EXPECT_EQ(folder.entry_count(), 0u);
}

TEST(AtomicFile, LeavesTheOldFileAsItIsWithoutCommit) {
  const TempDir folder;
  write_all(folder / "out", "old");
  {
    AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow);
    ASSERT_TRUE(file.write(as_bytes("new")).ok());
  }
  EXPECT_EQ(text_of(folder / "out"), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, ReplacesTheOldFileForThoseWhoOpenItLater) {
  const TempDir folder;
  write_all(folder / "out", "old");
  const std::unique_ptr<ByteSource> reader = *open_file(folder / "out");
  ASSERT_TRUE(save(folder / "out", "new and longer", Overwrite::kAllow).ok());
  EXPECT_EQ(text_of(folder / "out"), "new and longer");
  Bytes bytes(3);
  ASSERT_TRUE(reader->read_at(0, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("old")));
}

TEST(AtomicFile, MayBeEmpty) {
  const TempDir folder;
  ASSERT_TRUE(save(folder / "out", "", Overwrite::kRefuse).ok());
  EXPECT_EQ(fs::file_size(folder / "out"), 0u);
}

TEST(AtomicFile, IsReadableByItsOwnerOnly) {
  const TempDir folder;
  write_all(folder / "old", "old");
  fs::permissions(folder / "old", fs::perms{0666});
  const mode_t umask_before = ::umask(0);
  {
    AtomicFile file = *AtomicFile::create(folder / "new", Overwrite::kRefuse);
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const mode_t expected = entry.path().filename() == "old" ? 0666 : 0600;
      EXPECT_EQ(mode_of(entry.path()), expected) << entry.path();
    }
    EXPECT_TRUE(file.commit().ok());
  }
  EXPECT_TRUE(save(folder / "old", "new", Overwrite::kAllow).ok());
  ::umask(umask_before);
  EXPECT_EQ(mode_of(folder / "new"), mode_t{0600});
  EXPECT_EQ(mode_of(folder / "old"), mode_t{0600});
}

TEST(AtomicFile, WritesOverWhatWasWritten) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("....5678")).ok());
  ASSERT_TRUE(file.write_at(0, as_bytes("1234")).ok());
  ASSERT_TRUE(file.write(as_bytes("9")).ok());
  ASSERT_TRUE(file.write_at(9, {}).ok());
  EXPECT_EQ(file.size(), 9u);
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "123456789");
}

TEST(AtomicFile, RefusesToWriteOverWhatIsNotThereYet) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("1234")).ok());
  for (const std::uint64_t offset : {std::uint64_t{3}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    EXPECT_EQ(file.write_at(offset, as_bytes("xx")).error().code, ErrorCode::kInvalidArgument);
  }
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "1234");
}

TEST(AtomicFile, ReadsBackWhatWasWritten) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("hello world")).ok());
  Bytes bytes(5);
  ASSERT_TRUE(file.read_at(6, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("world")));
  expect_error(file.read_at(7, bytes), ErrorCode::kTruncated, "byte 7: 5 bytes wanted, 4 left");
  ASSERT_TRUE(file.write(as_bytes("!")).ok());
  ASSERT_TRUE(file.read_at(7, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("orld!")));
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "hello world!");
  expect_error(file.read_at(0, bytes), ErrorCode::kInvalidArgument, "committed already");
}

// A stream gets what a file would hold in the end, and nothing before.
TEST(AtomicFile, ForAStreamIsWrittenAsAnyFileAndSentWhenItIsComplete) {
  const TempDir folder;
  write_all(folder / "log", "");
  const int fd = ::open((folder / "log").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  AtomicFile file = *AtomicFile::create("/dev/fd/" + std::to_string(fd), Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("hello world")).ok());
  Bytes bytes(5);
  ASSERT_TRUE(file.read_at(6, bytes).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, as_bytes("world")));
  ASSERT_TRUE(file.write_at(0, as_bytes("J")).ok());
  ASSERT_TRUE(file.truncate(5).ok());
  EXPECT_EQ(text_of(folder / "log"), "");
  const Bytes large(3 << 20, std::byte{'x'});
  ASSERT_TRUE(file.write(large).ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "log"), "Jello" + std::string(3 << 20, 'x'));
  {
    AtomicFile abandoned = *AtomicFile::create("/dev/fd/" + std::to_string(fd), Overwrite::kRefuse);
    ASSERT_TRUE(abandoned.write(as_bytes("half")).ok());
  }
  EXPECT_EQ(text_of(folder / "log").size(), 5u + (3 << 20));
  ::close(fd);
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(ScratchFile, IsReadByPositionAndLeavesNothingBehind) {
  const TempDir folder;
  const int status = test::in_child([&] {
    for (const std::string& place : {folder.path().string(), std::string("/nowhere")}) {
      ::setenv("TMPDIR", place.c_str(), 1);  // without it the file is in memory
      const auto made = ScratchFile::create();
      if (!made) return 1;
      ScratchFile& file = **made;
      if (!file.append(as_bytes("hello ")) || !file.append(as_bytes("world"))) return 2;
      Bytes bytes(5);
      if (file.size() != 11 || !file.read_at(6, bytes)) return 3;
      if (!std::ranges::equal(bytes, as_bytes("world"))) return 4;
      if (file.read_at(7, bytes).error().code != ErrorCode::kTruncated) return 5;
      if (folder.entry_count() != 0) return 6;
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(AtomicFile, GoesOnWhereItWasCut) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("hello world")).ok());
  expect_error(file.truncate(12), ErrorCode::kInvalidArgument,
               "byte 12: behind the end of the file");
  ASSERT_TRUE(file.truncate(11).ok());
  ASSERT_TRUE(file.truncate(5).ok());
  EXPECT_EQ(file.size(), 5u);
  Bytes bytes(1);
  EXPECT_EQ(file.read_at(5, bytes).error().code, ErrorCode::kTruncated);
  ASSERT_TRUE(file.write(as_bytes("!")).ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "hello!");
  expect_error(file.truncate(0), ErrorCode::kInvalidArgument, "committed already");
}

TEST(AtomicFile, TakesNothingMoreAfterCommit) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.commit().ok());
  expect_error(file.write(as_bytes("x")), ErrorCode::kInvalidArgument, "committed already");
  expect_error(file.write_at(0, {}), ErrorCode::kInvalidArgument, "committed already");
  expect_error(file.commit(), ErrorCode::kInvalidArgument, "committed already");
  EXPECT_EQ(fs::file_size(folder / "out"), 0u);
}

TEST(AtomicFile, DropsItsOwnFileWhenAnotherIsMovedIntoIt) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "a", Overwrite::kRefuse);
  file = *AtomicFile::create(folder / "b", Overwrite::kRefuse);
  EXPECT_EQ(folder.entry_count(), 1u);
  AtomicFile moved = std::move(file);
  ASSERT_TRUE(moved.write(as_bytes("b")).ok());
  ASSERT_TRUE(moved.commit().ok());
  EXPECT_EQ(text_of(folder / "b"), "b");
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(AtomicFile, RefusesAnExistingFileUnlessAllowed) {
  const TempDir folder;
  write_all(folder / "out", "old");
  expect_error(AtomicFile::create(folder / "out", Overwrite::kRefuse), ErrorCode::kInvalidArgument,
               "exists already");
  EXPECT_EQ(text_of(folder / "out"), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, RefusesAFileThatAppearedMeanwhile) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("mine")).ok());
  write_all(folder / "out", "theirs");
  expect_error(file.commit(), ErrorCode::kInvalidArgument, "exists already");
  EXPECT_EQ(text_of(folder / "out"), "theirs");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, LetsOneOfTwoWritersWin) {
  const TempDir folder;
  AtomicFile a = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  AtomicFile b = *AtomicFile::create(folder / "out", Overwrite::kRefuse);
  ASSERT_TRUE(a.write(as_bytes("a")).ok());
  ASSERT_TRUE(b.write(as_bytes("b")).ok());
  EXPECT_TRUE(b.commit().ok());
  EXPECT_EQ(a.commit().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(text_of(folder / "out"), "b");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, RefusesAFileThatAnotherReplaces) {
  const TempDir folder;
  write_all(folder / "out", "old");
  AtomicFile first = *AtomicFile::create(folder / "out", Overwrite::kAllow);
  expect_error(AtomicFile::create(folder / "out", Overwrite::kAllow), ErrorCode::kBusy,
               "another process is writing it");
  const int status = test::in_child([&] {
    const auto second = AtomicFile::create(folder / "out", Overwrite::kAllow);
    return !second.ok() && second.error().code == ErrorCode::kBusy ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.entry_count(), 2u) << "the old file, and the first one's temporary";
  ASSERT_TRUE(first.write(as_bytes("new")).ok());
  ASSERT_TRUE(first.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "new");
  EXPECT_TRUE(save(folder / "out", "newer", Overwrite::kAllow).ok());
}

TEST(AtomicFile, RefusesAFileThatAppearedMeanwhileAndIsBeingWritten) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow);
  write_all(folder / "out", "theirs");
  const auto theirs = std::move(*LockedFile::open(folder / "out"));
  expect_error(file.commit(), ErrorCode::kBusy, "another process is writing it");
  EXPECT_EQ(text_of(folder / "out"), "theirs");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, ReplacesAFileThatAppearedMeanwhileWhenAllowed) {
  const TempDir folder;
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow);
  ASSERT_TRUE(file.write(as_bytes("mine")).ok());
  write_all(folder / "out", "theirs");
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "mine");
}

TEST(AtomicFile, ReplacesAFileUnderTheLockOfItsCaller) {
  const TempDir folder;
  write_all(folder / "out", "old");
  const auto held = std::move(*LockedFile::open(folder / "out"));
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow, held.get());
  ASSERT_TRUE(file.write(as_bytes("new")).ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "out"), "new");
  EXPECT_EQ(folder.entry_count(), 1u);
  EXPECT_TRUE(LockedFile::open(folder / "out").ok()) << "the lock was the old file's";
}

TEST(AtomicFile, RefusesAnotherFileThanTheOneHeld) {
  const TempDir folder;
  write_all(folder / "out", "old");
  write_all(folder / "other", "other");
  const auto held = std::move(*LockedFile::open(folder / "out"));
  expect_error(AtomicFile::create(folder / "other", Overwrite::kAllow, held.get()),
               ErrorCode::kBusy, "another process is writing it");
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow, held.get());
  fs::rename(folder / "other", folder / "out");
  expect_error(file.commit(), ErrorCode::kBusy, "another process is writing it");
  EXPECT_EQ(text_of(folder / "out"), "other");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, ReplacesAFileThatMayOnlyBeRead) {
  const TempDir folder;
  write_all(folder / "out", "old");
  fs::permissions(folder / "out", fs::perms{0400});
  {
    AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow);
    expect_error(AtomicFile::create(folder / "out", Overwrite::kAllow), ErrorCode::kBusy,
                 "another process is writing it");
  }
  ASSERT_TRUE(save(folder / "out", "new", Overwrite::kAllow).ok());
  EXPECT_EQ(text_of(folder / "out"), "new");
}

// The right to replace a file is the folder's.
TEST(AtomicFile, ReplacesAFileThatMayNotEvenBeRead) {
  const TempDir folder;
  write_all(folder / "out", "old");
  fs::permissions(folder / "out", fs::perms{0});
  fs::permissions(folder.path(), fs::perms{0777});
  const int status = test::in_child([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return test::kNotPossibleHere;
    return save(folder / "out", "new", Overwrite::kAllow).ok() ? 0 : 1;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "cannot give up root";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "new");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, IsWrittenWhereTheFileSystemHasNoLocks) {
  const TempDir folder;
  write_all(folder / "out", "old");
  write_all(folder / ".out.tmp-aaaaaa", "perhaps in use");
  const int status = test::in_child([&] {
    if (!test::fail_system_calls({SYS_flock}, ENOLCK)) return test::kNotPossibleHere;
    return save(folder / "out", "new", Overwrite::kAllow).ok() ? 0 : 1;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "new");
  EXPECT_TRUE(fs::exists(folder / ".out.tmp-aaaaaa"));
}

// Leaves a temporary file of "out" in the folder, as a power cut would.
void be_killed_while_writing(const fs::path& path) {
  const int status = test::in_child([&] {
    const auto file = AtomicFile::create(path, Overwrite::kAllow);
    if (file.ok()) ::kill(::getpid(), SIGKILL);
    return 1;
  });
  ASSERT_EQ(status, -SIGKILL);
}

TEST(AtomicFile, TakesAwayWhatAKilledWriterLeft) {
  for (const std::string& name : {std::string("out"), std::string(255, 'n')}) {
    const TempDir folder;
    be_killed_while_writing(folder / name);
    ASSERT_EQ(folder.entry_count(), 1u);
    ASSERT_TRUE(save(folder / name, "text", Overwrite::kRefuse).ok());
    EXPECT_EQ(folder.entry_count(), 1u) << name;
    EXPECT_EQ(text_of(folder / name), "text");
  }
}

TEST(AtomicFile, TakesAwayTheSecondNameThatAKilledWriterLeft) {
  const TempDir folder;  // killed between the link and the removal, where renameat2 is unknown
  write_all(folder / "out", "old");
  fs::create_hard_link(folder / "out", folder / ".out.tmp-aaaaaa");
  ASSERT_TRUE(save(folder / "out", "new", Overwrite::kAllow).ok());
  EXPECT_EQ(folder.entry_count(), 1u);
  EXPECT_EQ(text_of(folder / "out"), "new");
}

TEST(AtomicFile, LeavesTheTemporaryFileOfALiveWriter) {
  const TempDir folder;
  for (const std::string& name : {std::string("out"), std::string(255, 'n')}) {
    AtomicFile live = *AtomicFile::create(folder / name, Overwrite::kAllow);
    ASSERT_TRUE(live.write(as_bytes("live")).ok());
    ASSERT_TRUE(save(folder / name, "text", Overwrite::kAllow).ok());
    const int status = test::in_child(
        [&] { return save(folder / name, "child", Overwrite::kAllow).ok() ? 0 : 1; });
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(live.commit().ok());
    EXPECT_EQ(text_of(folder / name), "live");
  }
  EXPECT_EQ(folder.entry_count(), 2u);
}

TEST(AtomicFile, LeavesEveryFileThatOnlyLooksLikeATemporaryOne) {
  const TempDir folder;
  const std::vector<std::string> names = {"out.tmp-aaaaaa",  ".out.tmp-aaaaa",  ".out.tmp-aaaaaaa",
                                          ".out.tmp-AAAAAA", ".out.tmp-aaaaa1", ".out2.tmp-aaaaaa",
                                          ".tqcache-aaaaaa", "..out.tmp-aaaaaa"};
  for (const std::string& name : names) write_all(folder / name, "mine");
  fs::create_symlink("out.tmp-aaaaaa", folder / ".out.tmp-bbbbbb");
  fs::create_directory(folder / ".out.tmp-cccccc");
  ASSERT_EQ(::mkfifo((folder / ".out.tmp-dddddd").c_str(), 0600), 0);
  ASSERT_TRUE(save(folder / "out", "text", Overwrite::kRefuse).ok());
  EXPECT_EQ(folder.entry_count(), names.size() + 4);
}

TEST(AtomicFile, LeavesTheTemporaryFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const TempDir folder;
  write_all(folder / ".out.tmp-aaaaaa", "theirs");
  ASSERT_EQ(::chown((folder / ".out.tmp-aaaaaa").c_str(), 65534, 65534), 0);
  ASSERT_TRUE(save(folder / "out", "text", Overwrite::kRefuse).ok());
  EXPECT_EQ(folder.entry_count(), 2u);
}

TEST(AtomicFile, KeepsItsTemporaryFileAmongWritersThatTakeFilesAway) {
  const TempDir folder;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = std::to_string(writer) + " " + std::to_string(i);
        const Result<void> result = save(folder / "out", text, Overwrite::kAllow);
        EXPECT_TRUE(result || result.error().code == ErrorCode::kBusy) << result.error().message;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, RefusesSymbolicLinks) {
  const TempDir folder;
  write_all(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  fs::create_symlink("missing", folder / "dangling");
  fs::create_symlink("/dev/null", folder / "device");
  for (const char* name : {"link", "dangling", "device"}) {
    for (const Overwrite overwrite : {Overwrite::kRefuse, Overwrite::kAllow}) {
      expect_error(AtomicFile::create(folder / name, overwrite), ErrorCode::kIo,
                   "is a symbolic link");
    }
  }
  EXPECT_EQ(text_of(folder / "target"), "old");
  EXPECT_FALSE(fs::exists(folder / "missing"));
}

TEST(AtomicFile, ReplacesALinkThatAppearedMeanwhileAndNotItsTarget) {
  const TempDir folder;
  write_all(folder / "target", "old");
  AtomicFile file = *AtomicFile::create(folder / "out", Overwrite::kAllow);
  ASSERT_TRUE(file.write(as_bytes("new")).ok());
  fs::create_symlink("target", folder / "out");
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder / "target"), "old");
  EXPECT_FALSE(fs::is_symlink(folder / "out"));
  EXPECT_EQ(text_of(folder / "out"), "new");
}

TEST(AtomicFile, RefusesFolders) {
  const TempDir folder;
  fs::create_directory(folder / "sub");
  for (const char* name : {"sub", "sub/", "sub/.", "sub/.."}) {
    expect_error(AtomicFile::create(folder / name, Overwrite::kAllow), ErrorCode::kIo,
                 "is a folder");
  }
  expect_error(AtomicFile::create("", Overwrite::kAllow), ErrorCode::kIo, "the file name is empty");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, RefusesASocket) {
  const TempDir folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (folder / "socket").string();
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::close(fd);
  expect_error(AtomicFile::create(path, Overwrite::kAllow), ErrorCode::kIo,
               "is neither a file nor a stream");
}

TEST(AtomicFile, SaysWhichFolderIsMissing) {
  const TempDir folder;
  write_all(folder / "file", "text");
  expect_error(AtomicFile::create(folder / "no/out", Overwrite::kAllow), ErrorCode::kIo,
               "folder " + (folder / "no").string() + " does not exist");
  expect_error(AtomicFile::create(folder / "file/out", Overwrite::kAllow), ErrorCode::kIo,
               (folder / "file").string() + " is not a folder");
}

TEST(AtomicFile, RefusesAFolderThatCannotBeWritten) {
  const TempDir folder;
  fs::permissions(folder.path(), fs::perms{0555});
  const int status = test::in_child([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return test::kNotPossibleHere;
    const auto file = AtomicFile::create(folder / "out", Overwrite::kAllow);
    if (file.ok()) return 1;
    return file.error().message == "temporary file: Permission denied" ? 0 : 2;
  });
  fs::permissions(folder.path(), fs::perms{0700});
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "cannot give up root";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.entry_count(), 0u);
}

TEST(AtomicFile, MayHaveTheLongestNameThereIs) {
  const TempDir folder;
  const std::string longest(255, 'n');
  ASSERT_TRUE(save(folder / longest, "text", Overwrite::kRefuse).ok());
  EXPECT_EQ(text_of(folder / longest), "text");
  EXPECT_EQ(folder.entry_count(), 1u);
  expect_error(AtomicFile::create(folder / (longest + "n"), Overwrite::kRefuse), ErrorCode::kIo,
               "stat: " + std::generic_category().message(ENAMETOOLONG));
}

TEST(AtomicFile, StandsInTheCurrentFolderWhenThePathIsABareName) {
  const TempDir folder;
  const int status = test::in_child([&] {
    fs::current_path(folder.path());
    AtomicFile file = std::move(*AtomicFile::create("out", Overwrite::kRefuse));
    fs::current_path("/");  // what was opened stays where it is
    return file.write(as_bytes("text")).ok() && file.commit().ok() ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "text");
}

TEST(AtomicFile, GivesIoWhenTheDeviceIsFull) {
  AtomicFile file = *AtomicFile::create("/dev/full", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("text")).ok());
  expect_error(file.commit(), ErrorCode::kIo, "write: No space left on device");
  expect_error(file.commit(), ErrorCode::kIo, "write: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(AtomicFile, WritesADeviceInPlace) {
  AtomicFile file = *AtomicFile::create("/dev/null", Overwrite::kRefuse);
  ASSERT_TRUE(file.write(as_bytes("text")).ok());
  EXPECT_EQ(file.size(), 4u);
  EXPECT_TRUE(file.commit().ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AtomicFile, WritesANamedPipeInPlace) {
  const TempDir folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] { received = text_of(pipe); });
  const Result<void> result = save(pipe, "through the pipe", Overwrite::kRefuse);
  reader.join();
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(received, "through the pipe");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, WritesToADescriptorOfTheProcessWhereItStands) {
  const TempDir folder;
  write_all(folder / "log", "before ");
  const int fd = ::open((folder / "log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (const char* prefix : {"/dev/fd/", "/proc/self/fd/"}) {
    ASSERT_TRUE(save(prefix + std::to_string(fd), "after ", Overwrite::kRefuse).ok());
  }
  ::close(fd);
  EXPECT_EQ(text_of(folder / "log"), "before after after ");
  expect_error(AtomicFile::create("/dev/fd/" + std::to_string(fd), Overwrite::kAllow),
               ErrorCode::kIo, "open: Bad file descriptor");
}

TEST(AtomicFile, WritesToStandardOutput) {
  const TempDir folder;
  write_all(folder / "log", "");
  const int status = test::in_child([&] {
    const int fd = ::open((folder / "log").c_str(), O_WRONLY);
    if (::dup2(fd, STDOUT_FILENO) < 0) return 1;
    if (!save("/dev/stdout", "one ", Overwrite::kRefuse)) return 2;
    return ::write(STDOUT_FILENO, "two", 3) == 3 ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "log"), "one two");
}

TEST(AtomicFile, GivesIoWhenTheFileSizeLimitIsReached) {
  const TempDir folder;
  write_all(folder / "out", "old");
  const int status = test::in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return test::kNotPossibleHere;
    const Result<void> result = save(folder / "out", std::string(1000, 'x'), Overwrite::kAllow);
    if (result.ok() || result.error().code != ErrorCode::kIo) return 1;
    return result.error().message == "write: File too large" ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, CannotBeCommittedAfterAWriteFailed) {
  const TempDir folder;
  const int status = test::in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    AtomicFile file = std::move(*AtomicFile::create(folder / "out", Overwrite::kRefuse));
    const rlimit limit{4, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return test::kNotPossibleHere;
    if (file.write(as_bytes("too long"))) return 1;
    const Result<void> result = file.commit();
    return !result && result.error().message == "write: File too large" ? 0 : 2;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no RLIMIT_FSIZE";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.entry_count(), 0u);
}

void ignore_signal(int) {}

TEST(AtomicFile, GoesOnAfterShortWritesAndSignals) {
  // A handler without SA_RESTART: each signal breaks off the write that waits for room in the
  // pipe, with the count so far or with EINTR.
  struct sigaction action {};
  action.sa_handler = ignore_signal;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);

  Bytes sent(1 << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i % 251);
  Bytes received;
  const pthread_t writer = ::pthread_self();
  std::thread reader([&] {
    Bytes piece(5000);
    while (received.size() < sent.size()) {
      ::pthread_kill(writer, SIGUSR1);
      const ssize_t count = ::read(ends[0], piece.data(), piece.size());
      if (count <= 0) break;
      received.insert(received.end(), piece.begin(), piece.begin() + count);
    }
  });
  const Result<void> result =
      write_file_atomically("/dev/fd/" + std::to_string(ends[1]), sent, Overwrite::kRefuse);
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_TRUE(result.ok());
  EXPECT_TRUE(received == sent);
}

// What stands in the folder after "new" was saved over "old" while `number` fails.
struct FailedCall {
  const char* name;
  long number;
  int error_number;
  const char* message;
};

class AtomicFileFailure : public testing::TestWithParam<FailedCall> {};

INSTANTIATE_TEST_SUITE_P(
    Calls, AtomicFileFailure,
    testing::Values(FailedCall{"Write", SYS_write, ENOSPC, "write: No space left on device"},
                    FailedCall{"Quota", SYS_write, EDQUOT, "write: Disk quota exceeded"},
                    FailedCall{"Fsync", SYS_fsync, EIO, "flush: Input/output error"},
                    FailedCall{"Close", SYS_close, EIO, "close: Input/output error"},
                    FailedCall{"Lock", SYS_flock, EIO, "temporary file: lock: Input/output error"},
                    FailedCall{"Rename", SYS_renameat, EROFS, "rename: Read-only file system"},
                    FailedCall{"Stat", SYS_newfstatat, EIO, "stat: Input/output error"}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(AtomicFileFailure, LeavesTheOldFileAndNothingElse) {
  const TempDir folder;
  write_all(folder / "out", "old");
  const int status = test::in_child([&] {
    const fs::path path = folder / "out";
    if (!test::fail_system_calls({GetParam().number}, GetParam().error_number)) {
      return test::kNotPossibleHere;
    }
    const Result<void> result = save(path, "new", Overwrite::kAllow);
    if (result.ok() || result.error().code != ErrorCode::kIo) return 1;
    return result.error().message == GetParam().message ? 0 : 2;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, IsWrittenWhereNothingCanBeFlushed) {
  const TempDir folder;
  const int status = test::in_child([&] {
    if (!test::fail_system_calls({SYS_fsync}, EINVAL)) return test::kNotPossibleHere;
    return save(folder / "out", "text", Overwrite::kRefuse).ok() ? 0 : 1;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "text");
}

// File systems that do not know RENAME_NOREPLACE get a link.
TEST(AtomicFile, RefusesAnExistingFileWithoutRenameat2Too) {
  const TempDir folder;
  const int status = test::in_child([&] {
    if (!test::fail_system_calls({SYS_renameat2}, EINVAL)) return test::kNotPossibleHere;
    AtomicFile late = std::move(*AtomicFile::create(folder / "out", Overwrite::kRefuse));
    if (!save(folder / "out", "first", Overwrite::kRefuse)) return 1;
    const Result<void> result = late.commit();
    return !result && result.error().code == ErrorCode::kInvalidArgument ? 0 : 2;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(folder / "out"), "first");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(AtomicFile, KilledAtAnyStepLeavesTheOldFileWhole) {
  for (const long number : {SYS_openat, SYS_write, SYS_fsync, SYS_close, SYS_renameat}) {
    const TempDir folder;
    write_all(folder / "out", "old");
    const int status = test::in_child([&] {
      ::prctl(PR_SET_DUMPABLE, 0);  // no core file
      if (!test::filter_system_calls({number}, SECCOMP_RET_KILL_PROCESS)) {
        return test::kNotPossibleHere;
      }
      return save(folder / "out", "new", Overwrite::kAllow).ok() ? 0 : 1;
    });
    if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
    EXPECT_EQ(status, -SIGSYS) << number;
    EXPECT_EQ(text_of(folder / "out"), "old") << number;
  }
}

}  // namespace atomic_file_test
}  // namespace tqcache
