// What happens between the opening of a file and its lock, which is one system call later.

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "support/libc.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"

namespace {

// Runs once, just before the next call of flock() but `calls_to_skip`.
struct BeforeLock {
  int calls_to_skip = 0;
  std::function<void()> act;
};
BeforeLock before_lock;

}  // namespace

// In the place of the C library's, for this program.
extern "C" int flock(int fd, int operation) TQCACHE_LIBC_NOEXCEPT {
  if (before_lock.act && before_lock.calls_to_skip-- == 0) {
    std::exchange(before_lock.act, nullptr)();
  }
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

namespace tqcache {
namespace {

namespace fs = std::filesystem;
using test::read_all;
using test::TempDir;
using test::write_all;

std::string text_of(const fs::path& path) {
  const Bytes bytes = read_all(path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class LockRace : public testing::Test {
 protected:
  ~LockRace() override { before_lock = {}; }
  void before_next_lock(std::function<void()> act) { before_lock = {0, std::move(act)}; }
  void before_second_lock(std::function<void()> act) { before_lock = {1, std::move(act)}; }
  // A file of the same name is there before it is locked, in the place of the one opened.
  void replace() {
    write_all(folder_ / "next", "replaced");
    fs::rename(folder_ / "next", folder_ / "file");
  }
  TempDir folder_;
};

TEST_F(LockRace, ALockedFileIsTheOneThatStandsUnderTheName) {
  write_all(folder_ / "file", "original");
  before_next_lock([&] { replace(); });
  const auto file = std::move(*LockedFile::open(folder_ / "file"));
  ASSERT_TRUE(file->write_at(8, as_bytes(" and written")).ok());
  EXPECT_EQ(text_of(folder_ / "file"), "replaced and written");
}

TEST_F(LockRace, ALockedFileThatIsRemovedIsNotFound) {
  write_all(folder_ / "file", "original");
  before_next_lock([&] { fs::remove(folder_ / "file"); });
  const auto file = LockedFile::open(folder_ / "file");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
}

TEST_F(LockRace, ATemporaryFileThatIsTakenAwayIsMadeAgain) {
  before_next_lock([&] {
    for (const auto& entry : fs::directory_iterator(folder_.path())) fs::remove(entry);
  });
  ASSERT_TRUE(write_file_atomically(folder_ / "file", as_bytes("text"), Overwrite::kRefuse).ok());
  EXPECT_EQ(text_of(folder_ / "file"), "text");
  EXPECT_EQ(folder_.entry_count(), 1u);
}

TEST_F(LockRace, ATemporaryFileThatAnotherHasLockedIsMadeAgain) {
  std::unique_ptr<LockedFile> other;
  before_next_lock([&] {
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      other = std::move(*LockedFile::open(entry.path()));
    }
  });
  AtomicFile file = *AtomicFile::create(folder_ / "file", Overwrite::kRefuse);
  ASSERT_TRUE(other);
  ASSERT_TRUE(file.write(as_bytes("text")).ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(text_of(folder_ / "file"), "text");
  EXPECT_EQ(folder_.entry_count(), 1u);
}

// The first lock is that of the temporary file.
TEST_F(LockRace, AFileThatComesToBeReplacedIsLockedToo) {
  write_all(folder_ / "file", "original");
  before_second_lock([&] { replace(); });
  AtomicFile file = *AtomicFile::create(folder_ / "file", Overwrite::kAllow);
  const auto other = LockedFile::open(folder_ / "file");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kBusy);
}

TEST_F(LockRace, AFileThatIsRemovedNeedsNoLock) {
  write_all(folder_ / "file", "original");
  before_second_lock([&] { fs::remove(folder_ / "file"); });
  ASSERT_TRUE(write_file_atomically(folder_ / "file", as_bytes("text"), Overwrite::kAllow).ok());
  EXPECT_EQ(text_of(folder_ / "file"), "text");
}

TEST_F(LockRace, AFileThatIsReplacedForEverIsBusy) {
  write_all(folder_ / "file", "original");
  std::function<void()> again = [&] {
    replace();
    before_next_lock(again);
  };
  before_next_lock(again);
  const auto file = LockedFile::open(folder_ / "file");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kBusy);
}

}  // namespace
}  // namespace tqcache
