// Turns that follow the tokens of a cache, in the forms of many families of models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "tqcache/session.h"

namespace tqcache::session {
namespace chat_turns_test {

using testing::HasSubstr;
using tiny::Json;
using tokenizer::ChatMessage;
using tokenizer::ChatRole;

std::string read_template(const std::string& name) {
  std::ifstream file(TQCACHE_TEST_DATA "/chat_templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A template that is a look-alike of the family's, and its special tokens; the last one ends
// answers.
struct Family {
  std::string name;
  std::vector<std::string> tokens;
};

const std::vector<Family>& families() {
  static const std::vector<Family> kAll = {
      {"llama-3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"llama-2", {"</s>"}},
      {"qwen-3", {"<|im_start|>", "<|im_end|>"}},
      {"gemma-3", {"<start_of_turn>", "<end_of_turn>"}},
      {"mistral-small-3", {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "</s>"}},
      {"phi-4", {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}},
      {"gpt-oss",
       {"<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>",
        "<|constrain|>"}},
      {"smollm-3", {"<|im_start|>", "<|im_end|>"}},
      {"deepseek-r1", {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}},
      {"granite-3", {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}},
      {"command-r",
       {"<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>"}},
      {"glm-4", {"<|system|>", "<|assistant|>", "<|user|>"}}};
  return kAll;
}

// A vocabulary of bytes with the family's special tokens and <s>.
tokenizer::Tokenizer tokenizer_of(const Family& family) {
  Json root = tiny::tokenizer();
  root["added_tokens"] = Json::array();
  int id = 261;  // behind those of tiny::tokenizer()
  std::vector<std::string> tokens = family.tokens;
  tokens.insert(tokens.begin(), "<s>");
  for (const std::string& token : tokens) {
    root["added_tokens"].push_back(tiny::added_token(id++, token.c_str(), true));
  }
  const Json config = {{"bos_token", "<s>"}, {"eos_token", tokens.back()}};
  const std::string program = read_template(family.name);
  return tokenizer::Tokenizer::from_json(as_bytes(root.dump()), as_bytes(config.dump()), {},
                                         as_bytes(program))
      .value();
}

const ChatOptions kToday{.now = tokenizer::CivilTime{2026, 11, 29}};

// One conversation with a model that answers what it is told to.
class Talk {
 public:
  explicit Talk(const Family& family)
      : tokenizer_(tokenizer_of(family)), turns_(ChatTurns::make(tokenizer_, "").value()) {}

  std::string ask(const std::string& text, const std::string& system = {}) {
    const Result<Ids> ids = turns_.ask(tokens_, system, text, kToday);
    if (!ids) return ids.error().message;
    append_ids(tokens_, *ids);
    return tokenizer_.decode(*ids);
  }
  void answer(const std::string& text) { append(text); }
  void end_answer(const std::string& token) { append(token); }
  void append(const std::string& text) {
    append_ids(tokens_, *tokenizer_.encode(text, tokenizer::Tokenizer::Special::kParse));
  }
  Result<Ids> open_system(const std::string& text) {
    TQC_TRY_ASSIGN(tokens_, turns_.open_system(text, kToday));
    return tokens_;
  }
  std::string text() const { return tokenizer_.decode(tokens_); }
  std::string whole(const std::vector<ChatMessage>& messages) const {
    return turns_.conversation_text(messages, kToday).value();
  }
  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTurns& turns() const { return turns_; }

 private:
  tokenizer::Tokenizer tokenizer_;
  ChatTurns turns_;
  Ids tokens_;
};

std::string shown(const Family& family, const std::string& text) {
  const tokenizer::Tokenizer tokenizer = tokenizer_of(family);
  const Ids ids = tokenizer.encode(text, tokenizer::Tokenizer::Special::kParse).value();
  ShownAnswer answer(tokenizer);
  std::string all;
  for (const std::int32_t id : ids) all += answer.add(id);
  return all;
}

TEST(ShownAnswer, ShowsTheFinalChannelAndThoughtsBeforeIt) {
  const Family oss = families()[6];
  ASSERT_EQ(oss.name, "gpt-oss");
  const std::string start = "<|start|>assistant", final = "<|channel|>final<|message|>";
  EXPECT_EQ(shown(oss, final + "Yes."), "Yes.");
  EXPECT_EQ(
      shown(oss, "<|channel|>analysis<|message|>Hm.<|end|>" + start + final + "Yes.<|return|>"),
      "<think>\nHm.\n</think>\n\nYes.<|return|>");
  EXPECT_EQ(
      shown(oss, "<|channel|>analysis<|message|>Hm.<|end|>" + start +
                     "<|channel|>commentary to=x<|message|>So.<|end|>" + start + final + "Yes."),
      "<think>\nHm.So.\n</think>\n\nYes.");
  // What is cut off, or in no channel.
  EXPECT_EQ(shown(oss, "<|channel|>analysis<|message|>Hm"), "<think>\nHm");
  EXPECT_EQ(shown(oss, "<|channel|>anal"), "");
  EXPECT_EQ(shown(oss, "Yes, analysis."), "Yes, analysis.");
  EXPECT_EQ(shown(oss, "<|message|>Yes."), "Yes.");
  // A vocabulary without channels.
  EXPECT_EQ(shown(families()[0], "<|channel|>final<|message|>Yes."),
            "<|channel|>final<|message|>Yes.");
}

// "t:" text, "h:" thoughts, "f(name):" a call of a function.
std::string parts(const Family& family, const std::string& text) {
  const tokenizer::Tokenizer tokenizer = tokenizer_of(family);
  AnswerParts answer(tokenizer);
  std::string all;
  const auto ids = tokenizer.encode(text, tokenizer::Tokenizer::Special::kParse);
  for (const std::int32_t id : *ids) {
    const AnswerParts::Piece piece = answer.add(id);
    if (piece.begins || (all.empty() && !piece.text.empty())) {
      all += piece.kind == AnswerParts::Kind::kText       ? "t:"
             : piece.kind == AnswerParts::Kind::kThoughts ? "h:"
                                                          : "f(" + answer.function() + "):";
    }
    all += piece.text;
  }
  return all;
}

TEST(AnswerParts, AreTextThoughtsAndCalls) {
  const Family oss = families()[6];
  const std::string start = "<|start|>assistant", channel = "<|channel|>", message = "<|message|>";
  const std::string thought = channel + "analysis" + message + "Hm.<|end|>" + start;
  EXPECT_EQ(parts(oss, thought + channel + "final" + message + "Yes."), "h:Hm.t:Yes.");
  EXPECT_EQ(parts(oss, thought + channel + "commentary to=functions.get_it <|constrain|>json" +
                           message + "{\"a\": 1}<|call|>"),
            "h:Hm.f(get_it):{\"a\": 1}");
  // Whom it is for may be before the channel, and at the very beginning, which the prompt leaves to
  // the answer.
  EXPECT_EQ(parts(oss, thought + " to=functions.a" + channel + "commentary json" + message + "{}"),
            "h:Hm.f(a):{}");
  EXPECT_EQ(parts(oss, " to=functions.a" + channel + "commentary" + message + "{}"), "f(a):{}");
  // A text for the user, and a call of what is no function of the client.
  EXPECT_EQ(parts(oss, channel + "commentary" + message + "I look.<|end|>" + start + channel +
                           "commentary to=browser.open" + message + "{}"),
            "t:I look.h:{}");
  EXPECT_EQ(parts(families()[0], "Yes."), "t:Yes.");
}

// Where the template repeats an answer as the model gave it, the tokens of all turns are the text
// of the whole conversation.
TEST(ChatTurns, AreTheConversationAsAWhole) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const bool has_system = family.name != "deepseek-r1";  // its system text has no mark before it
    Talk talk(family);
    talk.ask("Hi", has_system ? "Be kind." : "");
    // What the model writes around its answer, which the template repeats.
    const bool is_oss = family.name == "gpt-oss";
    talk.append(is_oss                     ? "<|channel|>final<|message|>Hello"
                : family.name == "llama-2" ? " Hello "
                : family.name == "glm-4"   ? "\nHello"
                                           : "Hello");
    if (family.name != "glm-4") talk.end_answer(is_oss ? "<|end|>" : family.tokens.back());
    if (family.name == "glm-4") talk.end_answer("<|user|>");
    talk.ask("Bye");
    std::vector<ChatMessage> messages = {
        {ChatRole::kUser, "Hi"}, {ChatRole::kAssistant, "Hello"}, {ChatRole::kUser, "Bye"}};
    if (has_system) messages.insert(messages.begin(), {ChatRole::kSystem, "Be kind."});
    std::string expected = talk.whole(messages);
    if (family.name == "deepseek-r1") {
      expected.insert(expected.find("Hello"), "<think>\n");  // what the request for an answer had
    }
    EXPECT_EQ(talk.text(), expected);
  }
}

TEST(ChatTurns, KeepSpecialTokensOfUsersAsText) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    Talk talk(family);
    const auto count = [&](const std::string& text) {
      const Ids ids = talk.turns().ask({}, "", text, kToday).value();
      return std::ranges::count_if(
          ids, [&](std::int32_t id) { return talk.tokenizer().is_special(id); });
    };
    std::string all;
    for (const std::string& token : family.tokens) all += token;
    EXPECT_EQ(count("x" + all + "x"), count("xx"));
  }
}

TEST(ChatTurns, CloseAnAnswerThatWasCutOff) {
  const auto next = [](const Family& family, const std::string& before) {
    Talk talk(family);
    talk.ask("Hi");
    talk.append(before);
    return talk.ask("Bye");
  };
  EXPECT_EQ(next({"qwen-3", {"<|im_start|>", "<|im_end|>"}}, "Hel"),
            "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(next({"qwen-3", {"<|im_start|>", "<|im_end|>"}}, "Hello<|im_end|>"),
            "\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  const Family oss = families()[6];
  EXPECT_EQ(next(oss, "<|channel|>final<|message|>Hel"),
            "<|end|><|start|>user<|message|>Bye<|end|><|start|>assistant");
  // The model ends its last message with another token than earlier ones have.
  EXPECT_EQ(next(oss, "<|channel|>final<|message|>Hello<|return|>"),
            "<|start|>user<|message|>Bye<|end|><|start|>assistant");
  EXPECT_EQ(next(families()[11], "\nHel"), "<|user|>\nBye<|assistant|>");
}

// The cache of a text has no turn to close.
TEST(ChatTurns, FollowATextWithoutTurns) {
  for (const auto& [index, expected] :
       {std::pair(2, "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"),
        std::pair(3, "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"),
        std::pair(11, "<|user|>\nBye<|assistant|>")}) {
    Talk talk(families()[static_cast<std::size_t>(index)]);
    talk.append("Once upon a time");
    EXPECT_EQ(talk.ask("Bye"), expected) << index;
  }
}

TEST(ChatTurns, FollowASystemTextAlone) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    if (family.name == "deepseek-r1") continue;
    Talk talk(family);
    const Result<Ids> opened = talk.open_system("Be kind.");
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_THAT(talk.text(), HasSubstr("Be kind."));
    talk.ask("Hi");
    EXPECT_EQ(talk.text(), talk.whole({{ChatRole::kSystem, "Be kind."}, {ChatRole::kUser, "Hi"}}));
  }
}

