// Anthropic's messages and OpenAI's responses become the conversation that a chat would have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/serve/embedded/client_request.h"

namespace tqcache::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tokenizer::ChatRole;

using Conversation = std::vector<std::pair<ChatRole, std::string>>;
Conversation conversation(const ChatRequest& request) {
  Conversation all;
  for (const auto& message : request.messages) all.emplace_back(message.role, message.text);
  return all;
}

ChatRequest read_messages(const std::string& body) {
  ChatRequest request;
  if (const MaybeApiError error = read_messages_request(body, false, request)) {
    throw std::runtime_error(error->message);
  }
  return request;
}

ChatRequest read_responses(const std::string& body) {
  ChatRequest request;
  if (const MaybeApiError error = read_responses_request(body, request)) {
    throw std::runtime_error(error->message);
  }
  return request;
}

struct RefusedBody {
  const char* body;
  const char* param;
};

TEST(MessagesRequest, IsAConversation) {
  const ChatRequest request = read_messages(
      R"({"model": "claude", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3,
          "stop_sequences": ["a", "b"], "stream": true, "metadata": {"user_id": "x"},
          "system": [{"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
                     {"type": "text", "text": "brief."}],
          "messages": [{"role": "user", "content": "Hi"},
                       {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
                       {"role": "user", "content": [{"type": "text", "text": "a"},
                        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]}
                      ]})");
  EXPECT_EQ(conversation(request), (Conversation{{ChatRole::kSystem, "Be brief."},
                                                 {ChatRole::kUser, "Hi"},
                                                 {ChatRole::kAssistant, "Yes?"},
                                                 {ChatRole::kUser, "ab"}}));
  EXPECT_EQ(request.settings.max_tokens, 7);
  EXPECT_EQ(request.settings.sampling.temperature, 0.5f);
  EXPECT_EQ(request.settings.sampling.top_p, 0.9f);
  EXPECT_EQ(request.settings.sampling.top_k, 3);
  EXPECT_THAT(request.settings.stops, ElementsAre("a", "b"));
  EXPECT_TRUE(request.settings.stream);
  const ChatRequest plain = read_messages(
      R"({"system": "S", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(conversation(plain), (Conversation{{ChatRole::kSystem, "S"}, {ChatRole::kUser, "Hi"}}));
}

TEST(MessagesRequest, HasToolsCallsAndTheirResults) {
  const ChatRequest request = read_messages(R"({"max_tokens": 9, "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [
          {"type": "text", "text": "I look."},
          {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": [2]}}]},
      {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "R"}]},
          {"type": "tool_result", "tool_use_id": "t2", "content": "S", "is_error": true},
          {"type": "text", "text": "And?"}]},
      {"role": "assistant", "content": [
          {"type": "tool_use", "id": "t3", "name": "g", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]}],
      "tools": [{"name": "f", "description": "D", "cache_control": {"type": "ephemeral"},
                 "input_schema": {"type": "object", "properties": {"b": {}, "a": {}}}}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})");
  EXPECT_EQ(conversation(request), (Conversation{{ChatRole::kUser, "Hi"},
                                                 {ChatRole::kAssistant, "I look."},
                                                 {ChatRole::kTool, "R"},
                                                 {ChatRole::kTool, "S"},
                                                 {ChatRole::kUser, "And?"},
                                                 {ChatRole::kAssistant, ""},
                                                 {ChatRole::kTool, ""}}));
  EXPECT_EQ(request.messages[1].fields,
            R"({"tool_calls":[{"id":"t1","type":"function","function":{"name":"f",)"
            R"("arguments":{"b":1,"a":[2]}}}]})");
  EXPECT_EQ(request.messages[2].fields, R"({"tool_call_id":"t1"})");
  EXPECT_THAT(request.messages[5].fields, HasSubstr(R"({"content":null,"tool_calls":[)"));
  EXPECT_EQ(request.tools, R"([{"type":"function","function":{"name":"f","description":"D",)"
                           R"("parameters":{"type":"object","properties":{"b":{},"a":{}}}}}])");
  EXPECT_TRUE(request.settings.one_call);
  // A model that may not call tools is not told of them.
  EXPECT_EQ(read_messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
      "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}})")
                .tools,
            "");
}

