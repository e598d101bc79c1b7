// The turns of a chat template are those that it writes into a whole conversation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {
namespace template_dialogue_test {

using tiny::Json;
using tokenizer::ChatRole;
using tokenizer::ChatTemplate;
using tokenizer::Tokenizer;

// A vocabulary of bytes with these special tokens and <s>.
Tokenizer tokenizer_of(std::vector<std::string> tokens) {
  Json root = tiny::tokenizer();
  root["added_tokens"] = Json::array();
  int id = 261;  // behind those of tiny::tokenizer()
  tokens.insert(tokens.begin(), "<s>");
  for (const std::string& token : tokens) {
    root["added_tokens"].push_back(tiny::added_token(id++, token, true));
  }
  const Json config = {{"bos_token", "<s>"}, {"eos_token", tokens.back()}};
  return Tokenizer::from_json(as_bytes(root.dump()), as_bytes(config.dump())).value();
}

Ids encoded(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, Tokenizer::Special::kAsText).value();
}

void expect_turns_of(const Tokenizer& tokenizer, const std::string& program) {
  const ChatTemplate chat_template = ChatTemplate::parse(program).value();
  const auto found = template_dialogue(tokenizer, chat_template);
  ASSERT_TRUE(found) << found.error().message;
  const std::vector<tokenizer::ChatMessage> messages = {
      {ChatRole::kUser, "One."}, {ChatRole::kAssistant, "Two."}, {ChatRole::kUser, "Three."}};
  const tokenizer::ChatText whole =
      chat_template
          .render(messages, {.named_tokens = tokenizer.named_tokens(), .now = kTemplateDay})
          .value();
  const Ids ids = join({found->begin, found->user(encoded(tokenizer, "One.")),
                        found->assistant(encoded(tokenizer, "Two.")),
                        found->user(encoded(tokenizer, "Three.")), found->open_answer()});
  EXPECT_EQ(tokenizer.decode(ids), whole.text);
  EXPECT_EQ(ids, tokenizer.encode(whole.text, Tokenizer::Special::kParse).value());
}

std::string look_alike(const std::string& name) {
  std::ifstream file(TQCACHE_TEST_DATA "/chat_templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(TemplateDialogue, HasTheTokensOfTheConversation) {
  expect_turns_of(tokenizer_of({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
                  look_alike("llama-3"));
  expect_turns_of(tokenizer_of({"<start_of_turn>", "<end_of_turn>"}), look_alike("gemma-3"));
  expect_turns_of(tokenizer_of({"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}),
                  look_alike("granite-3"));
  const Tokenizer chatml = tokenizer_of({"<|im_start|>", "<|im_end|>"});
  // A default system text, and an answer that begins with a thought.
  expect_turns_of(chatml,
                  "{{ bos_token }}<|im_start|>system\nBe kind.<|im_end|>\n"
                  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                  "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
                  "{% endif %}");
}

TEST(TemplateDialogue, RefusesTemplatesThatLeaveTextsOut) {
  const Tokenizer tokenizer = tokenizer_of({"<|end|>"});
  const auto refused = [&](const std::string& program) {
    return template_dialogue(tokenizer, ChatTemplate::parse(program).value()).error();
  };
  EXPECT_EQ(refused("{{ messages[0].content }}").code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused("no texts").code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused("{{ raise_exception('no') }}").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused("A{{ messages[0].content }}B{{ messages[1].content }}C"
                    "{{ messages[2].content }}")
                .code,
            ErrorCode::kUnsupported);
}

}  // namespace template_dialogue_test
}  // namespace tqcache::research
