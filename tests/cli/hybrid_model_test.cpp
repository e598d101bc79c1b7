// A trained model with recurrent layers (models/hybrid): its answers, from memory and from files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/demo.h"
#include "support/checkpoint_reader.h"
#include "support/long_tests.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace hybrid_model_test {

const std::string kHybrid = TQCACHE_DEMO_MODEL "/../hybrid/tqcache-hybrid-19m.q8_0.gguf";

nlohmann::json answer(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {"generate", "-m", kHybrid, "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  return nlohmann::json::parse(must(args).out);
}

// transformers had the weights in bf16, this file has them in Q8_0. Tokens are compared as far as
// the best was ahead of the second by more than that changes.
class HybridReference : public testing::TestWithParam<const char*> {};

TEST_P(HybridReference, GreedyTokensEqualThoseOfTransformers) {
  std::ifstream file(TQCACHE_TEST_DATA "/hybrid_reference.json");
  const nlohmann::json prompt = nlohmann::json::parse(file)["prompts"][GetParam()];
  const std::vector<std::int32_t> ids = prompt["ids"];
  std::vector<std::int32_t> expected = prompt["greedy"];
  const std::vector<double> margins = prompt["margins"];
  constexpr double kClear = 0.15;
  const auto n_clear = std::ranges::find_if(margins, [](double m) { return m < kClear; });
  expected.resize(static_cast<std::size_t>(n_clear - margins.begin()));
  ASSERT_GE(expected.size(), 5u);
  const TempDir dir;
  const std::string text = (dir / "prompt.txt").string();
  write_all(text, prompt["text"].get<std::string>());
  const nlohmann::json answered = answer({"--file", text, "--save", (dir / "saved.tqkv").string(),
                                          "-n", std::to_string(expected.size())});
  EXPECT_EQ(answered["token_ids"].get<std::vector<std::int32_t>>(), expected);
  std::vector<std::int32_t> saved = tokens_of((dir / "saved.tqkv").string());
  ASSERT_GE(saved.size(), ids.size());
  saved.resize(ids.size());
  EXPECT_EQ(saved, ids) << "tokens of the prompt";
}

INSTANTIATE_TEST_SUITE_P(Prompts, HybridReference,
                         testing::Values("alice", "chat", "handbook", "needle"),
                         [](const auto& name) { return std::string(name.param); });

// A long document with a code in its first quarter, prefilled once. The question is asked behind
// files of it.
class HybridFiles : public testing::Test {
 protected:
  void prefill(int n_tokens) {
    const Bytes book = read_all(TQCACHE_TEST_DATA "/alice.txt");
    std::string text(reinterpret_cast<const char*>(book.data()), book.size());
    // About four characters for a token; the number of tokens is exact by --max-tokens below.
    text.insert(text.find("\n\n", static_cast<std::size_t>(n_tokens)),
                "\n\nThe secret code of Lisbon is 52601.");
    const std::string file = (dir_ / "document.txt").string();
    write_all(file, "<|im_start|>user\nHere is a long document.\n\n" + text);
    must({"prefill", "-m", kHybrid, "--file", file, "--max-tokens", std::to_string(n_tokens), "-o",
          dense_, "--force"});
    ASSERT_EQ(info_of(dense_)["n_tokens"], n_tokens);
  }

  // With the answer's tokens saved in a file that verifies.
  std::string answer_from(const std::string& cache) {
    const std::string question =
        "\n<|im_end|>\n<|im_start|>assistant\nI have read it.<|im_end|>\n<|im_start|>user\n"
        "What is the secret code of Lisbon?<|im_end|>\n<|im_start|>assistant\n";
    const std::string saved = (dir_ / "answered.tqkv").string();
    const nlohmann::json answered =
        answer({"--cache", cache, "--prompt", question, "--save", saved, "--force"});
    must({"verify", saved, "-m", kHybrid});
    return answered["text"];
  }

  TempDir dir_;
  const std::string dense_ = (dir_ / "dense.tqkv").string();
  static inline const std::string kExpected = "The secret code of Lisbon is 52601.";
};

TEST_F(HybridFiles, AnswerFromADenseATurboAndAnArchivedOne) {
  const std::string turbo = (dir_ / "turbo.tqkv").string();
  const std::string archive = (dir_ / "archive.tqkv").string();
  std::vector<int> lengths = {3072};
  if (runs_long_tests()) lengths.push_back(15360);
  for (const int n_tokens : lengths) {
    SCOPED_TRACE(n_tokens);
    prefill(n_tokens);
    must({"convert", dense_, turbo, "--bits", "4", "--force"});
    // The state, which is not quantized, counts: 2.3 bits per key and value of 3,072 tokens.
    must({"convert", dense_, archive, "--config", "archive", "--bits", "5", "--force"});
    EXPECT_LT(std::filesystem::file_size(archive), std::filesystem::file_size(dense_) / 2);
    for (const std::string& cache : {dense_, turbo, archive}) {
      SCOPED_TRACE(cache);
      EXPECT_EQ(answer_from(cache), kExpected);
    }
  }
}

// A prompt of 300 tokens with a checkpoint behind 280, as a file of llama.cpp. The tokens behind
// the checkpoint are computed again, and compared with keys, values and state of the file.
class HybridProbe : public testing::Test {
 protected:
  // `spoil` changes the cache of all tokens, and not its checkpoint.
  std::string write_state(const std::function<void(cache::Cache&)>& spoil = {}) {
    const auto model = must(model::load_model(kHybrid));
    std::vector<std::int32_t> ids(300);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(97 + 7 * i);
    model::Decoder decoder(model->config, *model->weights, 1);
    cache::Cache cache = must(model::make_cache(*model, Dtype::kF16));
    must(decoder.prefill(cache, std::span(ids).first(280)));
    cache::Checkpoint checkpoint = checkpoint_of(cache);
    must(decoder.prefill(cache, std::span(ids).last(20)));
    if (spoil) spoil(cache);
    const CheckpointReader reader(std::move(cache), {std::move(checkpoint)});
    must(format::write_cache_file(reader, tqkv_, {.overwrite = Overwrite::kAllow}));
    const std::string state = (dir_ / "state.bin").string();
    must({"convert", tqkv_, state, "--to", "llama-seq", "-m", kHybrid, "-f"});
    return state;
  }
  Output import(const std::string& state) {
    return tqcache({"convert", state, (dir_ / "back.tqkv").string(), "-m", kHybrid, "-f"});
  }

  TempDir dir_;
  const std::string tqkv_ = (dir_ / "ours.tqkv").string();
};

TEST_F(HybridProbe, AcceptsAStateOfTheModel) {
  const Output imported = import(write_state());
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_THAT(imported.err, testing::HasSubstr("its last 16 tokens, computed again, differ by"));
  const auto verified = nlohmann::json::parse(must({"verify", tqkv_, "-m", kHybrid, "--json"}).out);
  EXPECT_EQ(verified["probe"]["layers"].size(), 8u);
  EXPECT_LT(verified["probe"]["layers"][0]["state_relative_error"], 0.001);
  EXPECT_EQ(verified["probe"]["first_token"], 284);
}

TEST_F(HybridProbe, RefusesOtherKeys) {
  const std::string state = write_state([](cache::Cache& cache) {
    auto& layer = std::get<cache::AttentionLayer>(cache.layers[3]);
    for (auto& block : std::get<cache::DenseTensor>(layer.k).blocks) {
      for (std::size_t i = 1; i < block.size(); i += 2) block[i] ^= std::byte{0x80};
    }
  });
  const Output imported = import(state);
  EXPECT_EQ(imported.exit_code, 22);
  EXPECT_THAT(imported.err, testing::HasSubstr("layer 3 k: the last 16 tokens, recomputed"));
  EXPECT_EQ(tqcache({"verify", tqkv_, "-m", kHybrid}).exit_code, 22);
}

TEST_F(HybridProbe, RefusesAnotherState) {
  const std::string state = write_state([](cache::Cache& cache) {
    for (cache::NamedArray& array : std::get<cache::StateLayer>(cache.layers[1]).arrays) {
      if (array.name != "1") continue;
      for (std::size_t i = 3; i < array.data.size(); i += 4) array.data[i] ^= std::byte{0x80};
    }
  });
  const Output imported = import(state);
  EXPECT_EQ(imported.exit_code, 22);
  EXPECT_THAT(imported.err, testing::HasSubstr("layer 1 state: the last 16 tokens, recomputed"));
}

}  // namespace hybrid_model_test
}  // namespace tqcache::test
