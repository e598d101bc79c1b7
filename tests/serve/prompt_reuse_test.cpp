// What is told of one prompt: in the log, in headers and in metrics.

#include "tqcache/serve/prompt_reuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tqcache::serve {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

PromptReuse parted() {
  return {.n_tokens = 12'000,
          .n_reused = 37,
          .from = ReuseSource::kStore,
          .parts_at = 37,
          .parts_of = 11'950};
}

std::string line_of(const PromptReuse& reuse) {
  std::string all;
  Log log([&](std::string_view line) { all += line; });
  log.info("prompt", reuse_fields(reuse));
  return all;
}

TEST(PromptReuse, TheLogSaysWhereAPromptParts) {
  EXPECT_THAT(line_of(parted()), EndsWith("level=info event=prompt tokens=12000 reused=37 "
                                          "from=store parts_at=37 parts_of=11950\n"));
  EXPECT_THAT(line_of({.n_tokens = 9, .n_reused = 8, .from = ReuseSource::kSlot}),
              EndsWith("event=prompt tokens=9 reused=8 from=slot\n"));
  EXPECT_THAT(line_of({.n_tokens = 9}), EndsWith("event=prompt tokens=9 reused=0 from=nothing\n"));
}

TEST(PromptReuse, WordsAreInTheLogOnlyIfTheyAreGiven) {
  PromptReuse reuse = parted();
  reuse.here = "is Tuesday\n\x1b[31m";
  reuse.there = "is Monday";
  const std::string line = line_of(reuse);
  EXPECT_THAT(line, EndsWith(R"(here="is Tuesday\n\u001b[31m" there="is Monday")"
                             "\n"));
  EXPECT_THAT(line_of(parted()), Not(HasSubstr("here")));
}

TEST(PromptReuse, HeadersAreWellFormedAndHaveNoWords) {
  PromptReuse reuse = parted();
  reuse.here = reuse.there = "secret\r\nX: y";
  const std::vector<Header> wanted = {{"X-Tqcache-Tokens", "12000"},
                                      {"X-Tqcache-Reused", "37"},
                                      {"X-Tqcache-From", "store"},
                                      {"X-Tqcache-Parts-At", "37"},
                                      {"X-Tqcache-Parts-Of", "11950"}};
  EXPECT_EQ(reuse_headers(reuse), wanted);
  for (const Header& header : reuse_headers(reuse)) EXPECT_TRUE(is_well_formed(header));
  EXPECT_EQ(reuse_headers({}),
            (std::vector<Header>{{"X-Tqcache-Reused", "0"}, {"X-Tqcache-From", "nothing"}}));
}

TEST(PromptReuse, MetricsCountByWhereTokensCameFromAndByQuarter) {
  Metrics metrics;
  define_reuse_metrics(metrics);
  count_reuse(metrics, parted());
  count_reuse(metrics, {.n_tokens = 100, .n_reused = 99, .from = ReuseSource::kRam});
  count_reuse(metrics, {.n_tokens = 100});
  for (const auto& [at, quarter] :
       {std::pair(24, "1"), std::pair(25, "2"), std::pair(99, "4"), std::pair(100, "4")}) {
    const double before = metrics.value("tqcache_parted_prompts_total", {{"quarter", quarter}});
    count_reuse(metrics, {.n_tokens = 200, .parts_at = at, .parts_of = 100});
    EXPECT_EQ(metrics.value("tqcache_parted_prompts_total", {{"quarter", quarter}}), before + 1)
        << at;
  }
  count_reuse(metrics, {.n_tokens = 200, .parts_at = 0, .parts_of = 100});  // like no other
  EXPECT_EQ(metrics.value("tqcache_reused_tokens_total", {{"from", "store"}}), 37);
  EXPECT_EQ(metrics.value("tqcache_reused_tokens_total", {{"from", "ram"}}), 99);
  EXPECT_EQ(metrics.value("tqcache_parted_prompts_total", {{"quarter", "1"}}), 2);
  EXPECT_THAT(metrics.text(), Not(HasSubstr("nothing")));
}

}  // namespace
}  // namespace tqcache::serve
