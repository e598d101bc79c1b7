// Limits of memory: of the machine, of the user, and by the size of what is stored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tqcache/access.h"

namespace tqcache {
namespace memory_budget_test {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(MemoryBudget, OfTheMachineIsSomeOfItsMemory) {
  const std::uint64_t bytes = MemoryBudget::of_machine().bytes();
  EXPECT_GT(bytes, 16 * kMiB);
  EXPECT_LT(bytes, std::uint64_t{1} << 50);
}

TEST(MemoryBudget, AllowsValuesInProportionToWhatIsStored) {
  const MemoryBudget budget = MemoryBudget::of_machine();
  EXPECT_EQ(budget.limit(1000, 1 * kMiB), 1 * kMiB);
  EXPECT_EQ(budget.limit(kMiB / 16, 1 * kMiB), 4 * kMiB);
  EXPECT_EQ(budget.limit(~std::uint64_t{0}, 0), budget.bytes());
  EXPECT_TRUE(budget.check(kMiB, "x", 1000, kMiB));
  const auto refused = budget.check(kMiB + 1, "section 3", 1000, kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(refused.error().message, StartsWith("section 3: 1048577 bytes of memory"));
  EXPECT_THAT(refused.error().message, HasSubstr("--max-memory"));
}

TEST(MemoryBudget, OfTheUserIsForAnything) {
  const MemoryBudget budget = MemoryBudget::of_user(2 * kMiB);
  EXPECT_EQ(budget.limit(1, 16 * kMiB), 2 * kMiB);
  EXPECT_TRUE(budget.check(2 * kMiB, "x"));
  EXPECT_FALSE(budget.check(2 * kMiB + 1, "x"));
}

TEST(MemoryBudget, OfFewerBytesKeepsItsRules) {
  const MemoryBudget least = MemoryBudget::of_machine().at_most(2 * kMiB);
  EXPECT_EQ(least.limit(~std::uint64_t{0}, 0), 2 * kMiB);
  EXPECT_EQ(least.limit(1000, kMiB), kMiB);
  EXPECT_EQ(MemoryBudget::of_user(kMiB).at_most(2 * kMiB).bytes(), kMiB);
}

TEST(MemoryBudget, ComparesWhatIsNotInMemoryAtOnceWithItsStoredSizeAlone) {
  const MemoryBudget budget = MemoryBudget::of_machine().at_most(kMiB);
  EXPECT_TRUE(budget.check_proportion(64 * kMiB, "x", kMiB, 0));
  EXPECT_FALSE(budget.check_proportion(64 * kMiB + 1, "x", kMiB, 0));
  EXPECT_TRUE(MemoryBudget::of_user(kMiB).check_proportion(65 * kMiB, "x", kMiB, 0));
}

}  // namespace memory_budget_test
}  // namespace tqcache
