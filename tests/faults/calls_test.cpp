// Each call of an operation to the system failing in turn, within this process: the operation says
// so or is done all the same, the old file or the new one stands, and running it again leads to the
// new one. errno_test.cpp looks closer, from outside, at what each failure leaves.

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <optional>

#include "failing_calls.h"
#include "migrations/migrate_file.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "operations.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::faults {
namespace calls_test {

using test::TempDir;

struct Case {
  std::string name;
  Operation operation;
  std::string_view always = {};  // a call that never works here, as on some file systems
  int always_error = 0;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Operation& each : operations()) {
    if (each.always.empty()) all.push_back({std::string(each.name), each});
  }
  all.push_back({"save_new_without_renameat2", operation("save_new"), "renameat2", EINVAL});
  all.push_back({"migrate_without_links", operation("migrate"), "link", EPERM});
  Operation over_backup = operation("migrate");
  over_backup.before = [] {
    auto files = operation("migrate").before();
    const Bytes old = files.at(std::string(kTarget));
    files[std::string(kTarget) + ".v1.bak"] = old;
    return files;
  };
  all.push_back({"migrate_over_backup", over_backup});
  return all;
}

class Calls : public testing::TestWithParam<Case> {
 protected:
  // Runs the operation with its call of that number failing. False: it has no such call.
  bool fail_at(std::int64_t number, int error, bool for_good);
};

bool Calls::fail_at(std::int64_t number, int error, bool for_good) {
  const Operation& operation = GetParam().operation;
  const TempDir folder;
  set_up(operation, folder.path());
  std::optional<Error> refusal;
  std::string name;
  {
    const FailingCalls failing(
        {number, error, for_good, GetParam().always, GetParam().always_error});
    if (Result<void> result = operation.run(folder.path()); !result) {
      refusal = std::move(result).error();
    }
    if (!failing.came()) return false;
    name = failing.name();
  }
  const std::string place = name + ", call " + std::to_string(number);
  const std::string state = operation.state(folder.path());
  EXPECT_TRUE(state == "new" || (state == "old" && refusal)) << place << ": " << state;
  if (refusal) {
    EXPECT_EQ(refusal->code, ErrorCode::kIo) << place << ": " << refusal->message;
    EXPECT_FALSE(refusal->message.empty()) << place;
  }
  const Operation& again = tqcache::faults::operation(operation.again);
  if (Result<void> result = again.run(folder.path()); !result) {
    ADD_FAILURE() << place << ", and again: " << result.error().message;
  }
  EXPECT_EQ(again.state(folder.path()), "new") << place << ", and again";
  return true;
}

TEST_P(Calls, ThatFailLeaveTheOldFileOrTheNewOne) {
  prepare(GetParam().operation);
  for (const bool for_good : {false, true}) {
    std::int64_t number = 1;
    while (fail_at(number, for_good ? ENOSPC : EIO, for_good)) ++number;
    EXPECT_GT(number, 10);
  }
}

// Runs `make`, which writes out.tqkv, with each of its calls failing in turn: there is no new file,
// or all of it, with what is expected.
void expect_nothing_or_all(const TempDir& folder, const cache::Cache& expected,
                           const std::function<Result<void>()>& make) {
  std::int64_t number = 0;
  for (bool came = true; came;) {
    Result<void> done;
    {
      const FailingCalls failing({++number, EIO});
      done = make();
      came = failing.came();
    }
    EXPECT_TRUE(done.ok() || done.error().code == ErrorCode::kIo) << number;
    if (const auto out = open_file(folder / "out.tqkv")) {
      EXPECT_EQ(test::difference(test::must(format::read_cache(**out)), expected), "") << number;
    } else {
      EXPECT_FALSE(done.ok()) << number;
    }
    std::filesystem::remove(folder / "out.tqkv");
  }
  EXPECT_GT(number, 10);
}

TEST(Conversion, LeavesNothingOrTheWholeFileWhenACallFails) {
  const TempDir folder;
  const cache::Cache cache = test::CacheBuilder(300).dense({1, 32}).arrays().build();
  test::must(format::write_cache_file(cache, folder / "in.tqkv", {}));
  const cache::Cache expected = test::must(cache::convert(cache, {.n_threads = 1}));
  expect_nothing_or_all(folder, expected, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto source, open_file(folder / "in.tqkv"));
    return format::convert_file(*source, folder / "out.tqkv", {.n_threads = 1}, {.n_threads = 1});
  });
}

TEST(MigrationBeside, LeavesNothingOrTheWholeFileWhenACallFails) {
  const TempDir folder;
  const Bytes old = operation("migrate").before().at(std::string(kTarget));
  test::write_all(folder / "in.tqkv", old);
  const auto file = test::must(migrations::read_v1(*memory_source(old)));
  const cache::Cache expected = test::must(migrations::v1_to_v2(file)).cache;
  expect_nothing_or_all(folder, expected, [&]() -> Result<void> {
    migrations::MigrateOptions options;
    options.write.n_threads = 1;
    TQC_TRY(migrations::migrate_file(folder / "in.tqkv", folder / "out.tqkv", options));
    return {};
  });
  EXPECT_EQ(test::read_all(folder / "in.tqkv"), old);
}

INSTANTIATE_TEST_SUITE_P(Operations, Calls, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace calls_test
}  // namespace tqcache::faults
