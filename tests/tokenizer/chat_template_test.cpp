// Conversations as text: what a template sees, and what of its text is whose.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace chat_template_test {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<ChatMessage> kTalk = {
    {ChatRole::kUser, " Hi "}, {ChatRole::kAssistant, "Hello"}, {ChatRole::kUser, "Bye"}};

constexpr const char* kEach = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

Result<ChatText> rendered(std::string_view jinja, const std::vector<ChatMessage>& messages,
                          const ChatTemplate::RenderOptions& options = {}) {
  TQC_TRY_ASSIGN(const ChatTemplate parsed, ChatTemplate::parse(jinja));
  return parsed.render(messages, options);
}

std::string text_of(std::string_view jinja, const std::vector<ChatMessage>& messages = {},
                    const ChatTemplate::RenderOptions& options = {}) {
  const Result<ChatText> text = rendered(jinja, messages, options);
  return text ? text->text : text.error().message;
}

std::vector<std::string> plain_parts(const ChatText& text) {
  std::vector<std::string> parts;
  for (const auto& range : text.plain) {
    parts.push_back(text.text.substr(range.begin, range.end - range.begin));
  }
  return parts;
}

TEST(ChatTemplate, WritesChatMlByName) {
  const ChatTemplate chatml = ChatTemplate::by_name("chatml").value();
  EXPECT_EQ(chatml.render(kTalk, {})->text,
            "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  ChatTemplate::RenderOptions silent;
  silent.thinks = false;
  EXPECT_THAT(chatml.render(kTalk, silent)->text,
              testing::EndsWith("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  silent.asks = false;
  EXPECT_THAT(chatml.render(kTalk, silent)->text, testing::EndsWith("Bye<|im_end|>\n"));

  const auto unknown = ChatTemplate::by_name("\x1b[2J");
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(unknown.error().message, "chat template \"?[2J\": none of chatml");
}

TEST(ChatTemplate, GivesTheTemplateWhatTransformersGivesIt) {
  ChatTemplate::RenderOptions options;
  EXPECT_EQ(text_of(kEach, kTalk), "<user> Hi <assistant>Hello<user>Bye");
  EXPECT_EQ(text_of("{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ bos_token }}"),
            "TrueNoneNone");
  options.named_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(text_of("{{ bos_token + 'a' + eos_token }}", {}, options), "<s>a</s>");
  EXPECT_EQ(text_of("{{ strftime_now is defined }}", {}, options), "False");
  options.now = CivilTime{2026, 11, 29, 8, 5, 0};
  EXPECT_EQ(text_of("{{ strftime_now('%d %b %Y') }}", {}, options), "29 Nov 2026");
}

TEST(ChatTemplate, GivesToolsAndFieldsInTheirOrder) {
  ChatTemplate::RenderOptions options;
  options.tools = R"([{"type": "function", "function": {"name": "f", "a": 1.0, "Z": "é"}}])";
  EXPECT_EQ(text_of("{{ tools[0] | tojson }}", {}, options),
            R"({"type": "function", "function": {"name": "f", "a": 1.0, "Z": "é"}})");
  const ChatMessage called{ChatRole::kAssistant, "",
                           R"({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]})"};
  EXPECT_EQ(text_of("{{ messages[0].tool_calls[0].function.name }}", {called}), "f");
  EXPECT_EQ(text_of("{{ messages[0].tool_calls is defined }}", {kTalk[0]}), "False");
  const ChatMessage result{ChatRole::kTool, "4"};
  EXPECT_EQ(text_of(kEach, {result}), "<tool>4");
}

// A special token in a message, a tool or a field stays text.
TEST(ChatTemplate, MarksWhatIsNotItsOwn) {
  EXPECT_THAT(plain_parts(*rendered(kEach, kTalk)), ElementsAre(" Hi ", "Hello", "Bye"));
  EXPECT_THAT(plain_parts(*rendered("<|end|>{{ messages[0].content | trim }}<|end|>", kTalk)),
              ElementsAre("Hi"));
  ChatTemplate::RenderOptions options;
  options.tools = R"([{"name": "<|end|>"}])";
  EXPECT_THAT(plain_parts(*rendered("{{ tools | tojson }}", {}, options)),
              ElementsAre("name", "<|end|>"));
  const ChatMessage called{ChatRole::kAssistant, "", R"({"id": "<|end|>"})"};
  EXPECT_THAT(plain_parts(*rendered("<|end|>{{ messages[0].id }}", {called})),
              ElementsAre("<|end|>"));
}

TEST(ChatTemplate, FindsTheMessageThatIsSought) {
  ChatTemplate::RenderOptions options;
  options.seek = 1;
  const ChatText text = rendered(kEach, kTalk, options).value();
  ASSERT_TRUE(text.sought);
  EXPECT_EQ(text.text.substr(text.sought->begin, text.sought->end - text.sought->begin), "Hello");
  EXPECT_FALSE(rendered("{{ messages[0].content }}", kTalk, options)->sought);
}

TEST(ChatTemplate, KnowsWhetherItCanAvoidThinking) {
  ChatTemplate::RenderOptions silent;
  silent.thinks = false;
  EXPECT_EQ(text_of("{{ enable_thinking }}", {}, silent), "False");
  EXPECT_EQ(text_of("{{ thinking }}", {}, silent), "False");
  EXPECT_EQ(text_of("{{ enable_thinking is defined }}"), "False");
  const auto cannot = rendered("{{ messages[0].thinking }}", kTalk, silent);
  EXPECT_EQ(cannot.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(cannot.error().message, HasSubstr("without thinking first"));
}

TEST(ChatTemplate, SaysWhatItRefuses) {
  const auto code = [](std::string_view jinja, const std::vector<ChatMessage>& messages) {
    return rendered(jinja, messages).error().code;
  };
  EXPECT_EQ(text_of("\n{{ x.y }}"), "chat template: line 2: \"x\" is undefined");
  EXPECT_EQ(text_of("\n{% block a %}"),
            "chat template: line 2: the block \"block\" is not supported");
  EXPECT_EQ(code("{{ raise_exception('no') }}", kTalk), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("{{ 1 + 'a' }}", kTalk), ErrorCode::kUnsupported);
  EXPECT_EQ(code("{{ 'a' * 99999999999 }}", kTalk), ErrorCode::kTooLarge);
  EXPECT_EQ(code(kEach, {{ChatRole::kUser, "\xff"}}), ErrorCode::kCorrupt);
  EXPECT_EQ(code(kEach, {{ChatRole::kUser, "a", "[1]"}}), ErrorCode::kCorrupt);
  EXPECT_EQ(code(kEach, {{ChatRole::kUser, "a", "{"}}), ErrorCode::kCorrupt);
}

}  // namespace chat_template_test
}  // namespace tqcache::tokenizer
