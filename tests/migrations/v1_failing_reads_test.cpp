// A read that the system refuses is told as what it is, and not as a damaged file.

#include <gtest/gtest.h>

#include "migrations/v1_file.h"
#include "support/failing_source.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"

namespace tqcache::test {
namespace v1_failing_reads_test {

TEST(V1FailingRead, IsReportedWhicheverReadItWas) {
  const Bytes file = write_v1(V1Builder(3).dense({1, 4}, V1Dtype::kF16).build());
  const std::size_t n = fail_every_read(file, [](const auto& source) {
    const auto read = migrations::read_v1(source);
    if (!source.has_failed()) return;
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kIo) << read.error().message;
  });
  EXPECT_GE(n, 2u);  // the file, and its digest
}

TEST(V1FailingRead, MakesDetectionOfTheFileFail) {
  const Bytes file = write_v1(V1Builder(3).dense({1, 4}, V1Dtype::kF16).build());
  EXPECT_TRUE(migrations::looks_like_v1(FailingSource(file, 1)));
  EXPECT_FALSE(migrations::looks_like_v1(FailingSource(file, 0)));
}

}  // namespace v1_failing_reads_test
}  // namespace tqcache::test
