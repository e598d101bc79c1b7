// OpenAI's chat completions and completions, and llama-server's small routes.

#include <fmt/format.h>

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_fields.h"
#include "tqcache/serve/embedded/tool_calls.h"

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

// {"type": "function", "function": {"name", "description", "parameters"}}
void read_tool(FieldReader& tool) {
  if (tool.text("type", "") != "function") {
    return tool.fail("type", "this server knows tools of type function only",
                     "unsupported_parameter");
  }
  const Json* const function = tool.find("function");
  if (function == nullptr) return tool.fail("function", "missing");
  if (!function->is_object()) return tool.fail("function", "expected an object");
  FieldReader fields = tool.inside(*function, "function");
  if (fields.text("name", "").empty()) fields.fail("name", "missing");
  fields.text("description", "");
  const Json* const parameters = fields.find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    fields.fail("parameters", "expected an object: a JSON schema");
  }
  fields.finish();
  tool.adopt(fields);
  tool.finish();
}

// `body`: the text of the request.
void read_tools(FieldReader& fields, std::string_view body, ChatRequest& request) {
  const bool may_call = read_tool_choice(fields);
  request.settings.one_call = !fields.flag("parallel_tool_calls", true);
  const Json* const list = fields.find("tools");
  if (list == nullptr) return;
  if (!list->is_array()) return fields.fail("tools", "expected a list");
  for (std::size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    if (!(*list)[i].is_object()) return fields.fail(name, "expected an object");
    FieldReader tool = fields.inside((*list)[i], name);
    read_tool(tool);
    fields.adopt(tool);
  }
  // As they are written: templates show them to the model, in the order of the client's keys.
  if (may_call && !list->empty()) request.tools = raw_member(body, "tools").value_or("");
}

}  // namespace

MaybeApiError read_chat_request(std::string_view body, ChatRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, Dialect::kChat, "");
  read_messages(fields, "messages", request.messages);
  read_settings(fields, request.settings);
  read_tools(fields, body, request);
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
