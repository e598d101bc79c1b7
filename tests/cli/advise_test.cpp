// `tqcache advise`: searches, says what it found, and the command to use; and what nothing will do
// for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/demo.h"

namespace tqcache::test {
namespace advise_test {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// One window of 256 tokens.
std::vector<std::string> quick(const std::vector<std::string>& flags = {}) {
  std::vector<std::string> args = {"advise",   "-m",  kModel,      "--file", kBook,
                                   "--window", "256", "--windows", "1"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

json way_of(const json& result, const std::string& name) {
  for (const json& each : result["configurations"]) {
    if (each["configuration"] == name) return each;
  }
  throw std::runtime_error(name + " was not measured");
}

void expect_refusal(const std::vector<std::string>& args, int exit_code, const std::string& words) {
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, AllOf(StartsWith("tqcache: "), HasSubstr(words)));
}

TEST(Advise, FindsTheSmallestThatIsGoodEnough) {
  const json result = json::parse(must(quick({"--max-kld", "0.1", "--json"})).out);
  EXPECT_EQ(result["schema"], 1);
  EXPECT_EQ(result["max_kld"], 0.1);
  EXPECT_EQ(result["max_bytes"], nullptr);
  EXPECT_EQ(result["windows"], 1);
  const json chosen = way_of(result, result["choice"]);
  EXPECT_LE(chosen["kld_mean"], 0.1);
  for (const json& each : result["configurations"]) {
    if (each["bits_per_packed_value"] < chosen["bits_per_packed_value"]) {
      EXPECT_GT(each["kld_mean"], 0.1) << each["configuration"];
    }
  }
}

TEST(Advise, ItsCommandConvertsToTheReportedSize) {
  const TempDir dir;
  const json result =
      json::parse(must(quick({"--max-bytes", "3500000", "--tokens", "1024", "--json"})).out);
  EXPECT_EQ(result["max_kld"], nullptr);
  const std::string choice = result["choice"];
  EXPECT_EQ(result["command"], "tqcache convert IN OUT --config " + choice);
  const json sizes = way_of(result, choice)["sizes"];
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes[0]["n_tokens"], 1024);
  EXPECT_EQ(sizes[2]["n_tokens"], 32768);
  const auto told = sizes[0]["bytes"].get<std::uint64_t>();
  EXPECT_LE(told, 3500000u);
  EXPECT_EQ(sizes[0]["dense_bytes"], 1024 * 8192);  // 8 layers, k and v, 2 heads of 128, f16
  const std::string packed =
      pack(prefill_book(dir, 1024), {"--config", choice, "--compress", "none"});
  const std::uint64_t bytes = read_all(packed).size();
  EXPECT_GE(bytes, told);
  EXPECT_LE(bytes, told + 64 * 1024);
}

TEST(Advise, ShowsATableAndWritesAPage) {
  const TempDir dir;
  const std::string page = (dir / "advice.html").string();
  const Output output = must(quick({"--max-bytes", "36MB", "--html", page, "-q"}));
  EXPECT_THAT(output.out, StartsWith("model "));
  EXPECT_THAT(output.out, ContainsRegex("\nasked for +keys and values of 16,384 tokens in "
                                        "36,000,000 bytes\n"));
  EXPECT_THAT(output.out, ContainsRegex("\nadvice +k=mse:4,v=mse:4\n"));
  EXPECT_THAT(output.out, ContainsRegex("\nk=mse:4,v=mse:4 \\(advised\\) +4.[0-9]+ "));
  EXPECT_THAT(output.out,
              ContainsRegex("\ncommand +tqcache convert IN OUT --config k=mse:4,v=mse:4\n"));
  EXPECT_THAT(output.out,
              ContainsRegex("\nk=mse:4,v=mse:4 +4.3[0-9]+ +[0-9,]+ +[0-9,]+ +[0-9,]+\n"));
  EXPECT_THAT(output.out, ContainsRegex("\ndense, f16 +16.000 +33,554,432 "));
  EXPECT_EQ(output.err, "");
  const Bytes bytes = read_all(page);
  const std::string html(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_THAT(html, AllOf(HasSubstr("<svg"), HasSubstr("k=mse:4,v=mse:4 (advised)")));
}

TEST(Advise, SaysWhatWasMeasuredWhereNothingIsGoodEnough) {
  const Output output = tqcache(quick({"--max-kld", "1e-9"}));
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.out, ContainsRegex("\nadvice +none of those measured\n"));
  EXPECT_THAT(output.err,
              StartsWith("tqcache: no configuration is good enough: k=mse:8,v=mse:8 has"));
  EXPECT_THAT(output.err, EndsWith(", the limit is 1e-09\n"));
}

TEST(Advise, RefusesASizeThatNothingFitsBeforeItMeasures) {
  expect_refusal(quick({"--max-bytes", "1000000"}), 1,
                 "no configuration fits: 16,384 tokens take 17,858,560 bytes in the smallest one, "
                 "k=mse:2,v=mse:2");
  const Output output = tqcache(quick({"--max-bytes", "1000000", "--json"}));
  EXPECT_EQ(output.exit_code, 1);
  const json result = json::parse(output.out);
  EXPECT_EQ(result["choice"], nullptr);
  EXPECT_EQ(result["command"], nullptr);
  EXPECT_EQ(result["configurations"].size(), 0u);
}

TEST(Advise, RefusesWhatCannotBeAsked) {
  expect_refusal({"advise", "-m", kModel}, 2, "--file");
  expect_refusal(quick({"--max-kld", "0"}), 2, "--max-kld");
  expect_refusal(quick({"--max-bytes", "0"}), 2, "--max-bytes");
  expect_refusal(quick({"--max-kld", "0.1", "--max-bytes", "9"}), 2, "--max-");
  expect_refusal(quick({"--cache-tokens", "0"}), 2, "--cache-tokens");
  expect_refusal({"advise", "-m", kModel, "--file", kBook, "--window", "255"}, 2, "at least 256");
  expect_refusal({"advise", "-m", kModel, "--file", "/nowhere/book.txt"}, 10, "/nowhere/book.txt");
}

}  // namespace advise_test
}  // namespace tqcache::test
