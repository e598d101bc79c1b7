// Anthropic's messages.

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_fields.h"
#include "tqcache/serve/embedded/tool_calls.h"

namespace tqcache::serve {
namespace {

using tokenizer::ChatMessage;
using tokenizer::ChatRole;
using OrderedJson = nlohmann::ordered_json;

// {"type": "tool_use", "id", "name", "input"}. `ordered`: the same with the client's order of keys.
ToolCall read_tool_use(FieldReader& fields, const OrderedJson& ordered) {
  ToolCall call;
  call.id = fields.text("id", "");
  if (call.id.empty()) fields.fail("id", "missing");
  call.name = fields.text("name", "");
  if (call.name.empty()) fields.fail("name", "missing");
  const Json* const input = fields.find("input");
  if (input == nullptr || !input->is_object()) {
    fields.fail("input", "expected an object");
  } else {
    call.arguments = json_text(ordered["input"]);
  }
  return call;
}

// {"type": "tool_result", "tool_use_id", "content", "is_error"}. A failure is told by its text.
ChatMessage read_tool_result(FieldReader& fields) {
  const std::string id = fields.text("tool_use_id", "");
  if (id.empty()) fields.fail("tool_use_id", "missing");
  std::string text;
  if (fields.find("content") != nullptr) text = read_text_parts(fields, "content");
  fields.flag("is_error", false);
  return {ChatRole::kTool, std::move(text), Json{{"tool_call_id", id}}.dump()};
}

// A turn whose content is a list. Results of tools are messages of their own, before the text of
// the user.
void read_blocks(FieldReader& fields, const Json& content, const OrderedJson& ordered,
                 ChatRole role, std::vector<ChatMessage>& messages) {
  std::string text;
  std::optional<std::string> thoughts;
  std::vector<ToolCall> calls;
  bool has_results = false, has_text = false;
  for (std::size_t i = 0; i < content.size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("content[{}]", i);
    if (!content[i].is_object()) return fields.fail(name, "expected an object");
    FieldReader block = fields.inside(content[i], name);
    const std::string type = block.text("type", "");
    if (type == "text") {
      if (block.find("text") == nullptr) block.fail("text", "missing");
      text += block.text("text", "");
      has_text = true;
    } else if (type == "thinking" && role == ChatRole::kAssistant) {
      thoughts = thoughts.value_or("") + block.text("thinking", "");
    } else if (type == "tool_use" && role == ChatRole::kAssistant) {
      calls.push_back(read_tool_use(block, ordered["content"][i]));
    } else if (type == "tool_result" && role == ChatRole::kUser) {
      if (has_text) block.fail("type", "results of tools come before texts");
      messages.push_back(read_tool_result(block));
      has_results = true;
    } else {
      block.fail("type", role == ChatRole::kUser ? "expected text or tool_result"
                                                 : "expected text, thinking or tool_use");
    }
    block.finish();
    fields.adopt(block);
  }
  if (has_results && text.empty()) return;
  std::string more;
  if (role == ChatRole::kAssistant) more = assistant_fields(!text.empty(), calls, thoughts);
  messages.push_back({role, std::move(text), std::move(more)});
}

void read_turns(FieldReader& fields, const OrderedJson& ordered,
                std::vector<ChatMessage>& messages) {
  read_each_message(fields, "messages", [&](FieldReader& turn, std::size_t i) {
    const std::string role = turn.text("role", "");
    if (role != "user" && role != "assistant") {
      return turn.fail("role", "expected user or assistant");
    }
    const ChatRole of = role == "user" ? ChatRole::kUser : ChatRole::kAssistant;
    const Json* const content = turn.find("content");
    if (content != nullptr && content->is_array() && !content->empty()) {
      read_blocks(turn, *content, ordered["messages"][i], of, messages);
    } else {
      messages.push_back({of, read_text_parts(turn, "content")});
    }
    turn.finish();
  });
}

// {"name", "description", "input_schema"}
void read_custom_tools(FieldReader& fields, const OrderedJson& ordered, ChatRequest& request) {
  bool may_call = true;
  if (const Json* const choice = fields.find("tool_choice")) {
    if (!choice->is_object()) return fields.fail("tool_choice", "expected an object");
    FieldReader inner = fields.inside(*choice, "tool_choice");
    request.settings.one_call = inner.flag("disable_parallel_tool_use", false);
    const std::string type = inner.text("type", "");
    may_call = type != "none";
    if (type != "none" && type != "auto") {
      inner.fail("type", "this server supports none and auto: it cannot force a call",
                 "unsupported_parameter");
    }
    inner.finish();
    fields.adopt(inner);
  }
  std::string tools = read_flat_tools(fields, ordered, "custom", "input_schema");
  if (may_call) request.tools = std::move(tools);
}

// {"effort": ...}; `format` would change the answer and is unknown.
void read_output_config(FieldReader& fields) {
  const Json* const value = fields.find("output_config");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.fail("output_config", "expected an object");
  FieldReader inner = fields.inside(*value, "output_config");
  inner.finish();
  fields.adopt(inner);
}

}  // namespace

MaybeApiError read_messages_request(std::string_view body, bool counts, ChatRequest& request) {
  Json json;
  OrderedJson ordered;
  if (MaybeApiError error = parse_body(body, json, &ordered)) return error;
  FieldReader fields(json, Dialect::kMessages, "");
  read_turns(fields, ordered, request.messages);
  if (!request.messages.empty() && request.messages.back().role == ChatRole::kAssistant) {
    fields.fail("messages",
                "the last message must be of the user: this server does not continue "
                "the text of an assistant");
  }
  if (fields.find("system") != nullptr) {
    std::string system = read_text_parts(fields, "system");
    request.messages.insert(request.messages.begin(), {ChatRole::kSystem, std::move(system)});
  }
  read_settings(fields, request.settings);
  read_custom_tools(fields, ordered, request);
  if (!counts && fields.find("max_tokens") == nullptr) fields.fail("max_tokens", "missing");
  request.thinking = read_thinking(fields);
  read_output_config(fields);
  fields.finish();
  return fields.take_error();
}

}  // namespace tqcache::serve
