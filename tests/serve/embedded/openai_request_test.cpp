// What clients may ask for, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tqcache/serve/embedded/client_request.h"

namespace tqcache::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tokenizer::ChatRole;

constexpr std::string_view kHi = R"("messages": [{"role": "user", "content": "Hi"}])";

std::string with_hi(const std::string& fields) {
  return "{" + std::string(kHi) + (fields.empty() ? "" : ", ") + fields + "}";
}

ChatRequest read_chat(const std::string& body) {
  ChatRequest request;
  if (const MaybeApiError error = read_chat_request(body, request)) {
    throw std::runtime_error(error->message);
  }
  return request;
}

ApiError refused(const std::string& body) {
  ChatRequest request;
  const MaybeApiError error = read_chat_request(body, request);
  if (!error) throw std::runtime_error("accepted: " + body.substr(0, 200));
  return *error;
}

TEST(OpenAiRequest, ReadsAConversation) {
  const ChatRequest request = read_chat(
      R"({"model": "m", "messages": [{"role": "developer", "content": "Be brief."},
          {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": "c", "refusal": null, "tool_calls": null},
          {"role": "user", "content": ""}],
          "temperature": 0, "top_p": 0.5, "seed": -1, "max_tokens": 7, "stop": ["x", "yz"],
          "logit_bias": {"5": -100, "6": 2.5}, "stream": true,
          "stream_options": {"include_usage": true}, "user": "me", "n": 1, "tools": [],
          "frequency_penalty": 0, "presence_penalty": 0.0, "response_format": {"type": "text"}})");
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(request.messages[1].text, "ab");
  EXPECT_EQ(request.messages[2].role, ChatRole::kAssistant);
  EXPECT_EQ(request.messages[3].text, "");
  const GenerationSettings& settings = request.settings;
  EXPECT_EQ(settings.model, "m");
  EXPECT_EQ(settings.sampling.temperature, 0);
  EXPECT_EQ(settings.sampling.top_p, 0.5f);
  EXPECT_TRUE(settings.has_seed);
  EXPECT_EQ(settings.sampling.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(settings.max_tokens, 7);
  EXPECT_THAT(settings.stops, ElementsAre("x", "yz"));
  ASSERT_EQ(settings.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(settings.sampling.logit_bias[0].bias, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(settings.sampling.logit_bias[1].bias, 2.5f);
  EXPECT_TRUE(settings.stream);
  EXPECT_TRUE(settings.include_usage);
}

TEST(OpenAiRequest, HasTheDefaultsOfOpenAi) {
  const ChatRequest request = read_chat(with_hi(""));
  EXPECT_EQ(request.settings.sampling.temperature, 1);
  EXPECT_EQ(request.settings.sampling.top_p, 1);
  EXPECT_EQ(request.settings.sampling.repeat_penalty, 1);
  EXPECT_FALSE(request.settings.max_tokens);
  EXPECT_FALSE(request.settings.stream);
  EXPECT_EQ(request.thinking, Thinking::kAllowed);
  CompletionRequest completion;
  EXPECT_FALSE(read_completion_request(R"({"prompt": "a"})", completion));
  EXPECT_EQ(completion.settings.max_tokens, 16);
}

TEST(OpenAiRequest, TakesNullForAbsent) {
  const ChatRequest request = read_chat(
      with_hi(R"("stop": null, "seed": null, "max_tokens": null, "tools": null, "logprobs": null,
                 "stream": null, "temperature": null, "no_such_field": null)"));
  EXPECT_EQ(request.settings.sampling.temperature, 1);
  EXPECT_FALSE(request.settings.has_seed);
}

TEST(OpenAiRequest, TheNewerNameOfALimitWins) {
  EXPECT_EQ(
      read_chat(with_hi(R"("max_tokens": 3, "max_completion_tokens": 4)")).settings.max_tokens, 4);
}

TEST(OpenAiRequest, CanAskNotToThink) {
  EXPECT_EQ(read_chat(with_hi(R"("chat_template_kwargs": {"enable_thinking": false})")).thinking,
            Thinking::kForbidden);
}

struct Refusal {
  const char* fields;
  const char* param;
};

// Ignoring these would change the answer.
TEST(OpenAiRequest, RefusesByNameWhatItCannotDo) {
  for (const Refusal& each : std::initializer_list<Refusal>{
           {R"("n": 2)", "n"},
           {R"("frequency_penalty": 0.5)", "frequency_penalty"},
           {R"("presence_penalty": -1)", "presence_penalty"},
           {R"("logprobs": true)", "logprobs"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("tools": [{"type": "web_search"}])", "tools[0].type"},
           {R"("tool_choice": "required")", "tool_choice"},
           {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
           {R"("functions": [{}])", "functions"},
           {R"("response_format": {"type": "json_object"})", "response_format"},
           {R"("modalities": ["text", "audio"])", "modalities"},
           {R"("ignore_eos": true)", "ignore_eos"},
           {R"("dry_multiplier": 0.8)", "dry_multiplier"},
           {R"("stream_options": {"x": 1})", "stream_options.x"}}) {
    const ApiError error = refused(with_hi(each.fields));
    EXPECT_EQ(error.status, 400) << each.fields;
    EXPECT_EQ(error.param, each.param) << each.fields;
    EXPECT_THAT(error.message, HasSubstr(each.param));
    EXPECT_THAT(error.code, testing::AnyOf("unsupported_parameter", "unknown_parameter"))
        << each.fields;
  }
}

TEST(OpenAiRequest, RefusesWrongTypesAndRanges) {
  for (const Refusal& each : std::initializer_list<Refusal>{
           {R"("temperature": "hot")", "temperature"},
           {R"("temperature": -1)", "temperature"},
           {R"("temperature": 1e300)", "temperature"},
           {R"("top_p": 1.5)", "top_p"},
           {R"("max_tokens": 0)", "max_tokens"},
           {R"("max_tokens": -1)", "max_tokens"},
           {R"("max_tokens": 1.5)", "max_tokens"},
           {R"("max_tokens": 99999999999999999999999)", "max_tokens"},
           {R"("max_tokens": 18446744073709551615)", "max_tokens"},
           {R"("max_tokens": "9")", "max_tokens"},
           {R"("seed": 0.5)", "seed"},
           {R"("stop": 5)", "stop"},
           {R"("stop": "")", "stop"},
           {R"("stop": ["a", ""])", "stop"},
           {R"("stop": ["a", 1])", "stop"},
           {R"("stop": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17])", "stop"},
           {R"("logit_bias": [1])", "logit_bias"},
           {R"("logit_bias": {"x": 1})", "logit_bias"},
           {R"("logit_bias": {"-1": 1})", "logit_bias"},
           {R"("logit_bias": {"1": 101})", "logit_bias"},
           {R"("logit_bias": {"99999999999": 1})", "logit_bias"},
           {R"("stream": "yes")", "stream"},
           {R"("stream_options": 1)", "stream_options"},
           {R"("model": 1)", "model"},
           {R"("chat_template_kwargs": {"enable_thinking": 1})",
            "chat_template_kwargs.enable_thinking"}}) {
    const ApiError error = refused(with_hi(each.fields));
    EXPECT_EQ(error.status, 400) << each.fields;
    EXPECT_EQ(error.param, each.param) << each.fields;
  }
  EXPECT_EQ(refused(with_hi(R"("stop": ")" + std::string(513, 'a') + '"')).param, "stop");
}

TEST(OpenAiRequest, RefusesWrongMessages) {
  for (const Refusal& each : std::initializer_list<Refusal>{
           {R"({})", "messages"},
           {R"({"messages": null})", "messages"},
           {R"({"messages": []})", "messages"},
           {R"({"messages": "Hi"})", "messages"},
           {R"({"messages": ["Hi"]})", "messages[0]"},
           {R"({"messages": [{}]})", "messages[0].role"},
           {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
           {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
           {R"({"messages": [{"role": "user", "content": []}]})", "messages[0].content"},
           {R"({"messages": [{"role": "robot", "content": "x"}]})", "messages[0].role"},
           {R"({"messages": [{"role": "tool", "content": "x"}]})", "messages[0].tool_call_id"},
           {R"({"messages": [{"role": "tool", "content": null, "tool_call_id": "a"}]})",
            "messages[0].content"},
           {R"({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]})",
            "messages[0].tool_call_id"},
           {R"({"messages": [{"role": "user", "content": "x", "reasoning_content": "a"}]})",
            "messages[0].reasoning_content"},
           {R"({"messages": [{"role": "assistant", "content": null}]})", "messages[0].content"},
           {R"({"messages": [{"role": "assistant", "tool_calls": []}]})", "messages[0].content"},
           {R"({"messages": [{"role": "user", "content": "x", "name": "Eve"}]})",
            "messages[0].name"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
            "messages[0].content[0].type"},
           {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
            "messages[0].content[0].text"},
           {R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]})",
            "messages[0].tool_calls[0]"},
           {R"({"messages": [{"role": "assistant", "tool_calls": {"id": "a"}}]})",
            "messages[0].tool_calls"},
           {R"({"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "a"}]}]})",
            "messages[0].tool_calls"},
           {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "x"}]}]})",
            "messages[0].tool_calls[0].type"},
           {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]})",
            "messages[0].tool_calls[0].function"},
           {R"({"messages": [{"role": "assistant", "tool_calls":
                [{"id": "a", "function": {"name": "f", "arguments": "{\"a\": "}}]}]})",
            "messages[0].tool_calls[0].function.arguments"},
           {R"({"messages": [{"role": "assistant", "tool_calls":
                [{"id": "a", "function": {"name": "f", "arguments": {}}}]}]})",
            "messages[0].tool_calls[0].function.arguments"},
           {R"({"messages": [{"role": "assistant", "tool_calls":
                [{"id": "a", "function": {"name": "f", "arguments": "[1]"}}]}]})",
            "messages[0].tool_calls[0].function.arguments"},
           {R"({"messages": [{"role": "user", "content": "x"},
                             {"role": "system", "content": "y"}]})",
            "messages[1].role"}}) {
    const ApiError error = refused(each.fields);
    EXPECT_EQ(error.status, 400) << each.fields;
    EXPECT_EQ(error.param, each.param) << each.fields;
  }
}

