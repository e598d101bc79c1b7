#include "research/simulation/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tqcache::simulation {
namespace trace_test {

Workload small() {
  Workload workload;
  workload.n_requests = 20'000;
  workload.n_users = 50;
  workload.n_system_prompts = 20;
  return workload;
}

auto fields(const Request& r) {
  return std::tuple(r.seconds, r.user, r.conversation, r.prompt_tokens, r.answer_tokens);
}

TEST(Trace, IsTheSameForTheSameSeedOnly) {
  Workload workload = small();
  const auto same = [](const Request& a, const Request& b) { return fields(a) == fields(b); };
  const std::vector<Request> trace = make_trace(workload);
  EXPECT_TRUE(std::ranges::equal(trace, make_trace(workload), same));
  workload.seed = 2;
  EXPECT_FALSE(std::ranges::equal(trace, make_trace(workload), same));
}

TEST(Trace, HasAsManyRequestsInTheOrderOfTime) {
  const std::vector<Request> trace = make_trace(small());
  EXPECT_EQ(trace.size(), 20'000u);
  EXPECT_TRUE(std::ranges::is_sorted(trace, {}, &Request::seconds));
}

TEST(Trace, GoesOnFromAllThatWasSaidBefore) {
  std::map<std::int64_t, Request> last;
  for (const Request& r : make_trace(small())) {
    const auto earlier = last.find(r.conversation);
    if (earlier == last.end()) {
      EXPECT_EQ(r.known_tokens, 0);
      EXPECT_GT(r.prompt_tokens, r.shared_tokens);
    } else {
      EXPECT_EQ(r.known_tokens, earlier->second.all_tokens());
      EXPECT_GT(r.prompt_tokens, r.known_tokens);
      EXPECT_EQ(r.user, earlier->second.user);
      EXPECT_EQ(r.system_prompt, earlier->second.system_prompt);
    }
    EXPECT_GT(r.answer_tokens, 0);
    last[r.conversation] = r;
  }
}

TEST(Trace, BeginsConversationsOfOneSystemPromptAlike) {
  std::map<std::int64_t, std::int64_t> lengths;
  for (const Request& r : make_trace(small())) {
    const auto [at, is_new] = lengths.emplace(r.system_prompt, r.shared_tokens);
    EXPECT_EQ(at->second, r.shared_tokens);
  }
  EXPECT_EQ(lengths.size(), 20u);
}

TEST(Trace, StaysBelowTheLongestConversation) {
  const auto longest = [](const Workload& workload) {
    std::int64_t most = 0;
    for (const Request& r : make_trace(workload)) most = std::max(most, r.all_tokens());
    return most;
  };
  Workload workload = small();
  EXPECT_GT(longest(workload), 2048);  // the limit below makes a difference
  workload.max_tokens = 2048;
  EXPECT_LE(longest(workload), 2048);
  EXPECT_GT(longest(workload), 1024);
}

TEST(Trace, TakesUpEarlierConversationsOnlyIfToldTo) {
  const auto taken_up = [](double resume) {
    Workload workload = small();
    workload.resume = resume;
    std::map<std::int64_t, std::int64_t> now;  // of each user
    std::set<std::int64_t> left;
    int n = 0;
    for (const Request& r : make_trace(workload)) {
      const auto [at, is_first] = now.emplace(r.user, r.conversation);
      if (at->second == r.conversation) continue;
      left.insert(at->second);
      n += left.contains(r.conversation);
      at->second = r.conversation;
    }
    return n;
  };
  EXPECT_EQ(taken_up(0), 0);
  EXPECT_GT(taken_up(0.5), 1000);
}

TEST(Trace, HasTheTurnsOfASittingThatWereAskedFor) {
  Workload workload = small();
  workload.resume = 0;
  workload.turns = 4;
  workload.max_tokens = 10'000'000;
  std::set<std::int64_t> conversations;
  for (const Request& r : make_trace(workload)) conversations.insert(r.conversation);
  EXPECT_NEAR(20'000.0 / static_cast<double>(conversations.size()), 4, 0.2);
}

}  // namespace trace_test
}  // namespace tqcache::simulation
