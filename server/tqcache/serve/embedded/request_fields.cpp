#include "tqcache/serve/embedded/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "tqcache/serve/embedded/tool_calls.h"
#include "tqcache/tensors/foreign_json.h"

namespace tqcache::serve {
namespace {

using tokenizer::ChatMessage;
using tokenizer::ChatRole;
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxNameBytes = 64;  // of an unknown field in a message
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 512;
constexpr std::size_t kMaxMessages = 16'384;
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

// Whether `value` is one of those in a treatment like "only 1 or [1, 2]".
bool asks_for_nothing(std::string_view treatment, const Json& value) {
  constexpr std::string_view kOr = " or ";
  treatment.remove_prefix(std::string_view("only ").size());
  for (;;) {
    const std::size_t end = treatment.find(kOr);
    const Json neutral = Json::parse(treatment.substr(0, end), nullptr, false);
    assert(!neutral.is_discarded());
    if (neutral == value) return true;
    if (end == std::string_view::npos) return false;
    treatment.remove_prefix(end + kOr.size());
  }
}

}  // namespace

// --- FieldReader

bool FieldReader::is_read(std::string_view key) const {
  if (!dialect_) return true;
  const Parameter* const row = find_parameter(place_, key);
  return row != nullptr && row->treatment(*dialect_) == "read";
}

const Json* FieldReader::find(const char* key) {
  if (!is_read(key)) return nullptr;
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::fail(const std::string& key, const std::string& message, std::string code) {
  if (error_) return;
  const std::string param = place_ + key;
  error_ = ApiError{.message = param.empty() ? message : param + ": " + message,
                    .param = param,
                    .code = std::move(code)};
}

bool FieldReader::flag(const char* key, bool fallback) {
  const Json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "expected true or false");
  return value->is_boolean() ? value->get<bool>() : fallback;
}

std::string FieldReader::text(const char* key, std::string fallback) {
  const Json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, "expected a string");
  return value->is_string() ? value->get<std::string>() : fallback;
}

std::optional<std::int64_t> FieldReader::whole(const char* key, std::int64_t least,
                                               std::int64_t most) {
  const Json* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool fits =
      value->is_number_integer() &&
      !(value->is_number_unsigned() &&
        value->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  const std::int64_t number = fits ? value->get<std::int64_t>() : 0;
  if (fits && number >= least && number <= most) return number;
  if (!value->is_number_integer()) {
    fail(key, "expected an integer");
  } else {
    fail(key, fmt::format("expected an integer from {} to {}", least, most));
  }
  return std::nullopt;
}

float FieldReader::number(const char* key, float least, float most, float fallback) {
  const Json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    fail(key, "expected a number");
    return fallback;
  }
  const double number = value->get<double>();
  if (number >= double{least} && number <= double{most}) return static_cast<float>(number);
  fail(key, fmt::format("expected a number from {} to {}", least, most));
  return fallback;
}

void FieldReader::finish() {
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && !known_.contains(key)) finish_field(key, value);
  }
}

void FieldReader::finish_field(const std::string& key, const Json& value) {
  const Parameter* const row = dialect_ ? find_parameter(place_, key) : nullptr;
  const std::string_view treatment = row == nullptr ? "" : row->treatment(*dialect_);
  if (treatment == "ignored") return;
  if (!treatment.starts_with("only ")) {
    return fail(key.substr(0, kMaxNameBytes), "this server does not know it", "unknown_parameter");
  }
  if (asks_for_nothing(treatment, value)) return;
  std::string message = treatment == "only null"
                            ? "this server does not support it"
                            : fmt::format("this server supports {}", treatment);
  if (!row->reason.empty()) message += fmt::format(": {}", row->reason);
  fail(key, message, "unsupported_parameter");
}

MaybeApiError parse_body(std::string_view body, Json& out, OrderedJson* ordered) {
  constexpr tensors::JsonLimits kLimits{
      .max_bytes = kMaxBodyBytes, .max_depth = kMaxDepth, .max_values = 1 << 20};
  auto parsed = tensors::parse_json(body, kLimits);
  if (!parsed) {
    const bool is_long = body.size() > kMaxBodyBytes;
    return ApiError{.status = is_long ? 413 : 400,
                    .message = "the body of the request: " + parsed.error().message};
  }
  if (!parsed->is_object()) {
    return ApiError{.message = "the body of the request: expected a JSON object"};
  }
  out = std::move(parsed).value();
  if (ordered != nullptr) *ordered = tensors::parse_ordered_json(body, kLimits).value();
  return std::nullopt;
}

// --- Settings

