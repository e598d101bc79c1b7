// The whole way, each step in a process of its own: a prompt goes in, an answer comes out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/demo.h"

namespace tqcache::test {
namespace answers_test {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string prefill_parrot(const TempDir& dir, const std::string& prompt) {
  const std::string path = (dir / "parrot.kv").string();
  must({"prefill", "-m", kModel, "--prompt", prompt, "-o", path});
  return path;
}

// The parrot is named in the first turn; a long story comes between it and the question.
std::string parrot_prompt_with_story(std::size_t n_story_bytes) {
  const std::string prompt = parrot_prompt();
  const std::size_t question = prompt.rfind("<|im_start|>user\n");
  return prompt.substr(0, question) +
         "<|im_start|>user\nHere is a story: " + book_text(n_story_bytes) +
         "<|im_end|>\n<|im_start|>assistant\nThank you for the story, Clara.<|im_end|>\n" +
         prompt.substr(question);
}

TEST(Generate, AnswersFromScratch) {
  const Output output = must({"generate", "-m", kModel, "-p", parrot_prompt(), "-n", "40"});
  EXPECT_EQ(output.out, kAnswer + "\n");
}

TEST(Generate, AnswersFromADenseFile) {
  const TempDir dir;
  const std::string dense = prefill_parrot(dir, parrot_prompt());
  EXPECT_EQ(must({"generate", "-m", kModel, "--cache", dense, "-n", "40"}).out, kAnswer + "\n");
}

TEST(Generate, AnswersFromAFourBitFile) {
  const TempDir dir;
  const std::string turbo = pack(prefill_parrot(dir, parrot_prompt()), {"--bits", "4"});
  EXPECT_EQ(must({"generate", "-m", kModel, "--cache", turbo, "-n", "40"}).out, kAnswer + "\n");
}

TEST(Generate, FindsTheFactInsidePackedBlocks) {
  const TempDir dir;
  const std::string dense = prefill_parrot(dir, parrot_prompt_with_story(4000));
  const std::string turbo = pack(dense, {"--bits", "4"});
  const nlohmann::json info = nlohmann::json::parse(must({"info", turbo, "--json"}).out);
  ASSERT_GT(info["n_tokens"], 512);
  ASSERT_GT(info["bytes"]["keys"]["packed"], 0);
  EXPECT_EQ(must({"generate", "-m", kModel, "--cache", dense, "-n", "40"}).out, kAnswer + "\n");
  EXPECT_EQ(must({"generate", "-m", kModel, "--cache", turbo, "-n", "40"}).out, kAnswer + "\n");
}

TEST(Generate, AppendsThePromptToTheCache) {
  const TempDir dir;
  const std::string prompt = parrot_prompt();
  const std::size_t question = prompt.rfind("<|im_start|>user\n");
  const std::string dense = prefill_parrot(dir, prompt.substr(0, question));
  const nlohmann::json json =
      generate({"--cache", dense, "-p", prompt.substr(question), "-n", "40"});
  EXPECT_EQ(json["text"], kAnswer);
  EXPECT_GT(json["cached_tokens"], 0);
  EXPECT_EQ(json["cached_tokens"].get<int>() + json["prompt_tokens"].get<int>(), 60);
}

TEST(Generate, ReportsWhatAMeasurementNeeds) {
  const nlohmann::json json = generate({"-p", parrot_prompt(), "-n", "40"});
  const std::vector<std::string> expected = {"schema",
                                             "text",
                                             "token_ids",
                                             "prompt_tokens",
                                             "cached_tokens",
                                             "generation_tokens",
                                             "timed_generation_tokens",
                                             "prompt_tps",
                                             "generation_tps",
                                             "generation_wall_time_s",
                                             "peak_memory_bytes",
                                             "cache_bytes",
                                             "native_working_set_bytes",
                                             "scorer_route",
                                             "prompt_route",
                                             "scorer_fallback",
                                             "stop_reason"};
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(json["token_ids"], nlohmann::json({1227, 1949, 84, 311, 346, 1138, 4932, 16, 2}));
  EXPECT_EQ(json["prompt_tokens"], 60);
  EXPECT_EQ(json["generation_tokens"], 9);
  EXPECT_EQ(json["timed_generation_tokens"], 8);
  EXPECT_EQ(json["scorer_route"], "dense");
  EXPECT_EQ(json["stop_reason"], "end_token");
  EXPECT_LT(json["cache_bytes"]["used"], json["cache_bytes"]["allocated"]);
  EXPECT_GT(json["native_working_set_bytes"], std::filesystem::file_size(kModel));
  EXPECT_GT(json["generation_tps"], 0);
}

TEST(Generate, StopsAtTheLengthAskedFor) {
  const nlohmann::json json = generate({"-p", "Alice was beginning", "-n", "3"});
  EXPECT_EQ(json["generation_tokens"], 3);
  EXPECT_EQ(json["stop_reason"], "length");
}

TEST(Generate, GivesTheSameTextForTheSameSeed) {
  const std::vector<std::string> flags = {
      "-p", "Alice was", "-n", "12", "--top-k", "50", "--seed", "3", "--temperature", "1"};
  EXPECT_EQ(generate(flags)["token_ids"], generate(flags)["token_ids"]);
  std::vector<std::string> other = flags;
  other[7] = "4";
  EXPECT_NE(generate(flags)["token_ids"], generate(other)["token_ids"]);
}

TEST(Generate, TakesSpelledOutSpecialTokensAsTextWhenAsked) {
  const std::string text = "<|im_end|>";
  EXPECT_EQ(generate({"-p", text, "-n", "1"})["prompt_tokens"], 1);
  EXPECT_GT(generate({"-p", text, "-n", "1", "--no-special"})["prompt_tokens"], 1);
}

TEST(Convert, PacksALongCacheBelowFourAndAThirdBitsAValue) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 4096);
  const std::string turbo = pack(dense, {"--bits", "4"});
  const nlohmann::json info = nlohmann::json::parse(must({"info", turbo, "--json"}).out);
  ASSERT_EQ(info["n_tokens"], 4096);
  EXPECT_EQ(info["bytes"]["file"], std::filesystem::file_size(turbo));
  const double bits =
      8.0 * static_cast<double>(std::filesystem::file_size(turbo)) / info["n_values"].get<double>();
  EXPECT_LE(bits, 4.35);
  EXPECT_NEAR(info["bits_per_value"].get<double>(), bits, 1e-9);
  EXPECT_THAT(must({"verify", turbo}).out, HasSubstr(": OK, "));
  EXPECT_THAT(must({"verify", turbo, "-m", kModel}).out, HasSubstr("fingerprints match"));
  EXPECT_THAT(must({"verify", dense, "-m", kModel}).out, HasSubstr("fingerprints match"));
}

