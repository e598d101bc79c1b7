// An operation killed with SIGKILL before each of its system calls in turn, which is after the one
// before it: what stands under the name is the old file or the new one, whole, and the next run
// leaves nothing stray.

#include <gtest/gtest.h>
#include <signal.h>

#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "victim.h"

namespace tqcache::faults {
namespace kill_test {

using test::TempDir;

class Killed : public testing::TestWithParam<Operation> {};

INSTANTIATE_TEST_SUITE_P(Operations, Killed, testing::ValuesIn(operations()),
                         [](const auto& each) { return std::string(each.param.name); });

// Empty, or what is wrong.
std::string go_on_after(const Operation& killed, const TempDir& folder) {
  const std::string state = killed.state(folder.path());
  if (state != "old" && state != "new") return state;
  const Operation& again = operation(killed.again);
  if (const int status = run_victim(again, folder.path()); status != 0) {
    return "the next run ended with " + std::to_string(status);
  }
  if (again.state(folder.path()) != "new") return again.state(folder.path());
  if (names_in(folder.path()) != killed.names_after) return "stray files after the next run";
  return {};
}

TEST_P(Killed, LeavesTheOldFileOrTheNewOneAtAnySystemCall) {
  if (kIsEmulated) GTEST_SKIP() << "strace does not see what an emulated program calls";
  const Operation& operation = GetParam();
  const std::vector<SystemCall> calls = list_system_calls(operation);
  ASSERT_GT(calls.size(), 10u);
  int n_old = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!test::takes_case(i, calls.size(), 3)) continue;
    const SystemCall& call = calls[i];
    const TempDir folder;
    set_up(operation, folder.path());
    const int status = run_victim_with(operation, folder.path(), call, "signal=KILL");
    // The last ones come when the process ends of itself: it is killed all the same.
    ASSERT_EQ(status, -SIGKILL) << call.name << " " << call.number;
    n_old += operation.state(folder.path()) == "old" ? 1 : 0;
    EXPECT_EQ(go_on_after(operation, folder), "") << call.name << " " << call.number;
  }
  // Both were seen: killed at its first call it has done nothing, and all of it at the last.
  EXPECT_GT(n_old, 0);
  EXPECT_LT(n_old, static_cast<int>(calls.size()));
  RecordProperty("system_calls", static_cast<int>(calls.size()));
}

}  // namespace kill_test
}  // namespace tqcache::faults
