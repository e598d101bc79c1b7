// Processes that use a store, killed with SIGKILL at moments that nobody has chosen: what was
// acknowledged is there, and nothing else than whole values is to be seen.

#include "store/kills.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/test_backends.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace kills_test {

class Kills : public testing::TestWithParam<TestBackend> {
 protected:
  TempDir folder_;
  std::string url_ = GetParam().new_url(folder_.path());
  std::mt19937 random_{1};
};

INSTANTIATE_TEST_SUITE_P(Store, Kills, testing::ValuesIn(test_backends()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(Kills, OfAWriterLeaveWhatWasAcknowledgedAndNoPartOfAnyValue) {
  if (!GetParam().many_processes) return;  // it has no other process
  int n_told = 0;
  for (int i = 0; i < n_kills(); ++i) {
    const NumberedBlobs blobs{"w/" + std::to_string(i)};
    Writer writer(url_, blobs);
    wait_for_any_moment(writer, random_);
    const int n_of_it = writer.kill();
    n_told += n_of_it;
    ASSERT_NO_FATAL_FAILURE(expect_what_was_told(url_, blobs, n_of_it)) << i;
  }
  EXPECT_GT(n_told, n_kills());
}

// Both put the same keys, so that one of them is killed while the other waits for the same file.
TEST_P(Kills, OfOneOfTwoWritersOfTheSameKeysDoNotHinderTheOther) {
  if (!GetParam().many_processes) return;
  for (int i = 0; i < n_kills() / 4; ++i) {
    const NumberedBlobs blobs{"w/" + std::to_string(i)};
    Writer writer(url_, blobs);
    Writer other(url_, blobs);
    wait_for_any_moment(writer, random_);
    int n_told = writer.kill();
    other.wait_for(n_told + 2);
    n_told = std::max(n_told, other.kill());
    EXPECT_GE(n_told, 2);
    ASSERT_NO_FATAL_FAILURE(expect_what_was_told(url_, blobs, n_told)) << i;
  }
}

}  // namespace kills_test
}  // namespace tqcache::test