TEST(MessagesRequest, RefusesByNameWhatItCannotDo) {
  for (const RefusedBody& each : std::initializer_list<RefusedBody>{
           {R"({"messages": [{"role": "user", "content": "Hi"}]})", "max_tokens"},
           {R"({"max_tokens": 1})", "messages"},
           {R"({"max_tokens": 1, "messages": []})", "messages"},
           {R"({"max_tokens": 1, "messages": [{"role": "system", "content": "Hi"}]})",
            "messages[0].role"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"},
                                              {"role": "assistant", "content": "The"}]})",
            "messages"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]})",
            "messages[0].content[0].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content":
                [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]})",
            "messages[0].content[0].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "assistant", "content":
                [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}]})",
            "messages[0].content[0].input"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content":
                [{"type": "tool_result", "content": "y"}]}]})",
            "messages[0].content[0].tool_use_id"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content":
                [{"type": "text", "text": "t"}, {"type": "tool_result", "tool_use_id": "x"}]}]})",
            "messages[0].content[1].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
                "tool_choice": {"type": "any"}})",
            "tool_choice.type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"type": "bash_20250124", "name": "bash"}]})",
            "tools[0].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
                "system": [{"type": "image"}]})",
            "system[0].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"name": "f"}]})",
            "tools[0].input_schema"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}],
                "output_config": {"format": {"type": "json_schema"}}})",
            "output_config.format"}}) {
    ChatRequest request;
    const MaybeApiError error = read_messages_request(each.body, false, request);
    ASSERT_TRUE(error) << each.body;
    EXPECT_EQ(error->param, each.param) << each.body;
    const auto object = nlohmann::json::parse(error_json(*error, Dialect::kMessages));
    EXPECT_EQ(object["type"], "error");
    EXPECT_EQ(object["error"]["type"], "invalid_request_error");
    EXPECT_THAT(object["error"]["message"].get<std::string>(), HasSubstr(each.param));
  }
  // Counting needs no limit.
  ChatRequest counted;
  EXPECT_FALSE(
      read_messages_request(R"({"messages": [{"role": "user", "content": "Hi"}]})", true, counted));
}

TEST(MessagesRequest, ErrorsHaveTheTypesOfTheirStatus) {
  for (const auto& [status, type] :
       std::initializer_list<std::pair<int, const char*>>{{400, "invalid_request_error"},
                                                          {413, "request_too_large"},
                                                          {429, "rate_limit_error"},
                                                          {500, "api_error"},
                                                          {503, "overloaded_error"}}) {
    const auto object =
        nlohmann::json::parse(error_json({.status = status, .message = "m"}, Dialect::kMessages));
    EXPECT_EQ(object["error"]["type"], type);
  }
}

TEST(ResponsesRequest, IsAConversation) {
  const ChatRequest request = read_responses(
      R"({"model": "gpt", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.9, "stream": true,
          "instructions": "Be brief.", "store": false, "previous_response_id": null,
          "text": {"format": {"type": "text"}, "verbosity": "low"}, "truncation": "disabled",
          "input": [{"role": "user", "content": "Hi"},
                    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                     "content": [{"type": "output_text", "text": "Yes?", "annotations": [],
                                  "logprobs": []}]},
                    {"type": "message", "role": "user",
                     "content": [{"type": "input_text", "text": "a"},
                                 {"type": "input_text", "text": "b"}]}]})");
  EXPECT_EQ(conversation(request), (Conversation{{ChatRole::kSystem, "Be brief."},
                                                 {ChatRole::kUser, "Hi"},
                                                 {ChatRole::kAssistant, "Yes?"},
                                                 {ChatRole::kUser, "ab"}}));
  EXPECT_EQ(request.settings.max_tokens, 7);
  EXPECT_EQ(request.settings.sampling.temperature, 0.5f);
  EXPECT_EQ(request.settings.sampling.top_p, 0.9f);
  EXPECT_TRUE(request.settings.stream);
  EXPECT_EQ(conversation(read_responses(R"({"input": "Hi"})")),
            (Conversation{{ChatRole::kUser, "Hi"}}));
}

TEST(ResponsesRequest, InstructionsComeBeforeTheSystemText) {
  const ChatRequest request = read_responses(
      R"({"instructions": "One.", "input": [{"role": "developer", "content": "Two."},
                                            {"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(conversation(request),
            (Conversation{{ChatRole::kSystem, "One.\n\nTwo."}, {ChatRole::kUser, "Hi"}}));
}

// One message of the assistant, as chat templates and the other dialects have it.
TEST(ResponsesRequest, ItemsOfAnAnswerAreOneMessage) {
  const ChatRequest request = read_responses(
      R"({"tools": [{"type": "function", "name": "f", "parameters": {"b": 1, "a": 2},
                     "strict": true}],
          "parallel_tool_calls": false,
          "input": [{"role": "user", "content": "Hi"},
                    {"type": "reasoning", "id": "rs_1", "summary": [],
                     "content": [{"type": "reasoning_text", "text": "Hm."}]},
                    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
                    {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f",
                     "arguments": "{\"x\": 1}", "status": "completed"},
                    {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "a", "output": "42"},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]})");
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[1].text, "I look.");
  const std::string fields = request.messages[1].fields;
  EXPECT_THAT(fields, HasSubstr(R"("reasoning_content":"Hm.")"));
  EXPECT_THAT(fields, HasSubstr(R"("id":"a","type":"function","function":{"name":"f",)"
                                R"("arguments":{"x": 1}})"));
  EXPECT_THAT(fields, HasSubstr(R"("id":"b")"));
  EXPECT_EQ(request.messages[2].role, ChatRole::kTool);
  EXPECT_EQ(request.messages[2].fields, R"({"tool_call_id":"a"})");
  EXPECT_THAT(request.messages[3].fields, HasSubstr(R"("content":null)"));
  EXPECT_EQ(request.tools, R"([{"type":"function","function":{"name":"f",)"
                           R"("parameters":{"b":1,"a":2}}}])");
  EXPECT_TRUE(request.settings.one_call);
}

