// Each system call of an operation that may fail on a good day, failing in each way: the operation
// says so, the old file stands as it did, and nothing else is to be seen.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "victim.h"

namespace tqcache::faults {
namespace errno_test {

using test::TempDir;

constexpr int kDone = 0;

// What may go wrong with any of them. Closing, looking and listing fail in other ways or none.
constexpr std::array kFallible = {"openat",    "write",  "pwrite64",  "pread64",   "fsync",
                                  "fdatasync", "rename", "renameat",  "renameat2", "link",
                                  "linkat",    "flock",  "ftruncate", "close"};

bool is_one_of(std::span<const char* const> names, std::string_view name) {
  return std::ranges::any_of(names, [&](std::string_view each) { return each == name; });
}

class Failing : public testing::TestWithParam<std::tuple<Operation, const char*>> {
 protected:
  const Operation& operation() const { return std::get<0>(GetParam()); }
  std::string error() const { return std::get<1>(GetParam()); }

  // Runs the operation with `call` failing, and all further ones of its name if `for_good`.
  // Empty, or what is wrong.
  std::string fail_at(const SystemCall& call, bool for_good);

  std::vector<SystemCall> fallible_calls() {
    std::vector<SystemCall> calls = list_system_calls(operation());
    std::erase_if(calls, [](const SystemCall& call) { return !is_one_of(kFallible, call.name); });
    for (const SystemCall& call : calls) {
      if (call.name == "pwrite64") last_pwrite_ = call.number;
    }
    // The program handles the three errors alike.
    if (error() == "ENOSPC") return calls;
    std::vector<SystemCall> taken;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (test::takes_case(i, calls.size(), 4)) taken.push_back(calls[i]);
    }
    return taken;
  }

  // By which an append switches to the new state. When it fails nobody knows what is on disk, so
  // that nothing is taken back.
  bool is_switch(const SystemCall& call) const {
    return call.name == "pwrite64" && call.number == last_pwrite_;
  }

 private:
  int last_pwrite_ = 0;
};

std::string status_name(int status) { return "status " + std::to_string(status); }

// The file that a name stands for is the new one before the flush of its folder, and an append is
// done before the flush of its slot: nobody knows what a loss of power would leave then.
bool may_be_new(const SystemCall& call) { return call.name == "fsync" || call.name == "fdatasync"; }

bool has_files(const TempDir& folder, const std::map<std::string, Bytes>& files) {
  return std::ranges::all_of(
      files, [&](const auto& each) { return test::read_all(folder / each.first) == each.second; });
}

std::string Failing::fail_at(const SystemCall& call, bool for_good) {
  const TempDir folder;
  set_up(operation(), folder.path());
  const int status =
      run_victim_with(operation(), folder.path(), call, "error=" + error(), for_good);
  const std::string state = operation().state(folder.path());
  const std::set<std::string> names = names_in(folder.path());

  if (status == kDone) {
    if (state != "new") return "done, but the state is: " + state;
    return names == operation().names_after ? "" : "done, but there are stray files";
  }
  if (status != status_of(ErrorCode::kIo)) return "ended with " + status_name(status);
  const bool is_new = state == "new" && may_be_new(call);
  if (state != "old" && !is_new) return "failed, and the state is: " + state;
  if (names != (is_new ? operation().names_after : names_before(operation()))) {
    return "failed, and left stray files";
  }
  // What fails for good may keep an append from taking back what it wrote, which does no harm.
  if (is_new || for_good || is_switch(call)) return {};
  return has_files(folder, operation().before()) ? "" : "failed, and the file has other bytes";
}

TEST_P(Failing, LeavesTheOldFileAndNothingElseWhenACallFailsOnce) {
  if (kIsEmulated) GTEST_SKIP() << "strace does not see what an emulated program calls";
  for (const SystemCall& call : fallible_calls()) {
    EXPECT_EQ(fail_at(call, false), "") << call.name << " " << call.number;
  }
}

TEST_P(Failing, LeavesTheOldFileAndNothingElseWhenCallsFailForGood) {
  if (kIsEmulated) GTEST_SKIP() << "strace does not see what an emulated program calls";
  for (const SystemCall& call : fallible_calls()) {
    EXPECT_EQ(fail_at(call, true), "") << call.name << " " << call.number;
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, Failing,
                         testing::Combine(testing::ValuesIn(operations()),
                                          testing::Values("ENOSPC", "EIO", "EDQUOT")),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "_" +
                                  std::get<1>(each.param);
                         });

// Those that wait, and so can be interrupted. Opening, too: on some network file systems.
constexpr std::array kInterruptible = {"openat", "write",     "pwrite64",  "pread64", "fsync",
                                       "flock",  "fdatasync", "ftruncate", "close"};

class Interrupted : public testing::TestWithParam<Operation> {};

INSTANTIATE_TEST_SUITE_P(Operations, Interrupted, testing::ValuesIn(operations()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(Interrupted, SystemCallsAreRepeated) {
  if (kIsEmulated) GTEST_SKIP() << "strace does not see what an emulated program calls";
  const Operation& operation = GetParam();
  for (const SystemCall& call : list_system_calls(operation)) {
    if (!is_one_of(kInterruptible, call.name)) continue;
    const TempDir folder;
    set_up(operation, folder.path());
    EXPECT_EQ(run_victim_with(operation, folder.path(), call, "error=EINTR"), kDone)
        << call.name << " " << call.number;
    EXPECT_EQ(operation.state(folder.path()), "new") << call.name << " " << call.number;
    EXPECT_EQ(names_in(folder.path()), operation.names_after) << call.name << " " << call.number;
  }
}

}  // namespace errno_test
}  // namespace tqcache::faults