namespace {

void read_stops(FieldReader& fields, const char* key, std::vector<std::string>& stops) {
  const Json* const value = fields.find(key);
  if (value == nullptr) return;
  const auto take = [&](const Json& stop) {
    if (!stop.is_string()) return fields.fail(key, "expected a string or a list of strings");
    const auto& text = stop.get_ref<const std::string&>();
    if (text.empty()) return fields.fail(key, "a stop string is empty");
    if (text.size() > kMaxStopBytes) {
      return fields.fail(key, fmt::format("a stop string has at most {} bytes", kMaxStopBytes));
    }
    stops.push_back(text);
  };
  if (!value->is_array()) return take(*value);
  if (value->size() > kMaxStops) {
    return fields.fail(key, fmt::format("at most {} stop strings", kMaxStops));
  }
  for (const Json& stop : *value) take(stop);
}

// {"50256": -100}
void read_logit_bias(FieldReader& fields, std::vector<model::LogitBias>& biases) {
  const Json* const value = fields.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.fail("logit_bias", "expected an object");
  for (const auto& [key, bias] : value->items()) {
    std::int32_t id = 0;
    const char* const end = key.data() + key.size();
    const std::from_chars_result parsed = std::from_chars(key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0) {
      return fields.fail("logit_bias", "expected token ids as names");
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      return fields.fail("logit_bias", "expected numbers from -100 to 100");
    }
    // As OpenAI defines it: -100 forbids a token.
    const auto number = static_cast<float>(bias.get<double>());
    biases.push_back({id, number == -100 ? -std::numeric_limits<float>::infinity() : number});
  }
}

void read_seed(FieldReader& fields, GenerationSettings& settings) {
  const Json* const value = fields.find("seed");
  if (value == nullptr) return;
  if (!value->is_number_integer()) return fields.fail("seed", "expected an integer");
  settings.has_seed = true;
  settings.sampling.seed = value->is_number_unsigned()
                               ? value->get<std::uint64_t>()
                               : static_cast<std::uint64_t>(value->get<std::int64_t>());
}

void read_stream_options(FieldReader& fields, GenerationSettings& settings) {
  settings.stream = fields.flag("stream", false);
  const Json* const value = fields.find("stream_options");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.fail("stream_options", "expected an object");
  FieldReader options = fields.inside(*value, "stream_options");
  settings.include_usage = options.flag("include_usage", false);
  options.finish();
  fields.adopt(options);
}

}  // namespace

void read_settings(FieldReader& fields, GenerationSettings& settings) {
  settings.model = fields.text("model", "");
  model::SamplerOptions& sampling = settings.sampling;
  sampling.temperature = fields.number("temperature", 0, 100, 1);
  sampling.top_p = fields.number("top_p", 0, 1, 1);
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<float>::min();  // the best token
  sampling.top_k = fields.whole("top_k", 0, kMaxCount).value_or(0);
  sampling.min_p = fields.number("min_p", 0, 1, 0);
  sampling.repeat_penalty = fields.number("repeat_penalty", 0.01f, 100, 1);
  sampling.repeat_last_n = fields.whole("repeat_last_n", -1, kMaxCount).value_or(64);
  read_logit_bias(fields, sampling.logit_bias);
  read_seed(fields, settings);
  // The newer name wins, as OpenAI has it.
  for (const char* key : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    if (const auto limit = fields.whole(key, 1, kMaxCount)) settings.max_tokens = limit;
  }
  for (const char* key : {"stop", "stop_sequences"}) read_stops(fields, key, settings.stops);
  read_stream_options(fields, settings);
}

Thinking read_thinking(FieldReader& fields) {
  // The text `name` of the object `key`.
  const auto text_in = [&](const char* key, const char* name) -> std::string {
    const Json* const value = fields.find(key);
    if (value == nullptr) return "";
    if (!value->is_object()) return fields.fail(key, "expected an object"), "";
    FieldReader inner = fields.inside(*value, key);
    std::string text = inner.text(name, "");
    inner.finish();
    fields.adopt(inner);
    return text;
  };
  Thinking thinking = Thinking::kAllowed;
  for (const std::string& effort :
       {fields.text("reasoning_effort", ""), text_in("reasoning", "effort")}) {
    if (effort == "none" || effort == "minimal") thinking = Thinking::kAvoided;
  }
  if (text_in("thinking", "type") == "disabled") thinking = Thinking::kAvoided;

  // {"enable_thinking": false}, as llama.cpp and vLLM have it, is an order.
  const Json* const value = fields.find("chat_template_kwargs");
  if (value == nullptr) return thinking;
  if (!value->is_object())
    return fields.fail("chat_template_kwargs", "expected an object"), thinking;
  FieldReader inner = fields.inside(*value, "chat_template_kwargs");
  if (inner.find("enable_thinking") != nullptr) {
    thinking = inner.flag("enable_thinking", true) ? Thinking::kAllowed : Thinking::kForbidden;
  }
  inner.finish();
  fields.adopt(inner);
  return thinking;
}

