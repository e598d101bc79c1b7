// The folder that the proxy and llama-server share, and the files in it.

#include "tqcache/serve/slot_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <utime.h>

#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "support/matchers.h"
#include "support/temp_dir.h"

namespace tqcache::serve {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::write_all;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

mode_t permissions_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

// What may be left over after a kill.
const std::vector<std::string> kLeftOver = {
    "tqcache-0123456789abcdef-1.slot",
    "tqcache-0123456789abcdef-23.slot.ckpt",
    "tqcache-0123456789abcdef-23.slot.checkpoints",
    "tqcache-0123456789abcdef-4-again.slot",
    ".tqcache-0123456789abcdef-4-again.slot.tmp-abcdef",
    ".tqcache-0123456789abcdef-5.slot.tmp-zzzzz7",
    "..tqcache-serve.hits.tmp-abcdef",
    "..tqcache-serve.written.tmp-abcdef",
};
// Files of users, whose names are like ours.
const std::vector<std::string> kForeign = {
    "tqcache-0123456789abcdef-1.slots",
    "tqcache-0123456789abcdef-1.bin",
    "tqcache-0123456789abcdef-.slot",
    "tqcache-0123456789abcdef-x.slot",
    "tqcache-0123456789abcde-1.slot",
    "tqcache-0123456789abcdef0-1.slot",
    "tqcache-0123456789ABCDEF-1.slot",
    "tqcache-notes.slot",
    "my-tqcache-0123456789abcdef-1.slot",
    ".tqcache-0123456789abcdef-1.slot",
    ".tqcache-0123456789abcdef-1.slot.tmp-abcde",
    "tqcache-0123456789abcdef-1.tmp-abcdef",
    ".notes.tmp-abcdef",
    ".tmp-abcdef",
    "slot.bin",
    ".tqcache-serve.hits",
    ".tqcache-serve.written",
};

TEST(SlotFolder, RemovesWhatAKilledProxyAndItsServerLeft) {
  const TempDir dir;
  for (const std::string& name : kLeftOver) write_all(dir / name, "12345");
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_THAT(names_in(dir.path()), ElementsAre(".tqcache-serve.lock"));
  EXPECT_EQ((*folder)->swept().files, kLeftOver.size());
  EXPECT_EQ((*folder)->swept().bytes, 5 * kLeftOver.size());
}

TEST(SlotFolder, KeepsAllOtherFiles) {
  const TempDir dir;
  for (const std::string& name : kForeign) write_all(dir / name, "text");
  ASSERT_TRUE(SlotFolder::open(dir.path()).ok());
  std::vector<std::string> expected = kForeign;
  expected.emplace_back(".tqcache-serve.lock");
  EXPECT_THAT(names_in(dir.path()), testing::UnorderedElementsAreArray(expected));
}

TEST(SlotFolder, RemovesALeftOverLinkAndNotItsTarget) {
  const TempDir dir;
  write_all(dir / "target", "text");
  fs::create_symlink("target", dir / "tqcache-0123456789abcdef-1.slot");
  fs::create_directory(dir / "tqcache-0123456789abcdef-1.slot.checkpoints");
  ASSERT_TRUE(SlotFolder::open(dir.path()).ok());
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre(".tqcache-serve.lock", "target",
                                   "tqcache-0123456789abcdef-1.slot.checkpoints"));
}

TEST(SlotFolder, BelongsToOneProxy) {
  const TempDir dir;
  {
    const auto first = SlotFolder::open(dir.path());
    ASSERT_TRUE(first.ok());
    EXPECT_THAT((*first)->warnings(), IsEmpty());
    const auto second = SlotFolder::open(dir.path());
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ErrorCode::kBusy);
    EXPECT_EQ(second.error().file, dir.path());
  }
  EXPECT_TRUE(SlotFolder::open(dir.path()).ok());
}

TEST(SlotFolder, ThatDoesNotExistIsRefused) {
  const TempDir dir;
  EXPECT_EQ(SlotFolder::open(dir / "none").error().code, ErrorCode::kNotFound);
  write_all(dir / "file", "text");
  EXPECT_EQ(SlotFolder::open(dir / "file").error().code, ErrorCode::kNotFound);
}

TEST(SlotFolder, DoesNotFollowALinkAsItsLock) {
  const TempDir dir;
  fs::create_symlink(dir / "elsewhere", dir / ".tqcache-serve.lock");
  EXPECT_THAT(SlotFolder::open(dir.path()),
              test::FailsWith(ErrorCode::kIo, HasSubstr("symbolic link")));
  EXPECT_FALSE(fs::exists(dir / "elsewhere"));
}

TEST(SlotFolder, WorksOnAFileSystemWithoutLocksAndSaysSo) {
  for (const int error_number : {ENOLCK, EOPNOTSUPP, ENOSYS, EBADF, EINVAL}) {
    const TempDir dir;
    const int status = test::in_child([&] {
      if (!test::fail_system_calls({SYS_flock}, error_number)) return test::kNotPossibleHere;
      const auto folder = SlotFolder::open(dir.path());
      if (!folder) return 1;
      return (*folder)->warnings().size() == 1 &&
                     (*folder)->warnings()[0].find("cannot be locked") != std::string::npos
                 ? 0
                 : 2;
    });
    if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
    EXPECT_EQ(status, 0) << std::strerror(error_number);
  }
}

