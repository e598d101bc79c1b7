#include <gtest/gtest.h>

#include "tqcache/session.h"

namespace tqcache::session {
namespace {

std::string filtered(StopFilter filter, const std::vector<std::string>& pieces) {
  std::string shown;
  for (const std::string& piece : pieces) shown += filter.add(piece);
  return shown + filter.end();
}

TEST(StopFilter, EndsBeforeAStopStringWhereverPiecesAreCut) {
  for (std::size_t cut = 0; cut <= 9; ++cut) {
    const std::string text = "one STOP two";
    const auto shown = filtered(StopFilter({"STOP"}),
                                {text.substr(0, cut), text.substr(cut, 2), text.substr(cut + 2)});
    EXPECT_EQ(shown, "one ") << cut;
  }
}

TEST(StopFilter, TakesTheStopStringThatBeginsFirst) {
  EXPECT_EQ(filtered(StopFilter({"c", "bc"}), {"ab", "cd"}), "a");
}

TEST(StopFilter, GivesBackWhatOnlyLookedLikeOne) {
  EXPECT_EQ(filtered(StopFilter({"aab"}), {"a", "a", "a", "c"}), "aaac");
  EXPECT_EQ(filtered(StopFilter({"aab"}), {"xa", "a"}), "xaa");
  EXPECT_EQ(filtered(StopFilter({"aab"}), {"a", "a", "a", "b", "c"}), "a");
}

TEST(StopFilter, HoldsBackNoMoreThanItMust) {
  StopFilter filter({"end"});
  EXPECT_EQ(filter.add("the e"), "the ");
  EXPECT_EQ(filter.add("l"), "el");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, WithoutStopStringsLetsAllThrough) {
  EXPECT_EQ(filtered(StopFilter({}), {"a", "b"}), "ab");
}

}  // namespace
}  // namespace tqcache::session