// --- Messages

std::string read_text_parts(FieldReader& fields, const char* key) {
  const Json* const value = fields.find(key);
  if (value == nullptr) return fields.fail(key, "missing"), "";
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array() || value->empty()) {
    return fields.fail(key, "expected a string or a list of parts"), "";
  }
  std::string all;
  for (std::size_t i = 0; i < value->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("{}[{}]", key, i);
    const Json& part = (*value)[i];
    if (!part.is_object()) return fields.fail(name, "expected an object"), "";
    FieldReader reader = fields.inside(part, name);
    const std::string type = reader.text("type", "");
    if (type == "text" || type == "input_text" || type == "output_text" ||
        (type == "reasoning_text" && fields.dialect() == Dialect::kResponses)) {
      if (reader.find("text") == nullptr) reader.fail("text", "missing");
      all += reader.text("text", "");
      reader.finish();
    } else {
      reader.fail("type", "this server reads parts of type text only");
    }
    fields.adopt(reader);
  }
  return all;
}

namespace {

std::optional<ChatRole> role_named(std::string_view name, std::optional<Dialect> dialect) {
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "tool" && dialect == Dialect::kChat) return ChatRole::kTool;
  if (name == "system" || name == "developer") return ChatRole::kSystem;
  return std::nullopt;
}

// {"id", "type": "function", "function": {"name", "arguments": "{...}"}}
ToolCall read_call(FieldReader& fields) {
  ToolCall call;
  call.id = fields.text("id", "");
  if (call.id.empty()) fields.fail("id", "missing");
  if (fields.text("type", "function") != "function") {
    fields.fail("type", "this server knows calls of type function only");
  }
  const Json* const function = fields.find("function");
  if (function == nullptr || !function->is_object()) {
    fields.fail("function", "expected an object");
    return call;
  }
  FieldReader inner = fields.inside(*function, "function");
  call.name = inner.text("name", "");
  if (call.name.empty()) inner.fail("name", "missing");
  call.arguments = inner.text("arguments", "");
  if (!is_json_object(call.arguments)) {
    inner.fail("arguments", "expected a string with the text of a JSON object");
  }
  inner.finish();
  fields.adopt(inner);
  fields.finish();
  return call;
}

std::vector<ToolCall> read_calls(FieldReader& fields) {
  const Json* const list = fields.find("tool_calls");
  std::vector<ToolCall> calls;
  if (list == nullptr) return calls;
  if (!list->is_array()) return fields.fail("tool_calls", "expected a list"), calls;
  for (std::size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("tool_calls[{}]", i);
    if (!(*list)[i].is_object()) return fields.fail(name, "expected an object"), calls;
    FieldReader call = fields.inside((*list)[i], name);
    calls.push_back(read_call(call));
    fields.adopt(call);
  }
  return calls;
}

// A call that is given back must have been made, and a result belongs to one.
void refuse_fields_of_other_roles(FieldReader& fields, ChatRole role) {
  constexpr std::pair<const char*, ChatRole> kOwned[] = {
      {"tool_calls", ChatRole::kAssistant},
      {"reasoning_content", ChatRole::kAssistant},
      {"tool_call_id", ChatRole::kTool},
      {"name", ChatRole::kTool},
  };
  for (const auto& [key, owner] : kOwned) {
    const Json* const value = fields.find(key);
    const bool is_empty = value == nullptr || (value->is_array() && value->empty());
    if (is_empty || role == owner) continue;
    fields.fail(key, owner == ChatRole::kTool ? "only messages with role tool have it"
                                              : "only messages with role assistant have it");
  }
}

// The fields of a message that are neither its role nor its text, for the chat template.
std::string read_more(FieldReader& fields, ChatRole role, bool has_text) {
  refuse_fields_of_other_roles(fields, role);
  if (role == ChatRole::kAssistant) {
    std::optional<std::string> reasoning;
    if (std::string thoughts = fields.text("reasoning_content", ""); !thoughts.empty()) {
      reasoning = std::move(thoughts);
    }
    return assistant_fields(has_text, read_calls(fields), reasoning);
  }
  if (role != ChatRole::kTool) return {};
  Json more = {{"tool_call_id", fields.text("tool_call_id", "")}};
  if (more["tool_call_id"] == "") fields.fail("tool_call_id", "missing");
  if (fields.find("name") != nullptr) more["name"] = fields.text("name", "");
  return more.dump();
}

}  // namespace

