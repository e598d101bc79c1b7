// `tqcache eval`: its words, and the measurements ppl and kld.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>

#include "cli/demo.h"

namespace tqcache::test {
namespace eval_test {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// One window of 256 tokens.
std::vector<std::string> quick(const std::string& what,
                               const std::vector<std::string>& flags = {}) {
  std::vector<std::string> args = {"eval", what,       "-m",  kModel,      "--file",
                                   kBook,  "--window", "256", "--windows", "1"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

void expect_refusal(const std::vector<std::string>& args, int exit_code, const std::string& words) {
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, AllOf(StartsWith("tqcache: "), HasSubstr(words)));
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
}

TEST(Eval, TellsWhatItCanMeasure) {
  const std::string help = must({"eval", "--help"}).out;
  EXPECT_EQ(must({"eval", "help"}).out, help);
  for (const std::string what : {"ppl", "kld"}) {
    EXPECT_THAT(help, HasSubstr("\n  " + what + " "));
    const std::string of_one = must({"eval", what, "--help"}).out;
    EXPECT_THAT(of_one, HasSubstr("Usage: tqcache eval " + what));
    EXPECT_THAT(of_one, HasSubstr("Examples:\n  tqcache eval " + what + " "));
  }
  expect_refusal({"eval"}, 2, "eval needs one of ppl, kld,");
  expect_refusal({"eval", "pl"}, 2, "unknown verb pl, did you mean ppl?");
  expect_refusal({"eval", "--nothing"}, 2, "unknown flag --nothing, see tqcache eval --help");
  expect_refusal({"evil"}, 2, "did you mean eval?");
}

TEST(Eval, SaysItsFailureAsJsonIfAsked) {
  const Output output = tqcache({"eval", "nothing", "--json"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(json::parse(output.err)["error"]["exit_code"], 2);
}

TEST(EvalKld, ShowsATable) {
  const Output output =
      must(quick("kld", {"--configs", "f32,turbo4,center=none,sink=0,kfv4,sink=0"}));
  EXPECT_THAT(output.out, ContainsRegex("\nwindows +1 of 256 tokens, 256 predictions\n"));
  EXPECT_THAT(output.out,
              ContainsRegex("\nconfiguration +bits per value +quantized +mean +\\+- +median +p99"));
  EXPECT_THAT(output.out, ContainsRegex("\nf32 +32.000 +0.00000 "));
  EXPECT_THAT(output.out,
              ContainsRegex("\nturbo4,center=none,sink=0 +4.125 +4.125 +0\\.[0-9]{5} "));
  EXPECT_THAT(output.out, ContainsRegex("\nkfv4,sink=0 +10.062 +4.125 "));
  EXPECT_EQ(output.err, "");
}

// What a reader needs to repeat the measurement.
TEST(EvalKld, NamesTheRunInTheReport) {
  const TempDir dir;
  const std::string page = (dir / "page.html").string();
  const Output output =
      must(quick("kld", {"--configs", "turbo4;k=mse:4", "--html", page, "-t", "1", "-q"}));
  EXPECT_THAT(output.out, ContainsRegex("\nmodel weights +sha256 [0-9a-f]{64}\n"));
  EXPECT_THAT(output.out, ContainsRegex("\ncommand line +tqcache eval kld -m [^\n]+ --configs "
                                        "'turbo4;k=mse:4' --html [^\n]+ -t 1 -q\n"));
  EXPECT_THAT(output.out, ContainsRegex("\ndate +20[0-9-]{8} [0-9:]{5} UTC\n"));
  EXPECT_THAT(output.out, ContainsRegex("\nCPU +[^\n]+\nthreads +1\nprogram +tqcache "));
  EXPECT_THAT(output.out, ContainsRegex("\ndense perplexity +[0-9.]+ \\+- [0-9.]+\n"));
  const Bytes bytes = read_all(page);
  const std::string html(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_THAT(html, AllOf(HasSubstr("command line"), HasSubstr("model weights")));
}

TEST(EvalKld, GivesAllFiguresAsJson) {
  const Output output =
      must(quick("kld", {"--configs", "f32;k=mse:4,v=mse:3,center=none,sink=0", "--json", "-q"}));
  const json result = json::parse(output.out);
  EXPECT_EQ(result["schema"], 1);
  EXPECT_EQ(result["window"], 256);
  EXPECT_EQ(result["windows"], 1);
  EXPECT_EQ(result["predictions"], 256);
  EXPECT_EQ(result["as_served"], false);
  EXPECT_GT(result["seconds"], 0);
  ASSERT_EQ(result["configurations"].size(), 2u);

  const json& dense = result["configurations"][0];
  EXPECT_EQ(dense["name"], "f32");
  EXPECT_EQ(dense["perplexity"], result["dense_perplexity"]);
  EXPECT_EQ(dense["kld"]["max"], 0);
  EXPECT_EQ(dense["top1"], 1);
  EXPECT_EQ(dense["bits_per_packed_value"], nullptr);
  EXPECT_EQ(dense["relative_mse"]["k"], nullptr);

  const json& coded = result["configurations"][1];
  EXPECT_EQ(coded["name"], "k=mse:4,v=mse:3,center=none,sink=0");
  EXPECT_EQ(coded["configuration"], "k4v3,sink=0,center=none");
  EXPECT_EQ(coded["bits_per_value"], (4 + 3) / 2.0 + 16.0 / 128);
  EXPECT_EQ(coded["window_bytes"], 256 * 8 * 2 * 2 * (64 + 2 + 48 + 2) / 2);
  EXPECT_GT(coded["kld"]["mean"], 0.01);
  EXPECT_LT(coded["kld"]["median"], coded["kld"]["mean"]);
  EXPECT_GT(coded["kld"]["mean_error"], 0);
  EXPECT_LT(coded["kld"]["mean_error"], coded["kld"]["mean"]);
  EXPECT_GT(coded["perplexity_error"], 0);
  EXPECT_GT(coded["top1_error"], 0);
  EXPECT_LT(coded["kld"]["mean"], coded["kld"]["p99"]);
  EXPECT_LT(coded["kld"]["p99"], coded["kld"]["max"]);
  EXPECT_GT(coded["top1"], 0.5);
  EXPECT_NEAR(coded["relative_mse"]["k"].get<double>(), 0.0092, 0.0005);
  EXPECT_NEAR(coded["relative_mse"]["v"].get<double>(), 0.0340, 0.0020);
  ASSERT_EQ(coded["relative_mse"]["layers"].size(), 8u);
  EXPECT_EQ(coded["relative_mse"]["layers"][7]["v"].size(), 2u);
}

// Token by token the dense configuration is not the dense run any more: its divergence is what the
// activations cost.
TEST(EvalKld, MeasuresWhatActivationsOfEightBitsCost) {
  const auto cost = [](const std::string& bits) {
    const Output output =
        must(quick("kld", {"--configs", "f32", "--activations", bits, "--json", "-q"}));
    const json result = json::parse(output.out);
    EXPECT_EQ(std::to_string(result["activations"].get<int>()), bits);
    return result["configurations"][0]["kld"]["mean"].get<double>();
  };
  const double of_words = cost("16"), of_bytes = cost("8");
  EXPECT_GT(of_words, 0);
  EXPECT_LT(of_words, 1e-6);
  EXPECT_GT(of_bytes, 10 * of_words);
  EXPECT_LT(of_bytes, 5e-3);
}

TEST(EvalPpl, MeasuresTheSame) {
  const std::vector<std::string> flags = {"--json", "--configs", "turbo3,sink=0"};
  const json ppl = json::parse(must(quick("ppl", flags)).out);
  const json kld = json::parse(must(quick("kld", flags)).out);
  EXPECT_EQ(ppl["configurations"], kld["configurations"]);
  const std::string table = must(quick("ppl", {"--configs", "turbo3,sink=0"})).out;
  EXPECT_THAT(table,
              ContainsRegex("\nconfiguration +bits per value +quantized +perplexity +[+]- +above"));
  EXPECT_THAT(table, ContainsRegex("\nturbo3,sink=0 +3.125 +3.125 +[0-9.]+ "));
}

TEST(EvalKld, AsServedPacksWhatIsFull) {
  std::vector<std::string> args = {"eval",      "kld", "-m",        kModel,   "--file", kBook,
                                   "--windows", "1",   "--configs", "turbo2", "--json"};
  args.insert(args.end(), {"--window", "300"});
  const json coded = json::parse(must(args).out)["configurations"][0];
  args.emplace_back("--as-served");
  const json served = json::parse(must(args).out);
  EXPECT_EQ(served["as_served"], true);
  const json& way = served["configurations"][0];
  EXPECT_GT(way["kld"]["mean"], 0);
  EXPECT_EQ(way["kld"]["median"], 0);  // of 300 tokens the first 256 see nothing packed
  EXPECT_LT(way["kld"]["mean"], coded["kld"]["mean"]);
  EXPECT_EQ(way["relative_mse"]["k"], nullptr);
}

TEST(EvalPpl, TakesTokenIds) {
  const json result = json::parse(must({"eval", "ppl", "-m", kModel, "--ids", "470,1800,223,19,26",
                                        "--window", "4", "--configs", "f32", "--json"})
                                      .out);
  EXPECT_EQ(result["file"], nullptr);
  EXPECT_EQ(result["n_tokens"], 5);
  EXPECT_EQ(result["predictions"], 4);
}

TEST(EvalPpl, TakesTextFromStandardInput) {
  const json result = json::parse(must({"eval", "ppl", "-m", kModel, "--file", "-", "--window", "4",
                                        "--configs", "f32", "--json"},
                                       {.input = "Alice was beginning to get very tired"})
                                      .out);
  EXPECT_EQ(result["windows"], 1);
}

TEST(EvalPpl, WritesAPage) {
  const TempDir dir;
  const std::string page = (dir / "report.html").string();
  const Output output = must(quick("ppl", {"--html", page}));
  const Bytes bytes = read_all(page);
  const std::string html(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_THAT(html, AllOf(HasSubstr("<svg"), HasSubstr("turbo4")));
  EXPECT_THAT(output.err, HasSubstr(page + ": written"));
  expect_refusal(quick("ppl", {"--html", page}), 2, "report.html: exists already");
  EXPECT_EQ(must(quick("ppl", {"--html", page, "-f", "-q"})).err, "");
  expect_refusal(quick("ppl", {"--html", "-"}), 2, "--html: standard output is used");
  expect_refusal(quick("ppl", {"--html", (dir / "none" / "a.html").string()}), 1, "a.html");
}

TEST(EvalPpl, RefusesWhatCannotBeMeasured) {
  const std::vector<std::string> model = {"eval", "ppl", "-m", kModel};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), model.begin(), model.end());
    return flags;
  };
  expect_refusal(model, 2, "no text: --file or --ids");
  expect_refusal(with({"--file", kBook, "--ids", "1"}), 2, "--file and --ids exclude each other");
  expect_refusal(with({"--ids", "1,2,x"}), 2, "--ids: x is not a token id");
  expect_refusal(with({"--ids", "1,2,3"}), 2, "the text has 3 tokens");
  expect_refusal(with({"--file", kBook, "--window", "16385"}), 2, "context has 16384");
  expect_refusal(with({"--file", kBook, "--window", "255"}), 2, "at least 256");
  expect_refusal(with({"--file", kBook, "--window", "0"}), 2, "--window");
  expect_refusal(with({"--file", kBook, "--configs", "turbo5"}), 2, "--configs: \"turbo5\"");
  expect_refusal(with({"--file", kBook, "--configs", ""}), 2, "--configs");
  expect_refusal(with({"--file", kBook, "--configs", "k=mixed:2:128:3"}), 21,
                 "k=mixed:2:128:3: layer 0 k");
  expect_refusal(with({"--file", "/nowhere/book.txt"}), 10, "/nowhere/book.txt");
  expect_refusal({"eval", "kld", "-m", "/nowhere", "--file", kBook}, 10, "/nowhere");
}

TEST(EvalPpl, StopsAtCtrlC) {
  Conversation run({"eval", "kld", "-m", kModel, "--file", kBook, "--configs", "turbo4,turbo3,f32"},
                   Conversation::At::kTerminal);
  run.wait_for("tokens");
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
  EXPECT_THAT(run.screen(), Not(HasSubstr("perplexity")));
}

TEST(ConvertConfig, SaysTheSameAsBits) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const std::string by_bits = (dir / "a.tqkv").string();
  const std::string by_word = (dir / "b.tqkv").string();
  must({"convert", dense, by_bits, "--bits", "4,3", "--config", "boundary=2:6"});
  must({"convert", dense, by_word, "--config", "k=mse:4,v=mse:3,boundary=2:6,sink=4"});
  EXPECT_EQ(read_all(by_bits), read_all(by_word));
}

TEST(ConvertConfig, RefusesUnknownNamesAndSeveral) {
  expect_refusal({"convert", "a", "b", "--config", "turbo9"}, 2, "--config: \"turbo9\"");
  expect_refusal({"convert", "a", "b", "--config", "turbo4;turbo3"}, 2, "several");
}

}  // namespace eval_test
}  // namespace tqcache::test
