// `tqcache selftest`, which users run on machines that nobody else has seen.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace selftest_test {

using testing::HasSubstr;

TEST(Selftest, PassesHereAndLeavesNothing) {
  const TempDir dir;
  RunOptions options;
  options.environment = {"TMPDIR=" + dir.path().string()};
  const Output output = tqcache({"selftest", "--json"}, options);
  EXPECT_EQ(output.exit_code, 0) << output.out;
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_TRUE(json.at("ok").get<bool>());
  EXPECT_GE(json.at("checks").size(), 8u);
  for (const auto& check : json.at("checks")) EXPECT_TRUE(check.at("ok").get<bool>()) << check;
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Selftest, ATemporaryFolderThatCannotBeUsedIsNamed) {
  RunOptions options;
  options.environment = {"TMPDIR=/no/such/folder"};
  const Output output = tqcache({"selftest"}, options);
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("TMPDIR"));
}

}  // namespace selftest_test
}  // namespace tqcache::test
