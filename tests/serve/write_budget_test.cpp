// A limit for the bytes that are written in a period.

#include "tqcache/serve/write_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "support/temp_dir.h"

namespace tqcache::serve {
namespace {

using test::TempDir;
using test::write_all;

constexpr double kNow = 1.8e9;  // in 2027
constexpr WriteLimit kTenAMinute{.bytes = 600, .period = std::chrono::hours(1)};

TEST(WriteBudget, LetsAWholePeriodsBytesBeWrittenAtOnceAndNoMore) {
  WriteBudget budget(kTenAMinute);
  EXPECT_FALSE(budget.is_exhausted(kNow));
  EXPECT_TRUE(budget.try_spend(400, kNow));
  EXPECT_FALSE(budget.try_spend(201, kNow));
  EXPECT_TRUE(budget.try_spend(200, kNow));
  EXPECT_TRUE(budget.is_exhausted(kNow));
  EXPECT_FALSE(budget.try_spend(1, kNow));
  EXPECT_TRUE(budget.try_spend(0, kNow));
}

TEST(WriteBudget, ForgetsEvenly) {
  WriteBudget budget(kTenAMinute);
  EXPECT_TRUE(budget.try_spend(600, kNow));
  EXPECT_DOUBLE_EQ(budget.seconds_until(10, kNow), 60);
  EXPECT_NEAR(budget.seconds_until(10, kNow + 20), 40, 1e-6);
  EXPECT_FALSE(budget.try_spend(10, kNow + 59));
  EXPECT_DOUBLE_EQ(budget.seconds_until(10, kNow + 60), 0);
  EXPECT_TRUE(budget.try_spend(10, kNow + 60));
  EXPECT_FALSE(budget.try_spend(1, kNow + 60));
  EXPECT_TRUE(budget.try_spend(590, kNow + 3600));
}

TEST(WriteBudget, HoldsNoMoreThanOnePeriodAfterALongRest) {
  WriteBudget budget(kTenAMinute);
  EXPECT_TRUE(budget.try_spend(600, kNow));
  EXPECT_TRUE(budget.try_spend(600, kNow + 1e6));
  EXPECT_FALSE(budget.try_spend(1, kNow + 1e6));
}

TEST(WriteBudget, CountsWhatWasWrittenAboveTheLimit) {
  WriteBudget budget(kTenAMinute);
  budget.spend(900, kNow);
  EXPECT_TRUE(budget.is_exhausted(kNow + 1800));  // 300 were above
  EXPECT_DOUBLE_EQ(budget.seconds_until(1, kNow), 1806);
  EXPECT_FALSE(budget.is_exhausted(kNow + 1806));
}

TEST(WriteBudget, LetsMoreThanAPeriodsBytesBeWrittenOnceNothingElseWas) {
  WriteBudget budget(kTenAMinute);
  EXPECT_TRUE(budget.try_spend(1, kNow));
  EXPECT_FALSE(budget.try_spend(6000, kNow));
  EXPECT_TRUE(budget.try_spend(6000, kNow + 6));
  EXPECT_TRUE(budget.is_exhausted(kNow + 6 + 9 * 3600.0));
  EXPECT_FALSE(budget.is_exhausted(kNow + 6 + 10 * 3600.0));
}

TEST(WriteBudget, AClockThatGoesBackForgetsNothing) {
  WriteBudget budget(kTenAMinute);
  EXPECT_TRUE(budget.try_spend(600, kNow));
  EXPECT_FALSE(budget.try_spend(1, kNow - 1e6));
  EXPECT_DOUBLE_EQ(budget.seconds_until(600, kNow - 100), 3700);
  budget.spend(0, kNow);
  EXPECT_TRUE(budget.is_exhausted(kNow));
}

// In n periods n + 1 times a period's bytes at most, whatever is asked for and when.
TEST(WriteBudget, HoldsInTheLongRun) {
  std::mt19937 random(7);
  WriteBudget budget({.bytes = 1000, .period = std::chrono::seconds(100)});
  double now = kNow, n_written = 0;
  std::size_t n_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += static_cast<double>(random() % 20);
    const std::uint64_t bytes = random() % 1000;
    if (budget.try_spend(bytes, now)) {
      n_written += static_cast<double>(bytes);
    } else {
      ++n_refused;
    }
    ASSERT_LE(n_written, 1000 + (now - kNow) * 10 + 1e-3);
  }
  EXPECT_GT(n_refused, 100u);
  EXPECT_GT(n_written, 0.9 * (now - kNow) * 10);
}

class WrittenFile : public testing::Test {
 protected:
  TempDir dir_;
  std::string path_ = dir_ / ".tqcache-serve.written";

