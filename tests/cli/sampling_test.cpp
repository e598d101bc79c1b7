// How generate and chat choose tokens, and where they end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cli/demo.h"

namespace tqcache::test {
namespace sampling_test {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kAlice = {"-p", "Alice was beginning to get very", "-n", "24"};

nlohmann::json alice(const std::vector<std::string>& flags) {
  std::vector<std::string> all = kAlice;
  all.insert(all.end(), flags.begin(), flags.end());
  return generate(all);
}

TEST(Sampling, EndsBeforeAStopString) {
  const std::string text = alice({})["text"];
  const std::string stop = text.substr(10, 4);  // not at a token's border, as a rule
  const auto json = alice({"--stop", "never", "--stop", stop});
  EXPECT_EQ(json["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(json["stop_reason"], "stop_string");
  EXPECT_LT(json["token_ids"].size(), 24u);
  std::vector<std::string> args = {"generate", "-m", kModel, "--stop", stop};
  args.insert(args.end(), kAlice.begin(), kAlice.end());
  EXPECT_EQ(must(args).out, text.substr(0, text.find(stop)) + "\n");
}

TEST(Sampling, ANeverSeenStopStringChangesNothing) {
  EXPECT_EQ(alice({"--stop", "\x01never"})["text"], alice({})["text"]);
}

TEST(Sampling, NeverTakesAForbiddenToken) {
  const std::vector<std::int32_t> ids = alice({})["token_ids"];
  const std::string bias = std::to_string(ids[0]) + "=-inf";
  const std::vector<std::int32_t> others = alice({"--logit-bias", bias})["token_ids"];
  EXPECT_THAT(others, Not(Contains(ids[0])));
  const std::string forced = std::to_string(ids[3]) + "=1000";
  EXPECT_THAT(alice({"--logit-bias", forced, "--logit-bias", bias})["token_ids"]
                  .get<std::vector<std::int32_t>>(),
              testing::Each(ids[3]));
}

TEST(Sampling, RepeatsLessWithAPenalty) {
  const auto distinct = [](const std::vector<std::int32_t>& ids) {
    return std::set<std::int32_t>(ids.begin(), ids.end()).size();
  };
  EXPECT_EQ(distinct(alice({"--repeat-penalty", "1e9", "--repeat-last-n", "-1"})["token_ids"]),
            24u);
  EXPECT_LT(distinct(alice({})["token_ids"]), 24u);
}

// What a cache holds counts as seen, so that a text goes on as if it had never been saved.
TEST(Sampling, CountsTheTokensOfACacheAsSeen) {
  const TempDir dir;
  const std::string saved = (dir / "saved.tqkv").string();
  const std::vector<std::string> flags = {"--repeat-penalty", "1.3"};
  const std::vector<std::int32_t> all = alice(flags)["token_ids"];
  std::vector<std::string> first = {"-p", kAlice[1], "-n", "12", "--save", saved};
  first.insert(first.end(), flags.begin(), flags.end());
  generate(first);
  std::vector<std::string> second = {"--cache", saved, "-n", "12"};
  second.insert(second.end(), flags.begin(), flags.end());
  EXPECT_EQ(generate_ids(second), std::vector<std::int32_t>(all.begin() + 12, all.end()));
}

void expect_usage_error(const std::vector<std::string>& flags, const std::string& part) {
  std::vector<std::string> args = {"generate", "-m", kModel, "-p", "x", "-n", "1"};
  args.insert(args.end(), flags.begin(), flags.end());
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, 2) << part;
  EXPECT_THAT(output.err, HasSubstr(part));
}

TEST(Sampling, RefusesFlagsThatMakeNoSense) {
  expect_usage_error({"--stop", ""}, "--stop");
  expect_usage_error({"--logit-bias", "7"}, "7 is not ID=NUMBER");
  expect_usage_error({"--logit-bias", "7=x"}, "7=x is not ID=NUMBER");
  expect_usage_error({"--logit-bias", "7=nan"}, "--logit-bias");
  expect_usage_error({"--logit-bias", "99999999=1"}, "token id 99999999 is not below");
  expect_usage_error({"--repeat-penalty", "0"}, "--repeat-penalty");
  expect_usage_error({"--repeat-last-n", "-2"}, "--repeat-last-n");
}

TEST(Sampling, OfAChatEndsAnAnswerBeforeAStopString) {
  const RunOptions turn{.input = "My name is Clara.\n"};
  const std::string whole =
      must({"chat", "-m", kModel, "--temperature", "0", "-n", "24"}, turn).out;
  ASSERT_GT(whole.size(), 8u);
  const std::string stop = whole.substr(3, 3);
  EXPECT_EQ(
      must({"chat", "-m", kModel, "--temperature", "0", "-n", "24", "--stop", stop}, turn).out,
      whole.substr(0, whole.find(stop)) + "\n");
}

// A small model that always takes the most probable token soon repeats itself.
TEST(Sampling, IsTheDefaultOfAChatAndTheSameForASeed) {
  const RunOptions turn{.input = "Tell me a story.\n"};
  const auto chat = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"chat", "-m", kModel, "-n", "24"};
    args.insert(args.end(), flags.begin(), flags.end());
    return must(args, turn).out;
  };
  const std::string one = chat({});
  EXPECT_EQ(chat({}), one);
  EXPECT_EQ(chat({"--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.05",
                  "--seed", "0"}),
            one);
  EXPECT_NE(chat({"--seed", "7"}), one);
}

}  // namespace sampling_test
}  // namespace tqcache::test
