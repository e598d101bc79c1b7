// `tqcache bench`: its fields, its table, and what it refuses to compare. No test looks at a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/demo.h"

namespace tqcache::test {
namespace bench_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

Output bench(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {"bench", "-m", kModel, "--warmup", "0"};
  args.insert(args.end(), {"--generation-tokens", "2"});
  if (!std::ranges::count(flags, "--repeats")) args.insert(args.end(), {"--repeats", "1"});
  args.insert(args.end(), flags.begin(), flags.end());
  return tqcache(args);
}

json bench_json(std::vector<std::string> flags) {
  flags.emplace_back("--json");
  const Output output = bench(flags);
  if (output.exit_code != 0) throw std::runtime_error(output.err);
  return json::parse(output.out);
}

void expect_usage_error(const std::vector<std::string>& flags, const std::string& part) {
  const Output output = bench(flags);
  EXPECT_EQ(output.exit_code, 2) << output.err;
  EXPECT_THAT(output.err, HasSubstr(part));
  EXPECT_EQ(output.out, "");
}

TEST(Bench, HasTheFieldsOfGenerateForEachBackendAndAllRuns) {
  const json all = bench_json(
      {"--backend", "baseline,affine,turbo", "--prompt-tokens", "300", "--repeats", "2"});
  EXPECT_EQ(all["schema"], 1);
  EXPECT_EQ(all["model"], kModel);
  EXPECT_EQ(all["warmup"], 0);
  EXPECT_EQ(all["repeats"], 2);
  EXPECT_EQ(all["seed"], 1);
  ASSERT_EQ(all["backends"].size(), 3u);
  const json generated = generate({"-p", "Once", "-n", "1"});
  const std::vector<std::string> names = {"baseline", "affine", "turbo"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const json& backend = all["backends"][i];
    EXPECT_EQ(backend["backend"], names[i]);
    for (const auto& [key, value] : generated.items()) {
      // Those of the text, and of the whole report.
      if (key == "text" || key == "token_ids" || key == "stop_reason" || key == "schema") continue;
      EXPECT_TRUE(backend.contains(key)) << key;
    }
    EXPECT_EQ(backend["prompt_tokens"], 300);
    EXPECT_EQ(backend["generation_tokens"], 2);
    EXPECT_EQ(backend["timed_generation_tokens"], 2);
    EXPECT_GT(backend["prompt_tps"], 0);
    EXPECT_GT(backend["generation_tps"], 0);
    ASSERT_EQ(backend["runs"].size(), 2u);
    for (const json& run : backend["runs"]) EXPECT_GT(run["generation_wall_time_s"], 0);
  }
  EXPECT_EQ(all["backends"][0]["packed_blocks"], 0);
  EXPECT_EQ(all["backends"][2]["packed_blocks"], 16);
  EXPECT_EQ(all["backends"][2]["configuration"], "turbo4");
  ASSERT_EQ(all["comparison"].size(), 2u);
  EXPECT_EQ(all["comparison"][1]["backend"], "turbo");
  EXPECT_GT(all["comparison"][1]["cache_ratio"], 1.5);
}

TEST(Bench, PrintsATableOfMediansAndOneOfRuns) {
  const Output output = bench({"--prompt-tokens", "256"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_THAT(output.out, AllOf(HasSubstr("Medians"), HasSubstr("Runs"), HasSubstr("baseline"),
                                HasSubstr("turbo4"), HasSubstr("smaller x")));
}

TEST(Bench, OfOneBackendComparesNothing) {
  EXPECT_TRUE(
      bench_json({"--backend", "baseline", "--prompt-tokens", "5"})["comparison"].is_null());
  EXPECT_TRUE(bench_json({"--backend", "turbo", "--prompt-tokens", "256"})["comparison"].is_null());
}

TEST(Bench, RefusesToCompareWhenNothingWasPacked) {
  expect_usage_error({"--prompt-tokens", "100"}, "102 tokens in all");
  expect_usage_error({"--prompt-tokens", "100", "--json"}, "nothing is quantized");
  expect_usage_error({"--backend", "affine", "--prompt-tokens", "100"},
                     "nothing is quantized before 257");
  expect_usage_error({"--config", "f32", "--prompt-tokens", "300"}, "turbo: nothing was quantized");
}

TEST(Bench, TakesAConfigurationForTheBackendBesideTheBaseline) {
  const json all = bench_json(
      {"--backend", "baseline,turbo", "--config", "k=mse:4,v=dense", "--prompt-tokens", "256"});
  EXPECT_EQ(all["backends"][1]["configuration"], "k=mse:4,v=dense");
  EXPECT_EQ(all["backends"][1]["packed_blocks"], 8);
  EXPECT_EQ(all["backends"][0]["configuration"], "dense f16");
}

TEST(Bench, RefusesConfigurationsThatBelongToNoOrToAnotherBackend) {
  expect_usage_error({"--backend", "affine", "--config", "turbo4"},
                     "turbo4 is not a setting of the backend affine");
  expect_usage_error({"--backend", "turbo", "--config", "affine4"},
                     "affine4 is not a setting of the backend turbo");
  expect_usage_error({"--backend", "baseline", "--config", "turbo4"},
                     "the baseline has no settings");
  expect_usage_error({"--backend", "affine,turbo", "--config", "turbo4"},
                     "name exactly one backend");
  expect_usage_error({"--backend", "turbo", "--config", "nonsense"}, "--config: ");
  expect_usage_error({"--backend", "turbo,turbo"}, "turbo is given twice");
  expect_usage_error({"--backend", "fast"}, "fast");
  expect_usage_error({"--repeats", "0"}, "--repeats");
}

TEST(Bench, TakesItsTokensFromAText) {
  const json all = bench_json({"--backend", "baseline", "--file", kBook, "--prompt-tokens", "20"});
  EXPECT_EQ(all["file"], kBook);
  EXPECT_TRUE(all["seed"].is_null());
  expect_usage_error({"--backend", "baseline", "--file", kBook, "--prompt-tokens", "100000"},
                     "tokens, but 100002 are needed");
}

TEST(Bench, WritesAPage) {
  const TempDir dir;
  const std::string page = (dir / "bench.html").string();
  const Output output = bench({"--backend", "baseline", "--prompt-tokens", "5", "--html", page});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const Bytes bytes = read_all(page);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_THAT(text, testing::HasSubstr(">Tokens written in a second<"));
  EXPECT_THAT(text, testing::HasSubstr("<svg"));
  EXPECT_NE(bench({"--backend", "baseline", "--prompt-tokens", "5", "--html", page}).exit_code, 0);
}

}  // namespace bench_test
}  // namespace tqcache::test
