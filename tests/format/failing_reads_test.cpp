// A read that the system refuses is told as what it is, whichever read it was, and never as damage.

#include <gtest/gtest.h>

#include "append_fixture.h"
#include "support/failing_source.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::test {
namespace failing_reads_test {

constexpr std::size_t kHeaderReads =
    2;  // the header is read twice, to be sure that it stands still

// Sections of every kind, one of them cut by taking the first 300 of 513 tokens; and a gap.
Bytes appended_file_of_all_kinds() {
  const cache::Cache cache = CacheBuilder(512)
                                 .dense({1, 4})
                                 .turbo({1, 32}, 2, 2)
                                 .center(cache::Centering::kPostRope)
                                 .build();
  return appended_file(cache, grown(cache, 1));
}

template <class T>
void expect_io_error(const Result<T>& result) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kIo) << result.error().message;
  EXPECT_NE(result.error().message.find("the disk went bad"), std::string::npos)
      << result.error().message;
}

TEST(FailingRead, IsReportedByAListing) {
  const std::size_t n = fail_every_read(appended_file_of_all_kinds(), [](const auto& source) {
    const auto info = format::read_cache_info(source);
    if (source.has_failed()) expect_io_error(info);
  });
  EXPECT_EQ(n, kHeaderReads + 1);  // and the manifest
}

TEST(FailingRead, IsReportedByALoadWhichReturnsNothing) {
  const std::size_t n = fail_every_read(appended_file_of_all_kinds(), [](const auto& source) {
    const auto cache = format::read_cache(source, {.n_threads = 1});
    if (source.has_failed()) expect_io_error(cache);
  });
  EXPECT_GT(n, 12u);
}

TEST(FailingRead, IsReportedByALoadOfTheFirstTokens) {
  const std::size_t n = fail_every_read(appended_file_of_all_kinds(), [](const auto& source) {
    const auto cache = format::read_cache(source, {.n_threads = 1, .first_tokens = 300});
    if (source.has_failed()) expect_io_error(cache);
  });
  EXPECT_GT(n, kHeaderReads + 1);
}

TEST(FailingRead, OfASectionOrAGapIsInTheReportOfVerify) {
  fail_every_read(appended_file_of_all_kinds(), [](const auto& source) {
    const auto report = format::verify_cache(source, {.n_threads = 1});
    if (!source.has_failed()) return;
    if (!report) return expect_io_error(report);
    ASSERT_EQ(report->damage.size(), 1u);
    EXPECT_NE(report->damage.front().find("the disk went bad"), std::string::npos);
  });
}

TEST(FailingRead, MakesDetectionOfTheFileFail) {
  const Bytes file = small_file();
  EXPECT_TRUE(format::looks_like_cache_file(FailingSource(file, 1)));  // one read is enough
  EXPECT_FALSE(format::looks_like_cache_file(FailingSource(file, 0)));
}

TEST(FailingRead, OfAFileShorterThanAHeaderIsReported) {
  const Bytes file = small_file();
  const Bytes start(file.begin(), file.begin() + 20);
  fail_every_read(start, [](const auto& source) {
    const auto info = format::read_cache_info(source);
    ASSERT_FALSE(info.ok());
    EXPECT_EQ(info.error().code, source.has_failed() ? ErrorCode::kIo : ErrorCode::kTruncated);
  });
}

}  // namespace failing_reads_test
}  // namespace tqcache::test
