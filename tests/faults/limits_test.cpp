// Operations that run into what a system really does, without an injected error: short reads and
// writes, a limit on files, a full or read-only file system, a folder of somebody else.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "support/temp_dir.h"
#include "victim.h"

namespace tqcache::faults {
namespace limits_test {

namespace fs = std::filesystem;
using test::TempDir;

constexpr int kDone = 0;
constexpr int kFailed = status_of(ErrorCode::kIo);

class Limited : public testing::TestWithParam<Operation> {};

INSTANTIATE_TEST_SUITE_P(Operations, Limited, testing::ValuesIn(operations()),
                         [](const auto& each) { return std::string(each.param.name); });

// Whether it is done, or has failed and left all as it was. Empty, or what is wrong.
std::string outcome(const Operation& operation, const fs::path& folder, int status) {
  if (status != kDone && status != kFailed) return "ended with status " + std::to_string(status);
  const std::string state = operation.state(folder);
  if (state != (status == kDone ? "new" : "old")) {
    return "status " + std::to_string(status) + ", and the state is: " + state;
  }
  const auto expected = status == kDone ? operation.names_after : names_before(operation);
  return names_in(folder) == expected ? "" : "stray files";
}

// Bytes of the largest file that the operation makes.
std::uintmax_t largest_file(const Operation& operation) {
  const TempDir folder;
  set_up(operation, folder.path());
  if (run_victim(operation, folder.path()) != kDone) throw std::runtime_error("not done");
  return fs::file_size(folder / kTarget);
}

TEST_P(Limited, IsDoneWhenTheSystemReadsAndWritesALittleAtATime) {
  const TempDir folder;
  set_up(GetParam(), folder.path());
  const int status = run_victim(GetParam(), folder.path(), {"--short-transfers"});
  EXPECT_EQ(status, kDone);
  EXPECT_EQ(outcome(GetParam(), folder.path(), status), "");
}

// A write that crosses the limit is cut short first, and fails when it is continued.
TEST_P(Limited, LeavesTheOldFileAtAnyLimitOnTheSizeOfFiles) {
  const std::uintmax_t largest = largest_file(GetParam());
  int n_failed = 0;
  for (std::uintmax_t limit = 0; limit < largest + 1000; limit += 997) {
    const TempDir folder;
    set_up(GetParam(), folder.path());
    const int status =
        run_victim(GetParam(), folder.path(), {"--file-limit", std::to_string(limit)});
    EXPECT_EQ(outcome(GetParam(), folder.path(), status), "") << limit;
    n_failed += status == kFailed ? 1 : 0;
    EXPECT_TRUE(limit < largest || status == kDone) << limit;
  }
  EXPECT_GT(n_failed, 3);
}

TEST_P(Limited, LeavesTheOldFileInAFolderOfSomebodyElse) {
  const TempDir folder;
  set_up(GetParam(), folder.path());
  for (const std::string& name : names_before(GetParam())) {
    fs::permissions(folder / name, fs::perms{0444});
  }
  fs::permissions(folder.path(), fs::perms{0555});
  const int status = run_victim(GetParam(), folder.path(), {"--as-nobody"});
  if (status == kNotPossibleHere) GTEST_SKIP() << "cannot give up root";
  EXPECT_EQ(status, kFailed);
  EXPECT_EQ(outcome(GetParam(), folder.path(), status), "");
}

// How a child that was let into a file system of its own ends.
constexpr int kDoneThere = 0;
constexpr int kFailedThere = 1;  // as it should: the old file stands, and nothing else
constexpr int kWrong = 2;

// Runs `body` in a child that may mount, and does so where no other process sees it.
int with_own_mounts(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool alone = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    const bool hidden = alone && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    ::_exit(hidden ? body() : kNotPossibleHere);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return kWrong;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kWrong;
}

bool mount_memory(const fs::path& folder, const std::string& options) {
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

std::string text_of(const fs::path& path) {
  if (!fs::exists(path)) return {};
  const Bytes bytes = test::read_all(path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// What is wrong goes to `complaint`, as the child's standard error is nobody's.
int told(const Operation& operation, const fs::path& folder, int status,
         const fs::path& complaint) {
  const std::string wrong = outcome(operation, folder, status);
  if (!wrong.empty()) test::write_all(complaint, wrong);
  if (!wrong.empty()) return kWrong;
  return status == kDone ? kDoneThere : kFailedThere;
}

std::uintmax_t pages(std::uintmax_t bytes) { return (bytes + 4095) / 4096; }

// With `n_pages` more than what stands there before.
int on_a_small_disk(const Operation& operation, std::uintmax_t n_pages, const fs::path& complaint) {
  const TempDir folder;
  for (const auto& [name, bytes] : operation.before()) n_pages += pages(bytes.size());
  n_pages = std::max<std::uintmax_t>(n_pages, 1);  // 0 would be no limit
  const std::string size = "size=" + std::to_string(4 * n_pages) + "k";
  if (!mount_memory(folder.path(), size)) return kNotPossibleHere;
  set_up(operation, folder.path());
  const int status = run_victim(operation, folder.path());
  const int result = told(operation, folder.path(), status, complaint);
  ::umount(folder.path().c_str());
  return result;
}

TEST_P(Limited, LeavesTheOldFileOnAFullDisk) {
  const TempDir elsewhere;
  const fs::path complaint = elsewhere / "complaint";
  int result = kFailedThere;
  std::uintmax_t n = 0;
  for (; result == kFailedThere; ++n) {
    result = with_own_mounts([&] { return on_a_small_disk(GetParam(), n, complaint); });
  }
  if (result == kNotPossibleHere) GTEST_SKIP() << "may not mount a file system";
  EXPECT_EQ(result, kDoneThere) << n - 1 << " pages: " << text_of(complaint);
  EXPECT_GT(n, 3u) << "it was full at least twice";
}

TEST_P(Limited, LeavesTheOldFileOnAReadOnlyDisk) {
  const TempDir elsewhere;
  const fs::path complaint = elsewhere / "complaint";
  const int result = with_own_mounts([&] {
    const TempDir folder;
    if (!mount_memory(folder.path(), "")) return kNotPossibleHere;
    set_up(GetParam(), folder.path());
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      return kNotPossibleHere;
    }
    const int status = run_victim(GetParam(), folder.path());
    const int there = told(GetParam(), folder.path(), status, complaint);
    ::umount(folder.path().c_str());
    return there;
  });
  if (result == kNotPossibleHere) GTEST_SKIP() << "may not mount a file system";
  EXPECT_EQ(result, kFailedThere) << text_of(complaint);
}

}  // namespace limits_test
}  // namespace tqcache::faults
