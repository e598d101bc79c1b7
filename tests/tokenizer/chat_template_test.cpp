// Conversations as text, and templates known by what they contain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace chat_template_test {

using testing::HasSubstr;

const std::vector<ChatMessage> kTalk = {
    {ChatRole::kUser, " Hi "}, {ChatRole::kAssistant, "Hello"}, {ChatRole::kUser, "Bye"}};

std::vector<ChatMessage> with_system(const std::string& text) {
  std::vector<ChatMessage> messages = {{ChatRole::kSystem, text}};
  messages.insert(messages.end(), kTalk.begin(), kTalk.end());
  return messages;
}

ChatTemplate::RenderOptions beginning_with(const char* token) {
  ChatTemplate::RenderOptions options;
  options.begin_token = token;
  return options;
}

std::string rendered(const ChatTemplate& form, const std::vector<ChatMessage>& messages) {
  return form.render(messages, beginning_with("<s>"))->text;
}

std::string by_name(const char* name, const std::vector<ChatMessage>& messages) {
  return rendered(ChatTemplate::by_name(name).value(), messages);
}

ChatFormat recognized(std::string_view jinja) { return ChatTemplate::recognize(jinja)->format(); }

TEST(ChatTemplate, WritesEveryFamilysTurns) {
  EXPECT_EQ(by_name("chatml", kTalk),
            "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(by_name("gemma", kTalk),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(by_name("llama2", kTalk), "<s>[INST] Hi [/INST] Hello </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(by_name("llama3", kTalk),
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(by_name("phi3", kTalk),
            "<|user|>\n Hi <|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nBye<|end|>\n"
            "<|assistant|>\n");
  EXPECT_EQ(by_name("mistral", kTalk), "<s>[INST]  Hi  [/INST]Hello</s>[INST] Bye [/INST]");
  EXPECT_EQ(by_name("mistral-v1", kTalk), "<s> [INST]  Hi  [/INST] Hello</s> [INST] Bye [/INST]");
  EXPECT_EQ(by_name("mistral-v3", kTalk), "<s>[INST]  Hi [/INST] Hello</s>[INST] Bye[/INST]");
  EXPECT_EQ(by_name("mistral-tekken", kTalk), "<s>[INST] Hi [/INST]Hello</s>[INST]Bye[/INST]");
}

TEST(ChatTemplate, PutsTheSystemsMessageWhereTheFamilyHasIt) {
  const auto begin = [](const char* name) {
    const std::string text = by_name(name, with_system("Be kind."));
    return text.substr(0, text.find("Hi"));
  };
  EXPECT_EQ(begin("chatml"), "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n ");
  EXPECT_EQ(begin("gemma"), "<s><start_of_turn>user\nBe kind.\n\n");
  EXPECT_EQ(begin("llama2"), "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n");
  EXPECT_EQ(begin("llama3"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n");
  EXPECT_EQ(begin("phi3"), "<|system|>\nBe kind.<|end|>\n<|user|>\n ");
  EXPECT_EQ(begin("mistral"), "<s>[INST] Be kind.\n\n ");
}

// A conversation that goes on is what it would have been at once.
TEST(ChatTemplate, GoesOnWhereTheTurnsBeforeEnded) {
  for (const ChatFormat& format : chat_formats()) {
    const ChatTemplate form = ChatTemplate::by_name(format.name).value();
    auto options = beginning_with("<s>");
    options.asks = false;
    const std::string first = form.render(std::span(kTalk).first(2), options)->text;
    options.begins = false;
    options.asks = true;
    const std::string rest = form.render(std::span(kTalk).subspan(2), options)->text;
    EXPECT_EQ(first + rest, rendered(form, kTalk)) << format.name;
  }
}

TEST(ChatTemplate, MarksTheRangesOfUserText) {
  for (const ChatFormat& format : chat_formats()) {
    const ChatTemplate form = ChatTemplate::by_name(format.name).value();
    const ChatText text = form.render(with_system("Be kind."), {}).value();
    std::vector<std::string> said;
    for (const auto& range : text.plain) {
      said.push_back(text.text.substr(range.begin, range.end - range.begin));
    }
    const std::string hi = format.trims ? "Hi" : " Hi ";
    EXPECT_THAT(said, testing::ElementsAre("Be kind.", hi, "Hello", "Bye")) << format.name;
  }
}

TEST(ChatTemplate, RefusesMessagesThatAFamilyHasNoPlaceFor) {
  const ChatTemplate chatml = ChatTemplate::by_name("chatml").value();
  const auto late = chatml.render(std::vector<ChatMessage>{kTalk[0], {ChatRole::kSystem, "x"}}, {});
  EXPECT_EQ(late.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(late.error().message, "chat: a system message behind others");

  const ChatTemplate gemma2 =
      ChatTemplate::recognize("<start_of_turn> raise_exception('System role not supported')")
          .value();
  const auto system = gemma2.render(with_system("x"), {});
  EXPECT_EQ(system.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(system.error().message, "the model's chat template has no system turn");

  ChatTemplate::RenderOptions silent;
  silent.thinks = false;
  const auto no_thoughts = gemma2.render(kTalk, silent);
  EXPECT_EQ(no_thoughts.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(no_thoughts.error().message, HasSubstr("without thinking first"));
}

TEST(ChatTemplate, RefusesUnknownNamesAndTemplatesAndTellsThoseItKnows) {
  const std::string names =
      "chatml, gemma, llama2, llama3, mistral, mistral-v1, mistral-v3, mistral-tekken, phi3";
  EXPECT_EQ(ChatTemplate::names(), names);
  const auto name = ChatTemplate::by_name("\x1b[2J");
  EXPECT_EQ(name.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(name.error().message, "chat template \"?[2J\": none of " + names);
  for (const char* jinja : {"", "{{ messages }}", "<|im_start|>", "<|user|>{{ eos_token }}",
                            "<|im_start|>user<|im_sep|><|im_end|>", "[INST][SYSTEM_PROMPT]"}) {
    const auto unknown = ChatTemplate::recognize(jinja);
    ASSERT_FALSE(unknown.ok()) << jinja;
    EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(unknown.error().message, "the model's chat template is none of " + names);
  }
}

TEST(ChatTemplate, KnowsFamiliesByTheirMarks) {
  EXPECT_EQ(recognized("'<|im_start|>' + role + '<|im_end|>'").name, "chatml");
  EXPECT_EQ(recognized("'<start_of_turn>' + role").name, "gemma");
  EXPECT_EQ(recognized("bos_token + '[INST] <<SYS>>'").name, "llama2");
  EXPECT_EQ(recognized("'<|start_header_id|>'").name, "llama3");
  EXPECT_EQ(recognized("'<|user|>' + '\\n' + content + '<|end|>'").name, "phi3");
  EXPECT_EQ(recognized("'[INST] ' + content + ' [/INST]'").name, "mistral");
  EXPECT_EQ(recognized("\" [INST] \" + content + \" [/INST]\"").name, "mistral-v1");
  EXPECT_EQ(recognized("\"[INST] \" + content + \"[/INST]\"").name, "mistral-v3");
  EXPECT_EQ(recognized("\"[INST]\" + content + \"[/INST]\"").name, "mistral-tekken");
}

TEST(ChatTemplate, BeginsWithATokenWhereTheTemplateDoes) {
  EXPECT_FALSE(recognized("<|user|><|end|>").begins_with_token);
  EXPECT_TRUE(recognized("{{ bos_token }}<|user|><|end|>").begins_with_token);
  EXPECT_FALSE(recognized("'<start_of_turn>' + role").begins_with_token);
}

TEST(ChatTemplate, TakesWhatTheSystemSaysByDefault) {
  const char* qwen2 =
      R"({{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}<|im_start|>)";
  EXPECT_EQ(recognized(qwen2).default_system, "You are a helpful assistant.");
  const ChatTemplate form = ChatTemplate::recognize(qwen2).value();
  EXPECT_THAT(rendered(form, kTalk), testing::StartsWith("<|im_start|>system\nYou are a helpful"));
  EXPECT_THAT(rendered(form, with_system("Be kind.")),
              testing::StartsWith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user"));
  const char* computed = R"('<|im_start|>system\n' + messages[0].content + '<|im_end|>\n')";
  EXPECT_EQ(recognized(computed).default_system, "");
}

TEST(ChatTemplate, KnowsModelsThatThink) {
  const std::string turns = "<|im_start|><|im_end|>{% if add_generation_prompt %}";
  EXPECT_EQ(recognized(turns).asks, "<|im_start|>assistant\n");
  EXPECT_EQ(recognized(turns).asks_silent, "");
  const ChatFormat qwen3 = recognized(turns + R"(enable_thinking '<think>\n\n</think>\n\n')");
  EXPECT_EQ(qwen3.asks, "<|im_start|>assistant\n");
  EXPECT_EQ(qwen3.asks_silent, "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  const ChatFormat always = recognized(turns + R"('<|im_start|>assistant\n<think>\n')");
  EXPECT_EQ(always.asks, "<|im_start|>assistant\n<think>\n");
}

TEST(ChatTemplate, SaysTheDatesOfLlama31) {
  const ChatTemplate form =
      ChatTemplate::recognize("bos_token <|start_header_id|> Cutting Knowledge Date").value();
  EXPECT_THAT(rendered(form, kTalk),
              testing::StartsWith(
                  "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
                  "December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user"));
}

}  // namespace chat_template_test
}  // namespace tqcache::tokenizer