  // Seconds until a period's bytes may be written, that is until all is forgotten.
  double wait_after(const std::string& text) {
    write_all(path_, text);
    WriteBudget budget(kTenAMinute);
    EXPECT_TRUE(budget.load(path_, kNow).ok()) << text;
    return budget.seconds_until(600, kNow);
  }
};

TEST_F(WrittenFile, CountsOverRestarts) {
  WriteBudget first(kTenAMinute);
  ASSERT_TRUE(first.load(path_, kNow).ok());
  EXPECT_TRUE(first.try_spend(600, kNow));
  ASSERT_TRUE(first.save(path_, kNow + 60).ok());
  WriteBudget second(kTenAMinute);
  ASSERT_TRUE(second.load(path_, kNow + 120).ok());
  EXPECT_FALSE(second.try_spend(21, kNow + 120));
  EXPECT_TRUE(second.try_spend(20, kNow + 120));
}

TEST_F(WrittenFile, CountsAlsoForAnotherLimit) {
  WriteBudget first(kTenAMinute);
  EXPECT_TRUE(first.try_spend(600, kNow));
  ASSERT_TRUE(first.save(path_, kNow).ok());
  WriteBudget second({.bytes = 1000, .period = std::chrono::hours(24)});
  ASSERT_TRUE(second.load(path_, kNow).ok());
  EXPECT_FALSE(second.try_spend(401, kNow));
  EXPECT_TRUE(second.try_spend(400, kNow));
}

TEST_F(WrittenFile, IsOnlyWrittenWhenSomethingWasSpentAndOnlyForItsUser) {
  WriteBudget budget(kTenAMinute);
  ASSERT_TRUE(budget.save(path_, kNow).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  budget.spend(1, kNow);
  ASSERT_TRUE(budget.save(path_, kNow).ok());
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(dir_.entry_count(), 1u);
  std::filesystem::remove(path_);
  ASSERT_TRUE(budget.save(path_, kNow).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(WrittenFile, ThatCannotBeWrittenIsTriedAgain) {
  WriteBudget budget(kTenAMinute);
  budget.spend(300, kNow);
  const std::string nowhere = dir_ / "none" / ".tqcache-serve.written";
  const auto saved = budget.save(nowhere, kNow);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().file, nowhere);
  ASSERT_TRUE(budget.save(path_, kNow).ok());
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(WrittenFile, HasTwoNumbersBehindItsFirstLine) {
  EXPECT_DOUBLE_EQ(wait_after("tqcache-serve.written 1\n300 1800000000\n"), 1800);
  EXPECT_DOUBLE_EQ(wait_after("tqcache-serve.written 1\n300 1799999400\n"), 1200);
}

TEST_F(WrittenFile, OfAnotherKindCountsNothing) {
  for (const std::string text :
       {"", "300 1800000000\n", "tqcache-serve.written 2\n300 1800000000\n",
        "tqcache-serve.written 1\n", "tqcache-serve.written 1\n300",
        "tqcache-serve.written 1\n300 ", "tqcache-serve.written 1\n300 1800000000",
        "tqcache-serve.written 1\n-300 1800000000\n", "tqcache-serve.written 1\n3e2 1800000000\n",
        "tqcache-serve.written 1\n 300 1800000000\n", "tqcache-serve.written 1\nnan 1800000000\n",
        "tqcache-serve.written 1\n300 1800000000\n\n",
        "tqcache-serve.written 1\n99999999999999999999999 1800000000\n"}) {
    EXPECT_DOUBLE_EQ(wait_after(text), 0) << text;
  }
  EXPECT_DOUBLE_EQ(wait_after(std::string(101, '1')), 0);
  EXPECT_DOUBLE_EQ(wait_after(std::string("tqcache-serve.written 1\n300 1800000000\n\0", 41)), 0);
}

TEST_F(WrittenFile, NeverStopsWritingForMoreThanTwoPeriods) {
  const std::string most = std::to_string(UINT64_MAX);
  EXPECT_DOUBLE_EQ(wait_after("tqcache-serve.written 1\n" + most + " 1800000000\n"), 7200);
  EXPECT_DOUBLE_EQ(wait_after("tqcache-serve.written 1\n" + most + " " + most + "\n"), 7200);
}

TEST_F(WrittenFile, ThatIsAFolderIsReported) {
  std::filesystem::create_directory(path_);
  WriteBudget budget(kTenAMinute);
  const auto loaded = budget.load(path_, kNow);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().file, path_);
  EXPECT_TRUE(budget.try_spend(600, kNow));
}

}  // namespace
}  // namespace tqcache::serve