TEST(OpenAiRequest, RefusesHostileBodies) {
  const std::string deep(100'000, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("5"),
        std::string("{\"a\": 1e999}"), std::string("{\"a\": 1, \"a\": 2}"),
        std::string("\xff\xfe{}"), std::string("{\"messages\": \"\xc3\"}"),
        std::string("{\"a\":\0 1}", 9), deep, "{\"messages\": " + deep,
        "{\"messages\": " + deep + std::string(100'000, ']') + "}",
        with_hi("\"stop\": \"\xed\xa0\x80\"")}) {
    const ApiError error = refused(body);
    EXPECT_EQ(error.status, 400) << body.substr(0, 40);
    const auto object = nlohmann::json::parse(error_json(error, Dialect::kChat));
    EXPECT_EQ(object["error"]["type"], "invalid_request_error");
  }
  // The names of fields are those of a stranger.
  const ApiError odd = refused(with_hi("\"" + std::string(10'000, 'x') + "\": 1"));
  EXPECT_LT(odd.message.size(), 200u);
}

TEST(OpenAiRequest, ReadsToolsAsTheyAreWritten) {
  const std::string list =
      R"([{"type": "function", "function": {"strict": true, "name": "look_up",
          "parameters": {"type": "object", "properties": {"z": {}, "a": {"default": 1.50}}}}}])";
  const ChatRequest request =
      read_chat(with_hi(R"("to\u006fls" : )" + list + R"(, "tool_choice": "auto")"));
  EXPECT_EQ(request.tools, list);
  EXPECT_FALSE(request.settings.one_call);
  // A model that may not call tools is not told of them.
  EXPECT_EQ(read_chat(with_hi(R"("tool_choice": "none", "tools": )" + list)).tools, "");
  EXPECT_EQ(read_chat(with_hi(R"("tools": [])")).tools, "");
  EXPECT_TRUE(
      read_chat(with_hi(R"("parallel_tool_calls": false, "tools": )" + list)).settings.one_call);
  for (const Refusal& each : std::initializer_list<Refusal>{
           {R"("tools": {"type": "function"})", "tools"},
           {R"("tools": [7])", "tools[0]"},
           {R"("tools": [{"type": "function"}])", "tools[0].function"},
           {R"("tools": [{"type": "function", "function": "f"}])", "tools[0].function"},
           {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name"},
           {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}])",
            "tools[0].function.parameters"},
           {R"("tools": [{"type": "function", "function": {"name": "f", "x": 1}}])",
            "tools[0].function.x"},
           {R"("tool_choice": 5)", "tool_choice"}}) {
    EXPECT_EQ(refused(with_hi(each.fields)).param, each.param) << each.fields;
  }
}

