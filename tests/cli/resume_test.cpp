// Going on from a file must give the very tokens that going on in memory gives.

#include <gtest/gtest.h>

#include <csignal>

#include "cli/demo.h"

namespace tqcache::test {
namespace resume_test {

using Ids = std::vector<std::int32_t>;

Ids ids_of(const std::string& cache, int n) {
  return generate_ids({"--cache", cache, "-n", std::to_string(n)});
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Resume : public testing::TestWithParam<int> {
 protected:
  // Four tokens, a file, and four tokens more in another process.
  Ids ids_in_two_processes(const std::string& cache) const {
    const std::string saved = (dir_ / "saved.kv").string();
    const Ids first = generate_ids({"--cache", cache, "-n", "4", "--save", saved});
    return first + ids_of(saved, 4);
  }

  TempDir dir_;
};

TEST_P(Resume, OfADenseCacheEqualsOneRun) {
  const std::string cache = prefill_book(dir_, GetParam());
  const Ids ids = ids_of(cache, 8);
  ASSERT_EQ(ids.size(), 8u);
  EXPECT_EQ(ids_in_two_processes(cache), ids);
}

TEST_P(Resume, FromAFileEqualsARunFromScratch) {
  const std::string cache = prefill_book(dir_, GetParam());
  EXPECT_EQ(ids_of(cache, 8), generate_ids({"--ids", id_list(tokens_of(cache)), "-n", "8"}));
}

TEST_P(Resume, OfATurboCacheEqualsTurboInMemory) {
  const std::string cache = pack(prefill_book(dir_, GetParam()));
  const Ids ids = ids_of(cache, 8);
  ASSERT_EQ(ids.size(), 8u);
  EXPECT_EQ(ids_in_two_processes(cache), ids);
}

TEST_P(Resume, LeavesACacheThatVerifies) {
  const std::string cache = pack(prefill_book(dir_, GetParam()));
  const std::string saved = (dir_ / "longer.kv").string();
  generate({"--cache", cache, "-n", "4", "--save", saved});
  must({"verify", saved, "-m", kModel});
  const nlohmann::json now = info_of(saved);
  EXPECT_EQ(now["n_tokens"], GetParam() + 4);
  EXPECT_EQ(now["layers"][0]["k"]["cache_type_id"], "tqcache.turbo_mse.v1");
}

// Over every mode of the codec, with what surrounds it: what is packed while a conversation goes on
// is packed as the file says.
TEST(ResumeOnce, OfEveryModeEqualsTurboInMemory) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 510);
  const std::vector<std::vector<std::string>> codecs = {
      {"--config", "k8v4,sink=3"},
      {"--config", "turbo2.5,boundary=1:5"},
      {"--config", "prod3"},
      {"--config", "affine4,sink=0"},
      {"--config", "kfv4,rotation=dense,scale=norm"}};
  for (const std::vector<std::string>& codec : codecs) {
    SCOPED_TRACE(codec[1]);
    const std::string cache = pack(dense, codec);
    const std::string saved = (dir / "saved.kv").string();
    const Ids ids = ids_of(cache, 8);
    const Ids first = generate_ids({"--cache", cache, "-n", "4", "--save", saved});
    EXPECT_EQ(first + ids_of(saved, 4), ids);
    must({"verify", saved, "-m", kModel});
    std::filesystem::remove(cache);
    std::filesystem::remove(saved);
  }
}

TEST(ResumeOnce, OfAMappedFileEqualsOfOneThatWasRead) {
  const TempDir dir;
  const std::string cache = pack(prefill_book(dir, 600), {"--compress", "none"});
  EXPECT_EQ(generate_ids({"--cache", cache, "-n", "8", "--map"}), ids_of(cache, 8));
}

INSTANTIATE_TEST_SUITE_P(AtTokens, Resume, testing::Values(255, 256, 257, 511, 512, 513),
                         testing::PrintToStringParamName());

TEST(Save, MayReplaceTheCacheItWentOnFrom) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 30);
  const Ids whole = ids_of(cache, 6);
  const Ids first = generate_ids({"--cache", cache, "-n", "3", "--save", cache, "-f"});
  EXPECT_EQ(first + ids_of(cache, 3), whole);
}

TEST(Save, KeepsWhatAnInterruptedGenerationWrote) {
  const TempDir dir;
  const std::string saved = (dir / "saved.kv").string();
  Conversation run(
      {"generate", "-m", kModel, "--cache", prefill_book(dir, 300), "-n", "9000", "--save", saved},
      Conversation::At::kPipe);
  run.wait_for(" ");
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
  must({"verify", saved, "-m", kModel});
  EXPECT_EQ(dir.entry_count(), 2u);
}

TEST(Save, HoldsTheEndToken) {
  const TempDir dir;
  const std::string saved = (dir / "saved.kv").string();
  generate({"-p", parrot_prompt(), "-n", "40", "--save", saved});
  const std::string text = must({"info", saved, "--show-text", "-m", kModel}).out;
  EXPECT_NE(text.find(kAnswer + "<|im_end|>\n"), std::string::npos) << text;
}

}  // namespace resume_test
}  // namespace tqcache::test
