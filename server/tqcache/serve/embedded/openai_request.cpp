// OpenAI's chat completions and completions, and llama-server's small routes.

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_fields.h"

namespace tqcache::serve {
namespace {

// A string, a list with one string, or a list of token ids.
void read_prompt(FieldReader& fields, CompletionRequest& request) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) return fields.fail("prompt", "missing");
  const bool is_list_of_prompts =
      value->is_array() && !value->empty() && ((*value)[0].is_string() || (*value)[0].is_array());
  if (is_list_of_prompts) {
    if (value->size() > 1) {
      return fields.fail("prompt", "this server takes one prompt at a time",
                         "unsupported_parameter");
    }
    value = &(*value)[0];
  }
  if (value->is_string()) {
    request.text = value->get<std::string>();
    if (request.text.empty()) fields.fail("prompt", "the prompt is empty");
    return;
  }
  if (!value->is_array()) return fields.fail("prompt", "expected a string or a list");
  if (value->empty()) return fields.fail("prompt", "the prompt is empty");
  read_ids(fields, "prompt", *value, request.ids);
}

}  // namespace

MaybeApiError read_chat_request(std::string_view body, ChatRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, Dialect::kChat, "");
  read_messages(fields, "messages", request.messages);
  read_settings(fields, request.settings);
  request.thinking = read_thinking(fields);
  fields.finish();
  return fields.take_error();
}

MaybeApiError read_completion_request(std::string_view body, CompletionRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, Dialect::kCompletion, "");
  read_prompt(fields, request);
  read_settings(fields, request.settings);
  if (!request.settings.max_tokens) request.settings.max_tokens = 16;  // OpenAI's default
  fields.finish();
  return fields.take_error();
}

MaybeApiError read_tokenize_request(std::string_view body, TokenizeRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, std::nullopt, "");
  if (fields.find("content") == nullptr) fields.fail("content", "missing");
  request.text = fields.text("content", "");
  request.add_special = fields.flag("add_special", false);
  request.parse_special = fields.flag("parse_special", true);
  fields.text("model", "");
  if (fields.flag("with_pieces", false)) {
    fields.fail("with_pieces", "this server does not support it", "unsupported_parameter");
  }
  fields.finish();
  return fields.take_error();
}

MaybeApiError read_detokenize_request(std::string_view body, std::vector<std::int32_t>& ids) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, std::nullopt, "");
  const Json* const list = fields.find("tokens");
  if (list == nullptr || !list->is_array()) {
    fields.fail("tokens", "expected a list of token ids");
  } else {
    read_ids(fields, "tokens", *list, ids);
  }
  fields.text("model", "");
  fields.finish();
  return fields.take_error();
}

}  // namespace tqcache::serve