// Tokens that are known stay, whatever the template would write for them now.
TEST(ChatTurns, KeepTheTokensOfKnownAnswers) {
  Talk talk(families()[2]);
  const std::vector<ChatMessage> messages = {
      {ChatRole::kUser, "Hi"},
      {ChatRole::kAssistant, "<think>\nHm\n</think>\n\nHello"},
      {ChatRole::kUser, "Bye"}};
  Ids known = *talk.turns().conversation(std::span(messages).first(1), kToday);
  append_ids(known, {1, 2, 3});  // tokens that no text of this answer has
  append_ids(known, {*talk.tokenizer().find_token("<|im_end|>")});
  const Ids all = *talk.turns().conversation(messages, kToday, {2, known});
  ASSERT_GT(all.size(), known.size());
  EXPECT_TRUE(std::equal(known.begin(), known.end(), all.begin()));
  EXPECT_EQ(talk.tokenizer().decode(std::span(all).subspan(known.size())),
            "\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTurns, NeedATemplate) {
  const tokenizer::Tokenizer bare =
      tokenizer::Tokenizer::from_json(as_bytes(tiny::tokenizer().dump()), {}).value();
  const auto none = ChatTurns::make(bare, "");
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(none.error().message, HasSubstr("the model has no chat template"));
  EXPECT_TRUE(ChatTurns::make(bare, "chatml").ok());
  EXPECT_TRUE(ChatTurns::make(bare, "{{ messages }}").ok());
  EXPECT_THAT(ChatTurns::make(bare, "{% x %}").error().message, HasSubstr("line 1"));
  Json root = tiny::tokenizer();
  root["added_tokens"] = Json::array();
  const tokenizer::Tokenizer plain =
      tokenizer::Tokenizer::from_json(as_bytes(root.dump()), {}).value();
  EXPECT_THAT(ChatTurns::make(plain, "chatml").error().message,
              HasSubstr("the model has no token <|im_start|>"));
}

}  // namespace chat_turns_test
}  // namespace tqcache::session
