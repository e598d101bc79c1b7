// Anthropic's messages.

#include <utility>

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_fields.h"

namespace tqcache::serve {
namespace {

using tokenizer::ChatRole;

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
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, Dialect::kMessages, "");
  read_messages(fields, "messages", request.messages);
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
  if (!counts && fields.find("max_tokens") == nullptr) fields.fail("max_tokens", "missing");
  request.thinking = read_thinking(fields);
  read_output_config(fields);
  fields.finish();
  return fields.take_error();
}

}  // namespace tqcache::serve
