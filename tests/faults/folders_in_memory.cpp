// Nothing in these programs is about disks, and waiting for one at every flush would take most of
// their time: temporary folders stand in memory where there is such a place.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

namespace tqcache::faults {
namespace {

class FoldersInMemory : public testing::Environment {
  void SetUp() override {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

[[maybe_unused]] const testing::Environment* const kFoldersInMemory =
    testing::AddGlobalTestEnvironment(new FoldersInMemory);

}  // namespace
}  // namespace tqcache::faults
