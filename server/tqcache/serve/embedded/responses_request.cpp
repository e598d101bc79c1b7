// OpenAI's responses.

#include <utility>

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_fields.h"

namespace tqcache::serve {
namespace {

using tokenizer::ChatRole;

// A text of the user, or a list of messages.
void read_input(FieldReader& fields, ChatRequest& request) {
  const Json* const value = fields.find("input");
  if (value == nullptr || !value->is_string()) {
    return read_messages(fields, "input", request.messages);
  }
  request.messages.push_back({ChatRole::kUser, value->get<std::string>()});
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
  if (MaybeApiError error = parse_body(body, json)) return error;
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
  request.thinking = read_thinking(fields);
  read_text_config(fields);
  fields.finish();
  return fields.take_error();
}

}  // namespace tqcache::serve