TEST(SlotFolder, WithoutLocksKeepsFilesThatAnotherProxyMayUse) {
  const TempDir dir;
  const std::string young = "tqcache-0123456789abcdef-1.slot";
  const std::string old = "tqcache-0123456789abcdef-2.slot";
  write_all(dir / young, "text");
  write_all(dir / old, "text");
  const std::time_t yesterday = std::time(nullptr) - 24 * 3600;
  const utimbuf times{yesterday, yesterday};
  ASSERT_EQ(::utime((dir / old).c_str(), &times), 0);
  const int status = test::in_child([&] {
    if (!test::fail_system_calls({SYS_flock}, ENOLCK)) return test::kNotPossibleHere;
    return SlotFolder::open(dir.path()).ok() ? 0 : 1;
  });
  if (status == test::kNotPossibleHere) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre(".tqcache-serve.lock", young));
}

TEST(SlotFolder, WarnsIfEverybodyCanReplaceItsFiles) {
  const TempDir dir;
  fs::create_directory(dir / "slots");
  ASSERT_EQ(::chmod((dir / "slots").c_str(), 0777), 0);
  EXPECT_THAT((*SlotFolder::open(dir / "slots"))->warnings(), ElementsAre(HasSubstr("chmod o-w")));
  ASSERT_EQ(::chmod((dir / "slots").c_str(), 01777), 0);
  EXPECT_THAT((*SlotFolder::open(dir / "slots"))->warnings(), IsEmpty());
}

TEST(SlotFolder, KnowsWhetherItIsInMemory) {
  const fs::path memory = "/dev/shm";
  std::ifstream mounts("/proc/self/mounts");
  const std::string text{std::istreambuf_iterator<char>(mounts), {}};
  if (text.find(" /dev/shm tmpfs ") == std::string::npos) GTEST_SKIP() << "no tmpfs here";
  const fs::path folder = memory / ("tqcache-test-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  EXPECT_TRUE((*SlotFolder::open(folder))->is_in_memory());
  fs::remove_all(folder);
}

TEST(SlotFolder, OnADiskIsNotInMemory) {
  // The type of the file system that holds the program that runs.
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::ifstream mounts("/proc/self/mounts");
  std::string device, place, type, rest, of_longest;
  std::size_t longest = 0;
  while (mounts >> device >> place >> type && std::getline(mounts, rest)) {
    if (folder.native().starts_with(place) && place.size() >= longest) {
      longest = place.size();
      of_longest = type;
    }
  }
  if (of_longest == "tmpfs" || of_longest == "ramfs") GTEST_SKIP() << "built in memory";
  const fs::path slots = folder / ("slots-" + std::to_string(::getpid()));
  fs::create_directory(slots);
  EXPECT_FALSE((*SlotFolder::open(slots))->is_in_memory());
  fs::remove_all(slots);
}

TEST(SlotFile, IsRemovedWithTheFilesOfOtherProgramsBesideIt) {
  const TempDir dir;
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok());
  {
    const SlotFile file(**folder), other(**folder);
    EXPECT_TRUE(is_left_over(file.name())) << file.name();
    write_all(file.path(), "slot");
    write_all(file.path().native() + ".ckpt", "checkpoint");
    write_all(file.path().native() + ".checkpoints", "checkpoints");
    write_all(dir / (file.name() + "s"), "another file");
    write_all(dir / "slot.bin.ckpt", "another file");
    write_all(other.path(), "slot");
    {
      SlotFile moved_from(**folder);
      write_all(moved_from.path(), "slot");
      const SlotFile moved(std::move(moved_from));
      EXPECT_TRUE(fs::exists(moved.path()));
    }
    EXPECT_EQ(names_in(dir.path()).size(), 7u);
    fs::remove(dir / (file.name() + "s"));
  }
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre(".tqcache-serve.lock", "slot.bin.ckpt"));
}

TEST(SlotFile, CanOnlyBeReadByItsUser) {
  const TempDir dir;
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok());
  const SlotFile file(**folder);
  ASSERT_TRUE(file.create().ok());
  EXPECT_EQ(permissions_of(file.path()), 0600u);
  EXPECT_EQ(permissions_of(dir / ".tqcache-serve.lock"), 0600u);
  // As llama-server writes it.
  write_all(file.path(), "slot");
  EXPECT_EQ(permissions_of(file.path()), 0600u);
}

TEST(SlotFile, IsReadUnderItsName) {
  const TempDir dir;
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok());
  const SlotFile file(**folder);
  EXPECT_EQ(file.open().error().code, ErrorCode::kNotFound);
  write_all(file.path(), "1234567");
  const auto opened = file.open();
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ((*opened)->size(), 7u);
  Bytes bytes(3);
  ASSERT_TRUE((*opened)->read_at(4, bytes).ok());
  EXPECT_EQ(bytes, (Bytes{std::byte{'5'}, std::byte{'6'}, std::byte{'7'}}));
}

TEST(SlotFile, IsNeverALinkOrADevice) {
  const TempDir dir;
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok());
  const SlotFile link(**folder), pipe(**folder), a_folder(**folder);
  write_all(dir / "target", "text");
  fs::create_symlink("target", link.path());
  ASSERT_EQ(::mkfifo(pipe.path().c_str(), 0600), 0);
  fs::create_directory(a_folder.path());
  for (const SlotFile* file : {&link, &pipe, &a_folder}) {
    const auto opened = file->open();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kIo);
    EXPECT_EQ(opened.error().file, file->path());
    // Nor does llama-server get it to write into.
    EXPECT_EQ(file->create().error().code, ErrorCode::kIo);
  }
  EXPECT_THAT(link.open().error().message, HasSubstr("symbolic link"));
  fs::remove(a_folder.path());
}

TEST(SlotFile, HasANameThatTheOneBeforeDoesNotTell) {
  const TempDir dir;
  const auto folder = SlotFolder::open(dir.path());
  ASSERT_TRUE(folder.ok());
  const SlotFile one(**folder), two(**folder);
  EXPECT_NE(one.name().substr(0, 24), two.name().substr(0, 24));
}

}  // namespace
}  // namespace tqcache::serve
