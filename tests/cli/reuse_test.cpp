// `generate --reuse`: a cache of the beginning of a prompt, given with the whole prompt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "cli/demo.h"
#include "model/tiny_files.h"

namespace tqcache::test {
namespace reuse_test {

using testing::HasSubstr;
using testing::Not;

class Reuse : public testing::Test {
 protected:
  // The book's first `n_tokens` tokens, as --ids takes them; the last `n_other` are others.
  std::string book_ids(std::int64_t n_tokens, std::int64_t n_other = 0) const {
    std::vector<std::int32_t> ids = tokens_of(book_);
    ids.resize(static_cast<std::size_t>(n_tokens));
    std::fill(ids.end() - n_other, ids.end(), 300);
    return id_list(ids);
  }

  TempDir dir_;
  std::string book_ = prefill_book(dir_, 600);
  std::string cache_ = prefill_book(dir_, 520);
};

TEST_F(Reuse, ReadsTheRestAlone) {
  const auto json = generate({"--cache", cache_, "--reuse", "--ids", book_ids(600), "-n", "8"});
  EXPECT_EQ(json["cached_tokens"], 520);
  EXPECT_EQ(json["prompt_tokens"], 80);
  EXPECT_EQ(json["token_ids"], generate({"--ids", book_ids(600), "-n", "8"})["token_ids"]);
}

TEST_F(Reuse, CutsTheCacheWhereThePromptDiffers) {
  const Output output = must({"generate", "-m", kModel, "--json", "--cache", cache_, "--reuse",
                              "--ids", book_ids(530, 40), "-n", "8"});
  EXPECT_THAT(output.err, HasSubstr("490 of 520 cached tokens reused"));
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["cached_tokens"], 490);
  EXPECT_EQ(json["prompt_tokens"], 40);
  EXPECT_EQ(json["token_ids"], generate({"--ids", book_ids(530, 40), "-n", "8"})["token_ids"]);
}

TEST_F(Reuse, OfAPromptThatTheCacheHoldsReadsNothing) {
  for (const std::int64_t n : {520, 300}) {
    const auto json = generate({"--cache", cache_, "--reuse", "--ids", book_ids(n), "-n", "8"});
    EXPECT_EQ(json["cached_tokens"], n);
    EXPECT_EQ(json["prompt_tokens"], 0);
    EXPECT_EQ(json["token_ids"], generate({"--ids", book_ids(n), "-n", "8"})["token_ids"]);
  }
}

TEST_F(Reuse, OfNothingInCommonReadsAll) {
  const auto json = generate({"--cache", cache_, "--reuse", "-p", "Once upon a time", "-n", "4"});
  EXPECT_EQ(json["cached_tokens"], 0);
  EXPECT_EQ(json["token_ids"], generate({"-p", "Once upon a time", "-n", "4"})["token_ids"]);
}

TEST_F(Reuse, LeavesATurboCacheTurbo) {
  const std::string saved = (dir_ / "saved.tqkv").string();
  generate(
      {"--cache", pack(cache_), "--reuse", "--ids", book_ids(300, 10), "-n", "2", "--save", saved});
  EXPECT_EQ(info_of(saved)["n_tokens"], 302);
  EXPECT_EQ(info_of(saved)["layers"][0]["k"]["cache_type_id"], "tqcache.turbo_mse.v1");
}

TEST_F(Reuse, LetsAFileGrowButNotGetShorter) {
  generate({"--cache", cache_, "--reuse", "--append", "--ids", book_ids(530), "-n", "2"});
  EXPECT_EQ(info_of(cache_)["n_tokens"], 532);
  const Output refused = tqcache({"generate", "-m", kModel, "--cache", cache_, "--reuse",
                                  "--append", "--ids", book_ids(400), "-n", "2"});
  EXPECT_EQ(refused.exit_code, 22);
  EXPECT_THAT(refused.err, HasSubstr("differs after 400 tokens"));
  EXPECT_EQ(info_of(cache_)["n_tokens"], 532);
}

// A small model whose layers have windows or a state, with a tokenizer of 59 pieces.
class SmallFamily {
 public:
  explicit SmallFamily(const std::string& name) {
    const auto from = std::filesystem::absolute(TQCACHE_TEST_DATA "/architectures/" + name);
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::create_symlink(from / file, dir_ / file);
    }
    nlohmann::json root;
    auto vocab = nlohmann::json::array({nlohmann::json::array({"<unk>", 0.0})});
    for (char letter = 'A'; letter < 'A' + 58; ++letter) {
      vocab.push_back(nlohmann::json::array({std::string(1, letter), -1.0}));
    }
    root["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
    root["added_tokens"] = {tiny::added_token(0, "<unk>", true)};
    root["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}};
    root["decoder"] = root["pre_tokenizer"];
    write_all(dir_ / "tokenizer.json", as_bytes(root.dump()));
  }

  // The first `n_tokens` of some tokens, the last one being another.
  static std::string ids(std::int32_t n_tokens, bool ends_otherwise = false) {
    std::vector<std::int32_t> all;
    for (std::int32_t i = 0; i < n_tokens; ++i) all.push_back((7 * i * i + 3 * i + 11) % 59);
    if (ends_otherwise) all.back() = (all.back() + 1) % 59;
    return id_list(all);
  }

  Output generate(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"generate", "-m", dir_.path().string(), "--json", "-n", "6"});
    return must(flags);
  }
  std::string prefill(std::int32_t n_tokens) const {
    std::string cache = (dir_ / "a.kv").string();
    must({"prefill", "-m", dir_.path().string(), "--ids", ids(n_tokens), "-o", cache});
    return cache;
  }