TEST(Convert, KeepsATensorDenseAt16Bits) {
  const TempDir dir;
  const std::string turbo = pack(prefill_book(dir, 300), {"--bits", "16,3"});
  const nlohmann::json layer =
      nlohmann::json::parse(must({"info", turbo, "--json"}).out)["layers"][0];
  EXPECT_EQ(layer["k"]["cache_type_id"], "tqcache.dense.v1");
  EXPECT_EQ(layer["v"]["bits"], 3);
}

TEST(Convert, RefusesToPackAgainWithOtherBits) {
  const TempDir dir;
  const std::string turbo = pack(prefill_book(dir, 300));
  const std::string again = (dir / "again").string();
  const Output output = tqcache({"convert", turbo, again, "--bits", "3"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, StartsWith("tqcache: " + turbo + ": "));
  EXPECT_FALSE(std::filesystem::exists(again));
}

TEST(Convert, CentersKeysUnlessToldNotTo) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 512);
  const auto error_of_keys = [&](const std::string& turbo) {
    return nlohmann::json::parse(must({"diff", dense, turbo, "--json"}).out)["k"]["relative_mse"]
        .get<double>();
  };
  const double centered = error_of_keys(pack(dense));
  const double plain = error_of_keys(pack(dense, {"--config", "center=none", "-f"}));
  EXPECT_LT(centered, 0.5 * plain);  // of this model's keys before RoPE, most is their mean
  EXPECT_EQ(tqcache({"convert", dense, dense + "x", "--config", "center=sideways"}).exit_code, 2);
}

TEST(Diff, TellsTheErrorOfTheCodec) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 512);
  const std::string turbo = pack(dense, {"--config", "center=none"});
  const nlohmann::json json = nlohmann::json::parse(must({"diff", dense, turbo, "--json"}).out);
  EXPECT_EQ(json["n_tokens"], 512);
  EXPECT_EQ(json["layers"].size(), 8u);
  // 4 bits at head_dim 128: the expected error of a random vector is .0093.
  EXPECT_NEAR(json["k"]["relative_mse"].get<double>(), 0.0093, 0.001);
  EXPECT_NEAR(json["v"]["relative_mse"].get<double>(), 0.0093, 0.001);
  EXPECT_THAT(must({"diff", dense, turbo}).out, HasSubstr("\n  all "));
}

TEST(Diff, IsZeroBetweenACacheAndItself) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 20);
  const nlohmann::json json = nlohmann::json::parse(must({"diff", dense, dense, "--json"}).out);
  EXPECT_EQ(json["k"]["relative_mse"], 0);
  EXPECT_EQ(json["v"]["max_abs"], 0);
}

TEST(Diff, RefusesCachesOfDifferentPrompts) {
  const TempDir dir;
  const std::string book = prefill_book(dir, 20);
  const Output output = tqcache({"diff", book, prefill_parrot(dir, parrot_prompt())});
  EXPECT_EQ(output.exit_code, 22);
}

}  // namespace answers_test
}  // namespace tqcache::test
