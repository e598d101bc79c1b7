// `--tokens N`: the first tokens of a cache, without the rest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/demo.h"
#include "support/cache_builder.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace first_tokens_test {

using testing::HasSubstr;

class FirstTokens : public testing::TestWithParam<int> {
 protected:
  std::vector<std::string> flag() const { return {"--tokens", std::to_string(GetParam())}; }
  TempDir dir_;
};

TEST_P(FirstTokens, AreConvertedAsTheyStand) {
  const std::string dense = prefill_book(dir_, 600);
  const std::string part = pack(dense, {"--bits", "16", "--tokens", std::to_string(GetParam())});
  EXPECT_EQ(info_of(part)["n_tokens"], GetParam());
  const nlohmann::json diff = nlohmann::json::parse(must({"diff", dense, part, "--json"}).out);
  EXPECT_EQ(diff["n_tokens"], GetParam());
  EXPECT_EQ(diff["k"]["max_abs"], 0);
  EXPECT_EQ(diff["v"]["max_abs"], 0);
  must({"verify", part, "-m", kModel});
}

TEST_P(FirstTokens, OfATurboFileStayTurbo) {
  const std::string turbo = pack(prefill_book(dir_, 600));
  const std::string part = (dir_ / "part.tqkv").string();
  must({"convert", turbo, part, "--tokens", std::to_string(GetParam())});
  const nlohmann::json now = info_of(part);
  EXPECT_EQ(now["n_tokens"], GetParam());
  EXPECT_EQ(now["layers"][0]["k"]["cache_type_id"], "tqcache.turbo_mse.v1");
  must({"verify", part});
}

TEST_P(FirstTokens, ResumeLikeAFileThatHoldsOnlyThem) {
  const std::string turbo = pack(prefill_book(dir_, 600), {"--compress", "none"});
  const std::string part = (dir_ / "part.tqkv").string();
  const std::string n = std::to_string(GetParam());
  // Not packed anew: a full last block stays as it is when it is read.
  must({"convert", turbo, part, "--tokens", n});
  const auto ids = generate_ids({"--cache", part, "-n", "6"});
  EXPECT_EQ(generate_ids({"--cache", turbo, "-n", "6", "--tokens", n}), ids);
  EXPECT_EQ(generate_ids({"--cache", turbo, "-n", "6", "--tokens", n, "--map"}), ids);
}

TEST_P(FirstTokens, AloneAreCompared) {
  const std::string dense = prefill_book(dir_, 600);
  const std::string n = std::to_string(GetParam());
  const nlohmann::json diff =
      nlohmann::json::parse(must({"diff", dense, pack(dense), "--json", "--tokens", n}).out);
  EXPECT_EQ(diff["n_tokens"], GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of600, FirstTokens, testing::Values(1, 255, 256, 300, 512, 600),
                         testing::PrintToStringParamName());

TEST(FirstTokensOnce, AreReadWithoutTheRest) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 600);
  const nlohmann::json sections = info_of(dense, {"--sections"})["sections"];
  Bytes bytes = read_all(dense);
  bytes[sections.back()["file_offset"].get<std::size_t>()] ^= std::byte{1};
  write_all(dense, bytes);
  const std::string out = (dir / "out.tqkv").string();
  EXPECT_EQ(tqcache({"convert", dense, out}).exit_code, 20);
  const Output output = must({"convert", dense, out, "--tokens", "512", "--json"});
  EXPECT_THAT(output.err, HasSubstr(": the first 512 tokens, "));
  EXPECT_EQ(nlohmann::json::parse(output.out)["n_tokens"], 512);
  must({"verify", out});
}

TEST(FirstTokensOnce, ArePipedToo) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const std::string part = (dir / "part.tqkv").string();
  must({"convert", dense, part, "--tokens", "270"});
  const Bytes expected = read_all(part);
  EXPECT_EQ(must({"convert", dense, "-", "--tokens", "270"}).out,
            std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
}

TEST(FirstTokensOnce, AreRefusedBeyondTheFile) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 20);
  const std::string out = (dir / "out.tqkv").string();
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"convert", dense, out, "--tokens", "21"},
        {"convert", dense, out, "--tokens", "0"},
        {"diff", dense, dense, "--tokens", "21"},
        {"generate", "-m", kModel, "--cache", dense, "-n", "1", "--tokens", "21"},
        {"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--tokens", "1"}}) {
    SCOPED_TRACE(testing::PrintToString(args));
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 2) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  }
  EXPECT_EQ(dir.entry_count(), 1u);
}

TEST(FirstTokensOnce, AreRefusedOfStateThatCannotBeCut) {
  const TempDir dir;
  const std::string file = (dir / "a.kv").string();
  must(format::write_cache_file(CacheBuilder(300).dense({1, 64}).arrays().build(), file, {}));
  const Output output = tqcache({"convert", file, (dir / "b.kv").string(), "--tokens", "299"});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("layer 1"));
  must({"convert", file, (dir / "b.kv").string(), "--tokens", "300"});
}

}  // namespace first_tokens_test
}  // namespace tqcache::test
