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

// The system text begins the first turn of the user, who needs a turn.
constexpr const char* kTurns = R"({{ bos_token }}
{%- set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{%- for message in messages if message.role != 'system' %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
    {{- (first if loop.first else '') + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})";

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
  model.write("chat_template.jinja", kTurns);
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
  model.write("chat_template.jinja", kTurns);
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

TEST(ChatForms, AreChosenByAFile) {
  OtherNames model("<start_of_turn>", "<end_of_turn>");
  model.write("chat_template.jinja", "{{ messages | batch(2) }}");
  const Output refused = tqcache({"chat", "-m", model.path()}, {.input = "Hi\n"});
  EXPECT_EQ(refused.exit_code, 21);
  EXPECT_THAT(refused.err,
              HasSubstr("chat template: line 1: the filter \"batch\" is not supported"));
  EXPECT_THAT(refused.err, HasSubstr("(--template)"));

  const std::string saved = model.file("a.kv");
  model.write("turns.jinja", kTurns);
  must({"chat", "-m", model.path(), "--template", model.file("turns.jinja"), "-n", "1", "--save",
        saved},
       {.input = "Hi\n"});
  EXPECT_THAT(saved_text(model, saved), StartsWith("<|endoftext|><start_of_turn>user\nHi"));
  model.write("turns.jinja", "\n{% if %}");
  const Output bad =
      tqcache({"chat", "-m", model.path(), "--template", model.file("turns.jinja")}, {.input = ""});
  EXPECT_EQ(bad.exit_code, 21);
  EXPECT_THAT(bad.err, HasSubstr("turns.jinja: chat template: line 2: expected a value, found %}"));
}

TEST(ChatForms, WriteTheDateThatIsGiven) {
  OtherNames model("<start_of_turn>", "<end_of_turn>");
  model.write("chat_template.jinja",
              "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<start_of_turn>{{ m.content }}"
              "<end_of_turn>{% endfor %}");
  const std::string saved = model.file("a.kv");
  must({"chat", "-m", model.path(), "-n", "1", "--date", "2026-11-29", "--save", saved},
       {.input = "Hi\n"});
  EXPECT_THAT(saved_text(model, saved), StartsWith("29 Nov 2026<start_of_turn>Hi"));
  for (const char* date : {"2026-13-01", "2026-02-30", "today", "2026-1-1", "2026-11-29T"}) {
    const Output bad = tqcache({"chat", "-m", model.path(), "--date", date}, {.input = ""});
    EXPECT_EQ(bad.exit_code, 2) << date;
    EXPECT_THAT(bad.err, HasSubstr("--date: expected a day")) << date;
  }
}

TEST(ChatForms, NeedTheirTokens) {
  const OtherNames other("<a>", "<b>");
  const Output none =
      tqcache({"chat", "-m", other.path(), "--template", "chatml"}, {.input = "Hi\n"});
  EXPECT_EQ(none.exit_code, 21);
  EXPECT_THAT(none.err, HasSubstr("chat template chatml: the model has no token <|im_start|>"));
  const Output unknown = tqcache({"chat", "-m", kModel, "--template", "x"}, {.input = "Hi\n"});
  EXPECT_THAT(unknown.err, HasSubstr("no template has this name: chatml"));
}

TEST(ChatForms, SayWhenThereIsNoWayNotToThink) {
  const Output output = tqcache({"chat", "-m", kModel, "--no-think"}, {.input = "Hi\n"});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("no way to answer without thinking first"));
}

}  // namespace chat_forms_test
}  // namespace tqcache::test
