// eval needle, jsonl, memory and cache as a user runs them: results, JSON, and refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/demo.h"

namespace tqcache::test {
namespace eval_tasks_test {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> eval(const std::string& what, const std::vector<std::string>& flags) {
  std::vector<std::string> args = {"eval", what};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

json eval_json(const std::string& what, std::vector<std::string> flags) {
  flags.emplace_back("--json");
  return json::parse(must(eval(what, flags)).out);
}

void expect_refusal(const std::vector<std::string>& args, int exit_code,
                    const std::string& message) {
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, StartsWith("tqcache: "));
  EXPECT_THAT(output.err, HasSubstr(message));
}

const std::vector<std::string> kShortNeedle = {"-m",        kModel, "--file",       kBook,
                                               "--lengths", "300",  "--depths",     "0,50",
                                               "--trials",  "1",    "--max-tokens", "20"};

std::vector<std::string> with(std::vector<std::string> flags,
                              const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST(EvalNeedle, GivesScoresByConfigurationLengthAndDepth) {
  const json result = eval_json("needle", kShortNeedle);
  EXPECT_EQ(result["schema"], 1);
  EXPECT_EQ(result["turns"], "ChatML");
  EXPECT_EQ(result["lengths"], json({300}));
  EXPECT_EQ(result["depths"], json({0.0, 50.0}));
  ASSERT_EQ(result["configurations"].size(), 2u);
  for (const json& each : result["configurations"]) {
    EXPECT_EQ(each["trials"], 2);
    EXPECT_EQ(each["found"], 2);
    ASSERT_EQ(each["cells"].size(), 2u);
    EXPECT_EQ(each["cells"][1]["length"], 300);
    EXPECT_EQ(each["cells"][1]["depth"], 50.0);
    EXPECT_EQ(each["cells"][1]["trials"], 1);
  }
  EXPECT_EQ(result["configurations"][0]["name"], "f32");
}

TEST(EvalNeedle, ShowsATableAndGivesTheSameAgain) {
  // All but the minute of the run.
  const auto shown = [] {
    std::string out = must(eval("needle", with(kShortNeedle, {"--seed", "5"}))).out;
    const std::size_t date = out.find("\ndate ");
    return out.erase(date, out.find('\n', date + 1) - date);
  };
  const std::string first = shown();
  EXPECT_THAT(first, HasSubstr("configuration"));
  EXPECT_THAT(first, HasSubstr("turbo4"));
  EXPECT_EQ(first, shown());
}

TEST(EvalNeedle, HidesWhatTheUserSays) {
  const json result = eval_json(
      "needle", with(kShortNeedle, {"--needle", "The magic word of Oslo is velvet anchor.",
                                    "--question", "What is the magic word of Oslo?", "--answer",
                                    "The magic word of Oslo is velvet anchor."}));
  EXPECT_EQ(result["configurations"][0]["found"], 2);
}

TEST(EvalNeedle, RefusesWhatCannotBeMeant) {
  const auto refuse = [](const std::vector<std::string>& more, const std::string& message) {
    expect_refusal(eval("needle", with({"-m", kModel, "--file", kBook}, more)), 2, message);
  };
  refuse({"--lengths", "1024,x"}, "--lengths: \"x\" is not a number");
  refuse({"--lengths", ""}, "--lengths");
  refuse({"--lengths", "0"}, "--lengths: 0 is not between 1");
  refuse({"--lengths", "10.5"}, "--lengths: 10.5 is not a whole number");
  refuse({"--depths", "101"}, "--depths: 101 is not between 0 and 100");
  refuse({"--depths", "100..0"}, "--depths: 100..0 goes backwards");
  refuse({"--depths", "0..100:0"}, "--depths: the step is 0");
  refuse({"--depths", "0..100:0.5"}, "--depths: more than 100");
  refuse({"--depths", "0..nan"}, "--depths");
  refuse({"--trials", "0"}, "--trials");
  refuse({"--configs", "turbo5"}, "--configs: ");
  refuse({"--needle", "A bell."}, "--needle and --question need each other");
  refuse({"--answer", "A bell."}, "--answer needs");
  refuse({"--needle", "A bell.", "--question", "Is it a bell?", "--answer", "bell"},
         "the question contains the answer");
  refuse({"--lengths", "8192"}, "the haystack has 6183 tokens");
  refuse({"--lengths", "16384"}, "");
  refuse({"--lengths", "40"}, "no room for a text");
}

TEST(EvalNeedle, RefusesMissingFiles) {
  expect_refusal(eval("needle", {"-m", kModel, "--file", "none.txt"}), 10, "none.txt: ");
  expect_refusal(eval("needle", {"-m", "none.gguf", "--file", kBook}), 10, "none.gguf: ");
  expect_refusal(eval("needle", {"-m", kModel}), 2, "--file");
}

TEST(EvalNeedle, RefusesAPageThatExistsBeforeItMeasures) {
  const TempDir dir;
  const std::string page = (dir / "page.html").string();
  write_all(page, "mine");
  expect_refusal(eval("needle", with(kShortNeedle, {"--html", page})), 2, page);
}

TEST(EvalNeedle, StopsWhenItIsInterrupted) {
  Conversation running(
      eval("needle", {"-m", kModel, "--file", kBook, "--lengths", "4096", "--trials", "1000"}),
      Conversation::At::kTerminal);
  running.wait_for("needle");
  running.send_signal(SIGINT);
  EXPECT_EQ(running.finish(), 130);
}

const std::string kStore =
    R"({"context": "Here is the inventory of the store.\napples: 12\nlamps: 345\nboots: 61", )";

TEST(EvalJsonl, GivesExactAndSubstringMatches) {
  const std::string rows =
      kStore + R"("question": "How many lamps are there?", "answers": ["There are 345 lamps."]})" +
      "\n" + kStore + R"("question": "How many lamps are there?", "answer": "345"})" + "\n\n" +
      kStore + R"("question": "How many lamps are there?", "answer": "45"})" + "\n";
  const Output output =
      must({"eval", "jsonl", "-m", kModel, "--file", "-", "--max-tokens", "16", "--json"},
           {.input = rows});
  const json result = json::parse(output.out);
  EXPECT_EQ(result["rows"], 3);
  ASSERT_EQ(result["configurations"].size(), 2u);
  for (const json& each : result["configurations"]) {
    EXPECT_EQ(each["rows"], 3);
    EXPECT_EQ(each["exact"], 1);
    EXPECT_EQ(each["substring"], 2);
    EXPECT_NEAR(each["exact_match"].get<double>(), 1.0 / 3, 1e-9);
  }
}

TEST(EvalJsonl, RefusesBadRowsByTheirLine) {
  const TempDir dir;
  const std::string file = (dir / "rows.jsonl").string();
  write_all(file, "{\"prompt\": \"p\", \"answer\": \"x\"}\n{\"prompt\": \"p\"}\n");
  expect_refusal({"eval", "jsonl", "-m", kModel, "--file", file}, 20,
                 file + ": line 2: no expected answer");
  write_all(file, "\n");
  expect_refusal({"eval", "jsonl", "-m", kModel, "--file", file}, 2,
                 file + ": the file has no rows");
  write_all(file, "{\"prompt\": \"p\", \"answer\": \"x\"}\n");
  expect_refusal({"eval", "jsonl", "-m", kModel, "--file", file, "--max-tokens", "16384"}, 2,
                 file + ": line 1: ");
}

TEST(EvalMemory, GivesScoresByFactAndTurn) {
  const json result =
      eval_json("memory", {"-m", kModel, "--trials", "1", "--tokens", "300", "--turns", "1,0",
                           "--configs", "turbo4", "--max-tokens", "16"});
  ASSERT_EQ(result["configurations"].size(), 1u);
  const json& only = result["configurations"][0];
  EXPECT_EQ(only["trials"], 16);
  EXPECT_GE(only["found"].get<int>(), 12);
  ASSERT_EQ(only["cells"].size(), 16u);
  EXPECT_EQ(only["cells"][0]["fact"], "name");
  EXPECT_EQ(only["cells"][0]["turns"], 0);
  EXPECT_EQ(only["cells"][1]["turns"], 1);
}

TEST(EvalMemory, RefusesWhatCannotBeMeant) {
  expect_refusal({"eval", "memory", "-m", kModel, "--turns", "1,x"}, 2, "--turns: \"x\"");
  expect_refusal({"eval", "memory", "-m", kModel, "--turns", "-1"}, 2, "--turns");
  expect_refusal({"eval", "memory", "-m", kModel, "--tokens", "16384"}, 2,
                 "the model's context has only 16384");
}

TEST(EvalCache, ComparesHeadsAndAttention) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const std::string packed = pack(dense);
  const json plain = eval_json("cache", {dense, packed});
  EXPECT_EQ(plain["n_tokens"], 300);
  EXPECT_TRUE(plain["attention"].is_null());
  ASSERT_EQ(plain["layers"].size(), 8u);
  ASSERT_EQ(plain["layers"][0]["kv_heads"].size(), 2u);
  EXPECT_GT(plain["layers"][0]["kv_heads"][1]["k"]["relative_mse"], 0);
  const json with_model = eval_json("cache", {dense, packed, "-m", kModel, "--queries", "8"});
  ASSERT_EQ(with_model["attention"].size(), 8u);
  EXPECT_EQ(with_model["attention"][0]["queries"], 8);
  ASSERT_EQ(with_model["attention"][0]["heads"].size(), 4u);
  EXPECT_GT(with_model["attention"][0]["heads"][0]["weights_kl"], 0);
  EXPECT_GT(with_model["attention"][0]["heads"][0]["output_error"], 0);
  EXPECT_THAT(must({"eval", "cache", dense, packed}).out, HasSubstr("Keys and values by head"));
}

TEST(EvalCache, RefusesAnotherModelAndHiddenTokens) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 20);
  expect_refusal({"eval", "cache", dense, dense, "-m", kOtherModel}, 22, dense + ": ");
  const std::string hidden = (dir / "hidden.kv").string();
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "20", "--no-tokens", "-o",
        hidden});
  expect_refusal({"eval", "cache", hidden, dense, "-m", kModel}, 21, "the tokens are hidden");
  expect_refusal({"eval", "cache", "-", "-"}, 2, "only one of the two");
  expect_refusal({"eval", "cache", dense, "none.kv"}, 10, "none.kv");
}

TEST(EvalCache, RefusesCachesOfOtherTokens) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 20);
  const std::string other = (dir / "other.kv").string();
  must({"prefill", "-m", kModel, "-p", "Something else entirely", "-o", other});
  const Output output = tqcache({"eval", "cache", dense, other, "--json"});
  EXPECT_EQ(output.exit_code, 22);
  EXPECT_THAT(output.err, HasSubstr(R"("code":"mismatch")"));
}

}  // namespace eval_tasks_test
}  // namespace tqcache::test