 private:
  TempDir dir_;
};

class ReuseOfFamilies : public testing::TestWithParam<const char*> {
 protected:
  SmallFamily model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(WindowsAndStates, ReuseOfFamilies,
                         testing::Values("mistral", "gemma2", "gemma3", "qwen3_next", "qwen3_5"));

TEST_P(ReuseOfFamilies, ReadsTheRestAloneWhereNothingIsCut) {
  const auto json = nlohmann::json::parse(
      model_.generate({"--cache", model_.prefill(30), "--reuse", "--ids", model_.ids(36)}).out);
  EXPECT_EQ(json["cached_tokens"], 30);
  EXPECT_EQ(json["prompt_tokens"], 6);
  const auto whole = nlohmann::json::parse(model_.generate({"--ids", model_.ids(36)}).out);
  EXPECT_EQ(json["token_ids"], whole["token_ids"]);
}

TEST_P(ReuseOfFamilies, BeginsAnewAndSaysSoWhereTheCacheCannotBeCut) {
  const std::string prompt = model_.ids(30, true);
  const Output output =
      model_.generate({"--cache", model_.prefill(30), "--reuse", "--ids", prompt});
  EXPECT_THAT(output.err, HasSubstr("differs from the cache after 29 tokens, and the cache cannot "
                                    "be truncated there (layer 0"));
  EXPECT_THAT(output.err, HasSubstr("nothing is reused"));
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["cached_tokens"], 0);
  EXPECT_EQ(json["prompt_tokens"], 30);
  const auto whole = nlohmann::json::parse(model_.generate({"--ids", prompt}).out);
  EXPECT_EQ(json["token_ids"], whole["token_ids"]);
}

TEST_F(Reuse, WantsACacheAndAPrompt) {
  EXPECT_EQ(tqcache({"generate", "-m", kModel, "--reuse", "-p", "x", "-n", "1"}).exit_code, 2);
  EXPECT_EQ(tqcache({"generate", "-m", kModel, "--reuse", "--cache", cache_, "-n", "1"}).exit_code,
            2);
}

TEST_F(Reuse, IsPointedAtWhereAPromptRepeatsTheCache) {
  const auto err = [&](const std::string& ids) {
    return must({"generate", "-m", kModel, "--cache", cache_, "--ids", ids, "-n", "1"}).err;
  };
  EXPECT_THAT(err(book_ids(530)), HasSubstr("--reuse"));
  EXPECT_THAT(err(book_ids(519)), Not(HasSubstr("--reuse")));
}

TEST_F(Reuse, GoesOnFromWhatAnInterruptedRunKept) {
  const std::string text = (dir_ / "long.txt").string();
  std::string book = book_text(1 << 20);
  while (book.size() < 48000) book += book;
  book.resize(48000);
  write_all(text, as_bytes(book));
  const std::string part = (dir_ / "part.kv").string();
  Conversation run({"generate", "-m", kModel, "--file", text, "-n", "4", "--save", part, "-t", "1"},
                   Conversation::At::kTerminal);
  run.wait_for(" s left");  // which is known after the first tokens
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130) << run.screen();
  const std::int64_t n_kept = info_of(part)["n_tokens"];
  EXPECT_GT(n_kept, 0);
  EXPECT_EQ(n_kept % 256, 0);
  EXPECT_THAT(run.screen(), HasSubstr("interrupted: the first " + std::to_string(n_kept)));
  // A shorter prompt that begins alike shows that what was kept is right.
  std::vector<std::int32_t> ids = tokens_of(part);
  ids.push_back(300);
  const auto json = generate({"--cache", part, "--reuse", "--ids", id_list(ids), "-n", "4"});
  EXPECT_EQ(json["cached_tokens"], n_kept);
  EXPECT_EQ(json["token_ids"], generate({"--ids", id_list(ids), "-n", "4"})["token_ids"]);
}

}  // namespace reuse_test
}  // namespace tqcache::test
