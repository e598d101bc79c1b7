// Each call to the system of what a store in a folder does failing in turn: it says so or is done
// all the same, nobody sees a part of a value, and the store goes on as soon as the system does.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>

#include "failing_calls.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"

namespace tqcache::faults {
namespace store_calls_test {

using store::Backend;
using test::TempDir;

const Bytes kOld(5000, std::byte{1});
const Bytes kNew(9000, std::byte{2});
const std::vector<std::string> kKeys = {"new", "old"};

struct Deed {
  std::string name;
  std::function<Result<void>(Backend&)> run;
};

Result<void> ignore_outcome(const auto& result) { return result ? Result<void>() : result.error(); }

std::vector<Deed> deeds() {
  return {
      {"Put", [](Backend& store) { return ignore_outcome(store.put("new", kNew)); }},
      {"PutAgain", [](Backend& store) { return ignore_outcome(store.put("old", kNew)); }},
      {"Get", [](Backend& store) { return ignore_outcome(store.get("old")); }},
      {"Remove", [](Backend& store) { return ignore_outcome(store.remove("old")); }},
      {"RemoveIfSame",
       [](Backend& store) { return ignore_outcome(store.remove_if_same("old", kOld)); }},
      {"Touch", [](Backend& store) { return store.touch(kKeys); }},
      {"List",
       [](Backend& store) {
         return store.list("", [](const store::Entry&) -> Result<void> { return {}; });
       }},
  };
}

class StoreCalls : public testing::TestWithParam<Deed> {
 protected:
  std::string url() const { return "dir:" + (folder_ / "store").string(); }

  Result<void> open_and_do() const {
    TQC_TRY_ASSIGN(const auto store, store::open_backend(url(), {}));
    return GetParam().run(*store);
  }

  // A new store with one blob in it.
  void set_up() const {
    std::filesystem::remove_all(folder_ / "store");
    test::must(test::must(store::open_backend(url(), {}))->put("old", kOld));
  }

  // Runs it with its call of that number failing. False: it has no such call.
  bool fail_at(std::int64_t number, int error, bool for_good) const {
    set_up();
    Result<void> done;
    std::string place;
    {
      const FailingCalls failing({number, error, for_good});
      done = open_and_do();
      if (!failing.came()) return false;
      place = std::string(failing.name()) + ", call " + std::to_string(number);
    }
    if (!done) {
      EXPECT_EQ(done.error().code, ErrorCode::kIo) << place << ": " << done.error().message;
    }
    expect_whole(place);
    expect_to_go_on(place);
    return true;
  }

  void expect_whole(const std::string& place) const {
    const auto store = test::must(store::open_backend(url(), {}));
    const auto old_value = test::must(store->get("old"));
    const bool may_be_gone = GetParam().name.starts_with("Remove");
    EXPECT_TRUE(old_value ? *old_value == kOld : may_be_gone) << place;
    const auto new_value = test::must(store->get("new"));
    EXPECT_TRUE(!new_value || *new_value == kNew) << place;
  }

  void expect_to_go_on(const std::string& place) const {
    const Result<void> again = open_and_do();
    EXPECT_TRUE(again.ok()) << place << ", and again: " << again.error().message;
    const auto store = test::must(store::open_backend(url(), {}));
    std::vector<std::string> listed;
    test::must(store->list("", [&](const store::Entry& entry) -> Result<void> {
      listed.push_back(entry.key);
      return {};
    }));
    const std::vector<bool> found = test::must(store->exists(kKeys));
    for (std::size_t i = 0; i < kKeys.size(); ++i) {
      const bool is_listed = std::ranges::find(listed, kKeys[i]) != listed.end();
      EXPECT_TRUE(is_listed || !found[i]) << place << ": " << kKeys[i] << " has no row";
    }
  }

  TempDir folder_;
};

TEST_P(StoreCalls, ThatFailOnceLeaveTheStoreWhole) {
  std::int64_t number = 1;
  while (fail_at(number, EIO, false)) ++number;
  EXPECT_GT(number, 2);
}

// As when the disk is full.
TEST_P(StoreCalls, ThatFailFromThenOnLeaveTheStoreWhole) {
  std::int64_t number = 1;
  while (fail_at(number, ENOSPC, true)) ++number;
  EXPECT_GT(number, 2);
}

INSTANTIATE_TEST_SUITE_P(Dir, StoreCalls, testing::ValuesIn(deeds()),
                         [](const auto& each) { return each.param.name; });

// The folder itself being made.
TEST(StoreFolder, IsMadeAfterAnyCallHasFailed) {
  const TempDir folder;
  const std::string url = "dir:" + (folder / "store").string();
  std::int64_t number = 0;
  for (bool came = true; came;) {
    std::filesystem::remove_all(folder / "store");
    {
      const FailingCalls failing({++number, ENOSPC, true});
      const auto store = store::open_backend(url, {});
      came = failing.came();
      EXPECT_TRUE(store.ok() || store.error().code == ErrorCode::kIo) << number;
    }
    const auto store = store::open_backend(url, {});
    ASSERT_TRUE(store.ok()) << number << ": " << store.error().message;
    EXPECT_TRUE((*store)->put("a", kNew).ok()) << number;
  }
  EXPECT_GT(number, 2);
}

}  // namespace store_calls_test
}  // namespace tqcache::faults