void read_message(FieldReader& fields, std::vector<ChatMessage>& messages) {
  if (const std::string type = fields.text("type", "message"); type != "message") {
    return fields.fail("type", "this server reads items of type message only");
  }
  const std::optional<ChatRole> role = role_named(fields.text("role", ""), fields.dialect());
  if (!role) {
    return fields.fail("role", fields.dialect() == Dialect::kChat
                                   ? "expected system, developer, user, assistant or tool"
                                   : "expected system, developer, user or assistant");
  }
  if (*role == ChatRole::kSystem && !messages.empty()) {
    return fields.fail("role", "a system message can only be the first one");
  }
  const Json* const calls = fields.find("tool_calls");
  const bool may_lack_text = *role == ChatRole::kAssistant && calls != nullptr && !calls->empty();
  std::string text;
  if (!may_lack_text || fields.find("content") != nullptr) {
    text = read_text_parts(fields, "content");
  }
  std::string more = read_more(fields, *role, !may_lack_text || !text.empty());
  fields.finish();
  messages.push_back({*role, std::move(text), std::move(more)});
}

// Whether the model may call tools.
bool read_tool_choice(FieldReader& fields) {
  const Json* const choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return true;
  if (*choice == "none") return false;
  if (!choice->is_string() && !choice->is_object()) {
    fields.fail("tool_choice", "expected \"none\" or \"auto\"");
    return false;
  }
  fields.fail("tool_choice", "this server supports \"none\" and \"auto\": it cannot force a call",
              "unsupported_parameter");
  return false;
}

std::string json_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool is_json_object(std::string_view text) {
  const auto parsed =
      tensors::parse_json(text, {.max_bytes = kMaxBodyBytes, .max_depth = kMaxDepth});
  return parsed && parsed->is_object();
}

std::string read_flat_tools(FieldReader& fields, const OrderedJson& ordered, const char* type,
                            const char* schema_key) {
  const Json* const list = fields.find("tools");
  if (list == nullptr) return {};
  if (!list->is_array()) return fields.fail("tools", "expected a list"), std::string();
  OrderedJson tools = OrderedJson::array();
  for (std::size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (!(*list)[i].is_object()) return fields.fail(place, "expected an object"), std::string();
    FieldReader tool = fields.inside((*list)[i], place);
    if (tool.text("type", type) != type) {
      tool.fail("type", fmt::format("this server knows tools of type {} only", type),
                "unsupported_parameter");
    }
    OrderedJson function = {{"name", tool.text("name", "")}};
    if (function["name"] == "") tool.fail("name", "missing");
    if (tool.find("description") != nullptr) function["description"] = tool.text("description", "");
    const Json* const schema = tool.find(schema_key);
    if (schema == nullptr || !schema->is_object()) {
      tool.fail(schema_key, "expected an object: a JSON schema");
    } else {
      function["parameters"] = ordered["tools"][i][schema_key];
    }
    tool.finish();
    fields.adopt(tool);
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools.empty() || fields.failed() ? std::string() : json_text(tools);
}

void read_each_message(FieldReader& fields, const char* key,
                       const std::function<void(FieldReader& message, std::size_t index)>& read) {
  const Json* const value = fields.find(key);
  if (value == nullptr) return fields.fail(key, "missing");
  if (!value->is_array()) return fields.fail(key, "expected a list");
  if (value->empty()) return fields.fail(key, "expected at least one message");
  if (value->size() > kMaxMessages) {
    return fields.fail(key, fmt::format("at most {} messages", kMaxMessages));
  }
  for (std::size_t i = 0; i < value->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("{}[{}]", key, i);
    if (!(*value)[i].is_object()) return fields.fail(name, "expected an object");
    FieldReader message = fields.inside((*value)[i], name);
    read(message, i);
    fields.adopt(message);
  }
}

void read_messages(FieldReader& fields, const char* key, std::vector<ChatMessage>& messages) {
  read_each_message(fields, key,
                    [&](FieldReader& message, std::size_t) { read_message(message, messages); });
}

void read_ids(FieldReader& fields, const char* key, const Json& list,
              std::vector<std::int32_t>& ids) {
  for (const Json& id : list) {
    const bool fits =
        id.is_number_unsigned() &&
        id.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int32_t>::max()};
    if (!fits) return fields.fail(key, "expected a list of token ids");
    ids.push_back(id.get<std::int32_t>());
  }
}

}  // namespace tqcache::serve
