// OpenAI's responses.

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

// A message of the assistant, which is an item for its thoughts, one for its text and one for each
// call.
class AssistantItems {
 public:
  explicit AssistantItems(std::vector<ChatMessage>& messages) : messages_(messages) {}

  void think(const std::string& thoughts) {
    if (text_ || !calls_.empty()) end();
    reasoning_ = reasoning_.value_or("") + thoughts;
  }
  void say(std::string text) {
    if (text_ || !calls_.empty()) end();
    text_ = std::move(text);
  }
  void call(ToolCall call) { calls_.push_back(std::move(call)); }

  // The message is complete, if one was begun.
  void end() {
    if (text_ || !calls_.empty()) {
      const bool has_text = text_ && (calls_.empty() || !text_->empty());
      messages_.push_back({ChatRole::kAssistant, text_.value_or(""),
                           assistant_fields(has_text, calls_, reasoning_)});
    }
    text_.reset();
    reasoning_.reset();
    calls_.clear();
  }

 private:
  std::vector<ChatMessage>& messages_;
  std::optional<std::string> text_, reasoning_;
  std::vector<ToolCall> calls_;
};

ToolCall read_function_call(FieldReader& item) {
  ToolCall call = {item.text("call_id", ""), item.text("name", ""), item.text("arguments", "")};
  if (call.id.empty()) item.fail("call_id", "missing");
  if (call.name.empty()) item.fail("name", "missing");
  if (!is_json_object(call.arguments)) {
    item.fail("arguments", "expected a string with the text of a JSON object");
  }
  return call;
}

// {"type": "reasoning", "content": [{"type": "reasoning_text", "text"}]}
std::string read_thoughts(FieldReader& item) {
  const Json* const content = item.find("content");
  return content == nullptr || content->empty() ? "" : read_text_parts(item, "content");
}

void read_item(FieldReader& item, AssistantItems& assistant, std::vector<ChatMessage>& messages) {
  const std::string type = item.text("type", "message");
  if (type == "function_call") {
    assistant.call(read_function_call(item));
  } else if (type == "reasoning") {
    assistant.think(read_thoughts(item));
  } else if (type == "message" && item.text("role", "") == "assistant") {
    assistant.say(read_text_parts(item, "content"));
  } else if (type == "message") {
    assistant.end();
    return read_message(item, messages);
  } else if (type == "function_call_output") {
    assistant.end();
    const std::string id = item.text("call_id", "");
    if (id.empty()) item.fail("call_id", "missing");
    messages.push_back(
        {ChatRole::kTool, read_text_parts(item, "output"), Json{{"tool_call_id", id}}.dump()});
  } else {
    item.fail("type",
              "this server reads items of type message, reasoning, function_call and "
              "function_call_output only");
  }
  item.finish();
}

// A text of the user, or a list of items.
void read_input(FieldReader& fields, ChatRequest& request) {
  const Json* const value = fields.find("input");
  if (value != nullptr && value->is_string()) {
    request.messages.push_back({ChatRole::kUser, value->get<std::string>()});
    return;
  }
  AssistantItems assistant(request.messages);
  read_each_message(fields, "input", [&](FieldReader& item, std::size_t) {
    read_item(item, assistant, request.messages);
  });
  assistant.end();
}

// {"format": {"type": "text"}, "verbosity": ...}
void read_text_config(FieldReader& fields) {
  const Json* const value = fields.find("text");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.fail("text", "expected an object");
  FieldReader inner = fields.inside(*value, "text");
  inner.finish();
  fields.adopt(inner);
}

}  // namespace

MaybeApiError read_responses_request(std::string_view body, ChatRequest& request) {
  Json json;
  nlohmann::ordered_json ordered;
  if (MaybeApiError error = parse_body(body, json, &ordered)) return error;
  FieldReader fields(json, Dialect::kResponses, "");
  read_input(fields, request);
  // Chat templates have one system text: instructions come before that of the input.
  if (std::string system = fields.text("instructions", ""); !system.empty()) {
    auto& messages = request.messages;
    if (!messages.empty() && messages[0].role == ChatRole::kSystem) {
      messages[0].text = system + "\n\n" + messages[0].text;
    } else {
      messages.insert(messages.begin(), {ChatRole::kSystem, std::move(system)});
    }
  }
  read_settings(fields, request.settings);
  const bool may_call = read_tool_choice(fields);
  request.settings.one_call = !fields.flag("parallel_tool_calls", true);
  std::string tools = read_flat_tools(fields, ordered, "function", "parameters");
  if (may_call) request.tools = std::move(tools);
  request.thinking = read_thinking(fields);
  read_text_config(fields);
  fields.finish();
  return fields.take_error();
}

}  // namespace tqcache::serve