TEST(ResponsesRequest, RefusesByNameWhatItCannotDo) {
  for (const RefusedBody& each : std::initializer_list<RefusedBody>{
           {R"({})", "input"},
           {R"({"input": 5})", "input"},
           {R"({"input": []})", "input"},
           {R"({"input": [{"type": "function_call_output", "output": "x"}]})", "input[0].call_id"},
           {R"({"input": [{"type": "function_call_output", "call_id": "a"}]})", "input[0].output"},
           {R"({"input": [{"type": "function_call", "call_id": "a", "name": "f",
                           "arguments": "7"}]})",
            "input[0].arguments"},
           {R"({"input": "Hi", "tools": [{"type": "function", "name": "f"}]})",
            "tools[0].parameters"},
           {R"({"input": "Hi", "tool_choice": "required"})", "tool_choice"},
           {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type"},
           {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
            "input[0].content[0].type"},
           {R"({"input": "Hi", "store": true})", "store"},
           {R"({"input": "Hi", "previous_response_id": "resp_1"})", "previous_response_id"},
           {R"({"input": "Hi", "conversation": "conv_1"})", "conversation"},
           {R"({"input": "Hi", "background": true})", "background"},
           {R"({"input": "Hi", "tools": [{"type": "web_search"}]})", "tools[0].type"},
           {R"({"input": "Hi", "text": {"format": {"type": "json_object"}}})", "text.format"},
           {R"({"input": "Hi", "messages": []})", "messages"}}) {
    ChatRequest request;
    const MaybeApiError error = read_responses_request(each.body, request);
    ASSERT_TRUE(error) << each.body;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, each.param) << each.body;
    EXPECT_THAT(error->message, HasSubstr(each.param));
  }
  ChatRequest request;
  const MaybeApiError kept = read_responses_request(R"({"input": "Hi", "store": true})", request);
  EXPECT_THAT(kept->message, HasSubstr("keeps no responses"));
}

// Each dialect has its own words for it. "none" and "minimal" are wishes; llama.cpp's is an order.
TEST(Dialects, CanAskNotToThink) {
  const std::string chat = R"("messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1)";
  const auto thinking = [&](Dialect dialect, const std::string& more) {
    ChatRequest request;
    MaybeApiError error;
    const std::string body = "{" + chat + ", " + more + "}";
    if (dialect == Dialect::kChat) error = read_chat_request(body, request);
    if (dialect == Dialect::kMessages) error = read_messages_request(body, false, request);
    if (dialect == Dialect::kResponses) {
      error = read_responses_request(R"({"input": "Hi", )" + more + "}", request);
    }
    if (error) throw std::runtime_error(error->message);
    return request.thinking;
  };
  for (const auto& [dialect, more] : std::initializer_list<std::pair<Dialect, const char*>>{
           {Dialect::kChat, R"("reasoning_effort": "none")"},
           {Dialect::kChat, R"("reasoning_effort": "minimal")"},
           {Dialect::kChat, R"("reasoning": {"effort": "none", "exclude": true})"},
           {Dialect::kChat, R"("thinking": {"type": "disabled"})"},
           {Dialect::kMessages, R"("thinking": {"type": "disabled"})"},
           {Dialect::kResponses, R"("reasoning": {"effort": "minimal", "summary": "auto"})"}}) {
    EXPECT_EQ(thinking(dialect, more), Thinking::kAvoided) << more;
  }
  for (const auto& [dialect, more] : std::initializer_list<std::pair<Dialect, const char*>>{
           {Dialect::kChat, R"("reasoning_effort": "high")"},
           {Dialect::kChat, R"("reasoning_effort": null)"},
           {Dialect::kMessages, R"("thinking": {"type": "enabled", "budget_tokens": 1024})"},
           {Dialect::kResponses, R"("reasoning": {"effort": "low"})"},
           {Dialect::kChat, R"("reasoning_effort": "none",
                               "chat_template_kwargs": {"enable_thinking": true})"}}) {
    EXPECT_EQ(thinking(dialect, more), Thinking::kAllowed) << more;
  }
  EXPECT_EQ(thinking(Dialect::kMessages, R"("chat_template_kwargs": {"enable_thinking": false})"),
            Thinking::kForbidden);
}

}  // namespace
}  // namespace tqcache::serve
