// Operations on a name that stands for something else than a file.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <thread>

#include "support/temp_dir.h"
#include "victim.h"

namespace tqcache::faults {
namespace targets_test {

namespace fs = std::filesystem;
using test::read_all;
using test::TempDir;

constexpr int kDone = 0;
constexpr int kFailed = status_of(ErrorCode::kIo);

// Operations that need no file before them, and so write to whatever takes bytes.
bool makes_a_file(const Operation& operation) { return operation.name.starts_with("save"); }

class Target : public testing::TestWithParam<Operation> {
 protected:
  const TempDir folder_;
  const fs::path target_ = folder_ / kTarget;
};

INSTANTIATE_TEST_SUITE_P(Operations, Target, testing::ValuesIn(operations()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(Target, IsNotASymbolicLink) {
  const std::map<std::string, Bytes> before = GetParam().before();
  const Bytes old = before.empty() ? Bytes(1) : before.begin()->second;
  test::write_all(folder_ / "real", old);
  fs::create_symlink("real", target_);
  EXPECT_EQ(run_victim(GetParam(), folder_.path()), kFailed);
  EXPECT_TRUE(fs::is_symlink(target_));
  EXPECT_EQ(read_all(folder_ / "real"), old);
  EXPECT_EQ(folder_.entry_count(), 2u);
}

TEST_P(Target, IsNotALinkToNothing) {
  fs::create_symlink("missing", target_);
  const int status = run_victim(GetParam(), folder_.path());
  EXPECT_TRUE(status == kFailed || status == status_of(ErrorCode::kNotFound)) << status;
  EXPECT_TRUE(fs::is_symlink(target_));
  EXPECT_EQ(folder_.entry_count(), 1u);
}

TEST_P(Target, IsNotAFolder) {
  fs::create_directory(target_);
  EXPECT_EQ(run_victim(GetParam(), folder_.path()), kFailed);
  EXPECT_TRUE(fs::is_directory(target_));
  EXPECT_EQ(folder_.entry_count(), 1u);
}

// A pipe takes a file that is made, and is no file to change.
TEST_P(Target, IsWrittenThroughWhenItIsAPipe) {
  ASSERT_EQ(::mkfifo(target_.c_str(), 0600), 0);
  if (makes_a_file(GetParam())) {
    Bytes received;
    std::thread reader([&] { received = read_all(target_); });
    const int status = run_victim(GetParam(), folder_.path());
    reader.join();
    EXPECT_EQ(status, kDone);
    const TempDir other;
    test::write_all(other / kTarget, received);
    EXPECT_EQ(GetParam().state(other.path()), "new");
  } else {
    EXPECT_EQ(run_victim(GetParam(), folder_.path()), kFailed);
  }
  EXPECT_TRUE(fs::is_fifo(target_));
  EXPECT_EQ(folder_.entry_count(), 1u);
}

TEST_P(Target, IsNotADeviceThatIsFull) {
  if (::mknod(target_.c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0) {
    GTEST_SKIP() << "may not make a device";
  }
  EXPECT_EQ(run_victim(GetParam(), folder_.path()), kFailed);
  EXPECT_TRUE(fs::is_character_file(target_));
  EXPECT_EQ(folder_.entry_count(), 1u);
}

TEST_P(Target, IsNotInAFolderThatIsMissing) {
  const int status = run_victim(GetParam(), folder_ / "missing");
  EXPECT_TRUE(status == kFailed || status == status_of(ErrorCode::kNotFound)) << status;
  EXPECT_EQ(folder_.entry_count(), 0u);
}

}  // namespace targets_test
}  // namespace tqcache::faults
