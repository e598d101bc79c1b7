// Prompts and turns of models that are not ChatML's: the bundled model under other names of tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/demo.h"

namespace tqcache::test {
namespace chat_forms_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

// The bundled model's folder with the ChatML tokens called otherwise, and texts that begin with
// token 0.
class OtherNames {
 public:
  OtherNames(const std::string& turn, const std::string& end) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::create_symlink(std::filesystem::absolute(kOtherModel) / name, dir_ / name);
    }
    Json root = read("tokenizer.json");
    for (Json& token : root["added_tokens"]) {
      if (token["content"] == "<|im_start|>") token["content"] = turn;
      if (token["content"] == "<|im_end|>") token["content"] = end;
    }
    for (const auto& [from, to] : {std::pair("<|im_start|>", turn), std::pair("<|im_end|>", end)}) {
      Json& vocab = root["model"]["vocab"];
      if (!vocab.contains(from)) continue;
      vocab[to] = vocab[from];
      vocab.erase(from);
    }
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single",
                               {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
    write("tokenizer.json", root.dump());
    write("tokenizer_config.json", Json{{"eos_token", end}, {"bos_token", "<|endoftext|>"}}.dump());
  }

  void write(const char* name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  std::string path() const { return dir_.path().string(); }
  std::string file(const char* name) const { return (dir_ / name).string(); }

 private:
  static Json read(const char* name) {
    std::ifstream file(kOtherModel + "/" + name);
    return Json::parse(file);
  }

  TempDir dir_;
};

std::string saved_text(const OtherNames& model, const std::string& cache) {
  return info_of(cache, {"--show-text", "-m", model.path()})["text"];
}

TEST(BeginToken, BeginsPromptsOnce) {
  const OtherNames model("<a>", "<b>");
  const std::string cache = model.file("a.kv");
  must({"prefill", "-m", model.path(), "-p", "Hello", "-o", cache});
  const std::vector<std::int32_t> ids = tokens_of(cache);
  ASSERT_GT(ids.size(), 1u);
  EXPECT_EQ(ids[0], 0);
  EXPECT_NE(ids[1], 0);
  must({"prefill", "-f", "-m", model.path(), "-p", "<|endoftext|>Hello", "-o", cache});
  EXPECT_EQ(tokens_of(cache), ids);
}

TEST(BeginToken, DoesNotBeginWhatGoesOn) {
  const OtherNames model("<a>", "<b>");
  const std::string cache = model.file("a.kv");
  const std::string longer = model.file("b.kv");
  must({"prefill", "-m", model.path(), "-p", "Hello", "-o", cache});
  must({"generate", "-m", model.path(), "--cache", cache, "-p", " there", "-n", "1", "--save",
        longer});
  EXPECT_THAT(saved_text(model, longer), StartsWith("<|endoftext|>Hello there"));
}

// Two windows of a text are two texts that begin alike.
TEST(BeginToken, BeginsEachWindowOfAnEvaluation) {
  const OtherNames model("<a>", "<b>");
  const auto ppl = [&](const std::string& ids) {
    return Json::parse(must({"eval", "ppl", "-m", model.path(), "--ids", ids, "--window", "4",
                             "--configs", "f32", "--json"})
                           .out);
  };
  const auto mean_nll = [](const Json& result) {
    return std::log(result["dense_perplexity"].get<double>());
  };
  const Json both = ppl("0,470,1800,223,19,26,470,19,1800");
  EXPECT_EQ(both["begin_token"], 0);
  EXPECT_EQ(both["predictions"], 8);
  const double apart = mean_nll(ppl("0,470,1800,223,19")) + mean_nll(ppl("0,26,470,19,1800"));
  EXPECT_NEAR(mean_nll(both), apart / 2, 1e-6);
  EXPECT_EQ(ppl("470,1800,223,19,26")["begin_token"], nullptr);
}

TEST(ChatForms, AreThoseOfTheModelsTemplate) {
  OtherNames model("<start_of_turn>", "<end_of_turn>");
  model.write("chat_template.jinja", "{{ bos_token }}{{ '<start_of_turn>' + role + '\\n' }}");
  const std::string saved = model.file("a.kv");
  must({"chat", "-m", model.path(), "-n", "2", "--system", "Be kind.", "--save", saved},
       {.input = " Hi \nBye\n"});
  const std::string text = saved_text(model, saved);
  EXPECT_THAT(text, StartsWith("<|endoftext|><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
                               "<start_of_turn>model\n"));
  EXPECT_THAT(text, HasSubstr("<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n"
                              "<start_of_turn>model\n"));
}

// Such a text begins the first turn of the user, which stays open.
TEST(ChatForms, KeepASystemTextThatHasNoTurnOfItsOwn) {
  OtherNames model("<start_of_turn>", "<end_of_turn>");
  model.write("chat_template.jinja", "{{ bos_token }}{{ '<start_of_turn>' + role + '\\n' }}");
  const std::string alone = model.file("alone.kv");
  const std::string after = model.file("after.kv");
  must({"chat", "-m", model.path(), "--system", "Be kind.", "--save", alone});
  EXPECT_EQ(saved_text(model, alone), "<|endoftext|><start_of_turn>user\nBe kind.\n\n");
  must({"chat", "-m", model.path(), "-n", "1", "--cache", alone, "--save", after},
       {.input = "Hi\nBye\n"});
  EXPECT_THAT(saved_text(model, after),
              StartsWith("<|endoftext|><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
                         "<start_of_turn>model\n"));
  EXPECT_THAT(saved_text(model, after), HasSubstr("<start_of_turn>user\nBye<end_of_turn>\n"));
}

TEST(ChatForms, AreChosenByName) {
  OtherNames model("<start_of_turn>", "<end_of_turn>");
  model.write("chat_template.jinja", "{{ something else }}");
  const Output unknown = tqcache({"chat", "-m", model.path()}, {.input = "Hi\n"});
  EXPECT_EQ(unknown.exit_code, 21);
  EXPECT_THAT(unknown.err, HasSubstr("the model's chat template is none of chatml, gemma, "));
  EXPECT_THAT(unknown.err, HasSubstr("(--template NAME)"));

  const std::string saved = model.file("a.kv");
  must({"chat", "-m", model.path(), "--template", "gemma", "-n", "1", "--save", saved},
       {.input = "Hi\n"});
  EXPECT_THAT(saved_text(model, saved), StartsWith("<|endoftext|><start_of_turn>user\nHi"));
}

TEST(ChatForms, NeedTheirTokens) {
  const Output none = tqcache({"chat", "-m", kModel, "--template", "llama3"}, {.input = "Hi\n"});
  EXPECT_EQ(none.exit_code, 21);
  EXPECT_THAT(none.err,
              HasSubstr("chat template llama3: the model has no token <|start_header_id|>"));
  const Output unknown = tqcache({"chat", "-m", kModel, "--template", "x"}, {.input = "Hi\n"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("chat template \"x\": none of chatml, gemma, "));
}

TEST(ChatForms, SayWhenThereIsNoWayNotToThink) {
  const Output output = tqcache({"chat", "-m", kModel, "--no-think"}, {.input = "Hi\n"});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("no way to answer without thinking first"));
}

}  // namespace chat_forms_test
}  // namespace tqcache::test
