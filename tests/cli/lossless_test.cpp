// `convert --config lossless` and `--compress planes`: a smaller file with every bit as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/demo.h"

namespace tqcache::test {
namespace lossless_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string prefill(const TempDir& dir, const std::string& dtype, int n_tokens = 300) {
  const std::string path = (dir / (dtype + ".kv")).string();
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", std::to_string(n_tokens),
        "--dtype", dtype, "-o", path});
  return path;
}

std::string lossless(const std::string& cache) {
  const std::string path = cache + ".lossless";
  must({"convert", cache, path, "--config", "lossless"});
  return path;
}

double ratio(const std::string& before, const std::string& after) {
  const auto bytes = [](const std::string& file) {
    return info_of(file)["bytes"]["keys"]["dense"].get<double>() +
           info_of(file)["bytes"]["values"]["dense"].get<double>();
  };
  return bytes(before) / bytes(after);
}

class Lossless : public testing::TestWithParam<std::pair<std::string, double>> {};

TEST_P(Lossless, GivesEveryBitBackFromASmallerFile) {
  const auto& [dtype, least] = GetParam();
  const TempDir dir;
  const std::string cache = prefill(dir, dtype);
  const std::string small = lossless(cache);
  EXPECT_GE(ratio(cache, small), least);
  EXPECT_EQ(info_of(small)["content_name"], info_of(cache)["content_name"]);
  EXPECT_GT(info_of(small)["compression"]["planes"], 0);
  EXPECT_EQ(info_of(small)["compression"]["zstd"], 0);
  must({"verify", small, "-m", kModel});
  const std::string back = (dir / "back.kv").string();
  must({"convert", small, back, "--bits", "16", "--compress", "none"});
  EXPECT_EQ(read_all(back), read_all(cache));
}

INSTANTIATE_TEST_SUITE_P(Of, Lossless,
                         testing::Values(std::pair("f16", 1.14), std::pair("bf16", 1.43),
                                         std::pair("f32", 1.15)),
                         [](const auto& test) { return test.param.first; });

TEST(LosslessFile, CanBeResumedAndAppendedTo) {
  const TempDir dir;
  const std::string cache = prefill(dir, "bf16", 254);
  const std::string small = lossless(cache);
  const auto ids = generate_ids({"--cache", cache, "-n", "8"});
  EXPECT_EQ(generate_ids({"--cache", small, "-n", "8"}), ids);
  EXPECT_EQ(generate_ids({"--cache", small, "-n", "8", "--map"}), ids);
  auto grown = generate_ids({"--cache", small, "-n", "4", "--append"});
  const auto more = generate_ids({"--cache", small, "-n", "4", "--append"});
  grown.insert(grown.end(), more.begin(), more.end());
  EXPECT_EQ(grown, ids);
  EXPECT_EQ(info_of(small)["compression"]["zstd"], 0);
  EXPECT_EQ(info_of(small)["n_tokens"], 262);
  must({"compact", small});
  EXPECT_GT(info_of(small)["compression"]["planes"], 0);
  EXPECT_EQ(info_of(small)["bytes"]["dead"], 0);
  must({"verify", small, "-m", kModel});
}

TEST(LosslessFile, OfATurboCacheStaysTurbo) {
  const TempDir dir;
  const std::string packed = pack(prefill(dir, "f16"), {"--bits", "16,4"});
  const std::string small = lossless(packed);
  EXPECT_EQ(info_of(small)["layers"], info_of(packed)["layers"]);
  EXPECT_EQ(info_of(small)["content_name"], info_of(packed)["content_name"]);
  EXPECT_GT(info_of(small)["compression"]["zstd"], 0);
  EXPECT_GT(info_of(small)["compression"]["planes"], 0);
}

TEST(LosslessFile, IsAlsoWrittenToStandardOutput) {
  const TempDir dir;
  const std::string cache = prefill(dir, "f16");
  const std::string small = (dir / "out.tqkv").string();
  must({"convert", cache, "-", "--config", "lossless"}, {.out_path = small});
  EXPECT_EQ(info_of(small)["content_name"], info_of(cache)["content_name"]);
  EXPECT_GT(info_of(small)["compression"]["planes"], 0);
}

TEST(LosslessFile, IsWhatPrefillWritesWithPlanes) {
  const TempDir dir;
  const std::string small = lossless(prefill(dir, "bf16"));
  const std::string direct = (dir / "direct.kv").string();
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "300", "--dtype", "bf16",
        "--compress", "planes", "-o", direct});
  EXPECT_EQ(read_all(direct), read_all(small));
}

TEST(LosslessFile, TellsHowEachSectionIsCompressed) {
  const TempDir dir;
  const std::string small = lossless(prefill(dir, "f16"));
  EXPECT_THAT(must({"info", small}).out, HasSubstr("compression     32 planes\n"));
  EXPECT_EQ(info_of(small, {"--sections"})["sections"][0]["compression"], "planes");
  EXPECT_THAT(must({"info", small, "--sections"}).out, HasSubstr(" planes "));
}

TEST(LosslessFile, RefusesSettingsOfCodes) {
  const TempDir dir;
  const std::string out = (dir / "out.tqkv").string();
  const Output bits = tqcache({"convert", "in.kv", out, "--config", "lossless", "--bits", "4"});
  EXPECT_EQ(bits.exit_code, 2) << bits.err;
  EXPECT_THAT(bits.err, HasSubstr("--bits does not go with --config lossless"));
  const Output sinks = tqcache({"convert", "in.kv", out, "--config", "lossless,sink=4"});
  EXPECT_EQ(sinks.exit_code, 2) << sinks.err;
  EXPECT_THAT(sinks.err, HasSubstr("sink=4: lossless has no settings"));
  EXPECT_EQ(tqcache({"convert", "in.kv", out, "--config", "best"}).exit_code, 2);
  const Output method = tqcache({"convert", "in.kv", out, "--compress", "gzip"});
  EXPECT_EQ(method.exit_code, 2);
  EXPECT_THAT(method.err, HasSubstr("--compress: gzip is not one of zstd, planes, none"));
}

TEST(LosslessFile, LeavesCompressionToWhoSaysIt) {
  const TempDir dir;
  const std::string cache = prefill(dir, "f16");
  const std::string out = (dir / "out.tqkv").string();
  must({"convert", cache, out, "--config", "lossless", "--compress", "zstd"});
  EXPECT_EQ(info_of(out)["compression"]["planes"], 0);
  EXPECT_EQ(info_of(out)["content_name"], info_of(cache)["content_name"]);
}

}  // namespace lossless_test
}  // namespace tqcache::test
