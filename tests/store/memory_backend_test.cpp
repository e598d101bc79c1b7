#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tqcache/store.h"

namespace tqcache::test {
namespace memory_backend_test {

TEST(MemoryStore, CountsASecondForEverythingThatIsPutOrTouched) {
  const auto store = std::move(store::open_backend("memory:", {})).value();
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(store->put(key, {}).ok());
  ASSERT_TRUE(store->touch(std::vector<std::string>{"a"}).ok());
  std::vector<std::int64_t> idle;
  const Result<void> done = store->list("", [&](const store::Entry& entry) -> Result<void> {
    idle.push_back(entry.idle->count());
    return {};
  });
  ASSERT_TRUE(done.ok());
  EXPECT_THAT(idle, testing::ElementsAre(0, 2, 1));
}

}  // namespace memory_backend_test
}  // namespace tqcache::test