TEST(OpenAiRequest, ReadsCallsAndTheirResults) {
  const ChatRequest request = read_chat(
      R"({"messages": [{"role": "user", "content": "Hi"},
          {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls":
            [{"id": "c1", "index": 0, "type": "function",
              "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": \"\\n\"}"}}]},
          {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
          {"role": "assistant", "content": "It is 42.", "tool_calls": []}]})");
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[1].text, "");
  EXPECT_EQ(request.messages[1].fields,
            R"({"content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"c1",)"
            R"("type":"function","function":{"name":"f","arguments":{"z": 1, "a": "\n"}}}]})");
  EXPECT_EQ(request.messages[2].role, ChatRole::kTool);
  EXPECT_EQ(request.messages[2].text, "42");
  EXPECT_EQ(nlohmann::json::parse(request.messages[2].fields),
            (nlohmann::json{{"tool_call_id", "c1"}, {"name", "f"}}));
  EXPECT_EQ(request.messages[3].fields, "");
}

TEST(OpenAiRequest, ReadsPrompts) {
  CompletionRequest request;
  EXPECT_FALSE(read_completion_request(R"({"prompt": [1, 2, 3], "max_tokens": 5})", request));
  EXPECT_THAT(request.ids, ElementsAre(1, 2, 3));
  CompletionRequest single;
  EXPECT_FALSE(read_completion_request(R"({"prompt": ["a b"]})", single));
  EXPECT_EQ(single.text, "a b");
  for (const char* body :
       {R"({})", R"({"prompt": ""})", R"({"prompt": []})", R"({"prompt": ["a", "b"]})",
        R"({"prompt": [1, "a"]})", R"({"prompt": [-1]})", R"({"prompt": [1.5]})",
        R"({"prompt": [4294967296]})", R"({"prompt": {"a": 1}})", R"({"prompt": [[1], [2]]})",
        R"({"prompt": "a", "echo": true})", R"({"prompt": "a", "best_of": 2})",
        R"({"prompt": "a", "logprobs": 0})", R"({"prompt": "a", "suffix": "b"})",
        R"({"prompt": "a", "messages": []})"}) {
    CompletionRequest refused_request;
    EXPECT_TRUE(read_completion_request(body, refused_request)) << body;
  }
}

TEST(OpenAiRequest, ErrorsAreObjectsAsOpenAiHasThem) {
  const auto object = nlohmann::json::parse(error_json(
      {.status = 404, .message = "no \xff model", .param = "model", .code = "x"}, Dialect::kChat));
  EXPECT_EQ(object["error"]["message"], "no \xEF\xBF\xBD model");
  EXPECT_EQ(object["error"]["param"], "model");
  EXPECT_EQ(object["error"]["code"], "x");
  EXPECT_TRUE(nlohmann::json::parse(error_json({.message = "m"}, Dialect::kChat))["error"]["param"]
                  .is_null());
}

}  // namespace
}  // namespace tqcache::serve
