#include "tqcache/serve/embedded/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tqcache/tensors/json.h"

namespace tqcache::serve {
namespace {

using Json = nlohmann::json;
using tokenizer::ChatMessage;
using tokenizer::ChatRole;

constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxNameBytes = 64;  // of an unknown field in a message
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 512;
constexpr std::size_t kMaxMessages = 16'384;

// Cannot change an answer.
constexpr std::string_view kIgnored[] = {"user",
                                         "metadata",
                                         "store",
                                         "service_tier",
                                         "cache_prompt",
                                         "safety_identifier",
                                         "id_slot",
                                         "prompt_cache_key",
                                         "prediction",
                                         "prompt_cache_retention",
                                         "timings_per_token",
                                         "parallel_tool_calls"};

// Reads the fields of one object and keeps the first error. A field that is null counts as absent.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  const Json* find(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void fail(const std::string& key, const std::string& message, std::string code = {}) {
    if (error_) return;
    const std::string param = place_ + key;
    error_ = ApiError{.message = param.empty() ? message : param + ": " + message,
                      .param = param,
                      .code = std::move(code)};
  }

  bool flag(const char* key, bool fallback) {
    const Json* const value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "expected true or false");
    return value->is_boolean() ? value->get<bool>() : fallback;
  }

  std::string text(const char* key, std::string fallback) {
    const Json* const value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "expected a string");
    return value->is_string() ? value->get<std::string>() : fallback;
  }

  std::optional<std::int64_t> whole(const char* key, std::int64_t least, std::int64_t most) {
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

  float number(const char* key, float least, float most, float fallback) {
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

  // A parameter that is not implemented, and only accepted where it asks for nothing.
  void only(const char* key, const std::initializer_list<Json>& neutral) {
    const Json* const value = find(key);
    if (value == nullptr) return;
    const bool asks_for_nothing = std::any_of(neutral.begin(), neutral.end(),
                                              [&](const Json& each) { return each == *value; });
    if (!asks_for_nothing) fail(key, "this server does not support it", "unsupported_parameter");
  }

  // Call this last: every field that was not asked for, and can change the answer, is an error.
  void refuse_others() {
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key) || value.is_null()) continue;
      if (std::ranges::find(kIgnored, key) != std::end(kIgnored)) continue;
      fail(key.substr(0, kMaxNameBytes), "this server does not know it", "unknown_parameter");
    }
  }

  const std::string& place() const { return place_; }
  MaybeApiError take_error() { return std::move(error_); }
  bool failed() const { return error_.has_value(); }
  void adopt(FieldReader& inner) {
    if (!error_) error_ = inner.take_error();
  }

 private:
  const Json& object_;
  std::string place_;  // before each name: "messages[0]."
  std::set<std::string, std::less<>> known_;
  MaybeApiError error_;
};

MaybeApiError parse_body(std::string_view body, Json& out) {
  auto parsed = tensors::parse_json(
      body, {.max_bytes = kMaxBodyBytes, .max_depth = kMaxDepth, .max_values = 1 << 20});
  if (!parsed) {
    const bool is_long = body.size() > kMaxBodyBytes;
    return ApiError{.status = is_long ? 413 : 400,
                    .message = "the body of the request: " + parsed.error().message};
  }
  if (!parsed->is_object()) {
    return ApiError{.message = "the body of the request: expected a JSON object"};
  }
  out = std::move(parsed).value();
  return std::nullopt;
}

void read_stops(FieldReader& fields, std::vector<std::string>& stops) {
  const Json* const value = fields.find("stop");
  if (value == nullptr) return;
  const auto take = [&](const Json& stop) {
    if (!stop.is_string()) return fields.fail("stop", "expected a string or a list of strings");
    const auto& text = stop.get_ref<const std::string&>();
    if (text.empty()) return fields.fail("stop", "a stop string is empty");
    if (text.size() > kMaxStopBytes) {
      return fields.fail("stop", fmt::format("a stop string has at most {} bytes", kMaxStopBytes));
    }
    stops.push_back(text);
  };
  if (!value->is_array()) return take(*value);
  if (value->size() > kMaxStops) {
    return fields.fail("stop", fmt::format("at most {} stop strings", kMaxStops));
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
  FieldReader options(*value, "stream_options.");
  settings.include_usage = options.flag("include_usage", false);
  options.flag("include_obfuscation", false);
  options.refuse_others();
  fields.adopt(options);
}

void read_settings(FieldReader& fields, GenerationSettings& settings) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  settings.model = fields.text("model", "");
  model::SamplerOptions& sampling = settings.sampling;
  sampling.temperature = fields.number("temperature", 0, 100, 1);
  sampling.top_p = fields.number("top_p", 0, 1, 1);
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<float>::min();  // the best token
  sampling.top_k = fields.whole("top_k", 0, kMost).value_or(0);
  sampling.min_p = fields.number("min_p", 0, 1, 0);
  sampling.repeat_penalty = fields.number("repeat_penalty", 0.01f, 100, 1);
  sampling.repeat_last_n = fields.whole("repeat_last_n", -1, kMost).value_or(64);
  read_logit_bias(fields, sampling.logit_bias);
  read_seed(fields, settings);
  settings.max_tokens = fields.whole("max_tokens", 1, kMost);
  read_stops(fields, settings.stops);
  read_stream_options(fields, settings);
  fields.only("n", {1});
  fields.only("frequency_penalty", {0, 0.0});
  fields.only("presence_penalty", {0, 0.0});
  fields.only("ignore_eos", {false});
}

std::optional<ChatRole> role_named(std::string_view name) {
  if (name == "system" || name == "developer") return ChatRole::kSystem;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  return std::nullopt;
}

// A string, or a list of parts of type "text".
std::string read_content(FieldReader& fields) {
  const Json* const value = fields.find("content");
  if (value == nullptr) return fields.fail("content", "missing"), "";
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array() || value->empty()) {
    return fields.fail("content", "expected a string or a list of parts"), "";
  }
  std::string all;
  for (std::size_t i = 0; i < value->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("content[{}]", i);
    const Json& part = (*value)[i];
    if (!part.is_object()) return fields.fail(name, "expected an object"), "";
    FieldReader reader(part, fields.place() + name + ".");
    const std::string type = reader.text("type", "");
    if (type == "text" || type == "input_text") {
      if (reader.find("text") == nullptr) reader.fail("text", "missing");
      all += reader.text("text", "");
      reader.refuse_others();
    } else {
      reader.fail("type", "this server reads parts of type text only");
    }
    fields.adopt(reader);
  }
  return all;
}

void read_message(FieldReader& fields, std::vector<ChatMessage>& messages) {
  const std::string role_name = fields.text("role", "");
  const std::optional<ChatRole> role = role_named(role_name);
  if (!role) {
    return fields.fail("role", "expected system, developer, user or assistant");
  }
  if (*role == ChatRole::kSystem && !messages.empty()) {
    return fields.fail("role", "a system message can only be the first one");
  }
  std::string text = read_content(fields);
  // What the answers of OpenAI's own clients carry along. Absent values are null there.
  for (const char* key : {"tool_calls", "annotations"}) fields.only(key, {Json::array()});
  for (const char* key : {"refusal", "audio", "function_call"}) fields.only(key, {});
  fields.refuse_others();
  messages.push_back({*role, std::move(text)});
}

void read_messages(FieldReader& fields, std::vector<ChatMessage>& messages) {
  const Json* const value = fields.find("messages");
  if (value == nullptr) return fields.fail("messages", "missing");
  if (!value->is_array()) return fields.fail("messages", "expected a list");
  if (value->empty()) return fields.fail("messages", "expected at least one message");
  if (value->size() > kMaxMessages) {
    return fields.fail("messages", fmt::format("at most {} messages", kMaxMessages));
  }
  for (std::size_t i = 0; i < value->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    if (!(*value)[i].is_object()) return fields.fail(name, "expected an object");
    FieldReader message((*value)[i], name + ".");
    read_message(message, messages);
    fields.adopt(message);
  }
}

// {"enable_thinking": false}, as llama.cpp and vLLM have it.
bool read_thinks(FieldReader& fields) {
  const Json* const value = fields.find("chat_template_kwargs");
  if (value == nullptr) return true;
  if (!value->is_object()) return fields.fail("chat_template_kwargs", "expected an object"), true;
  FieldReader inner(*value, "chat_template_kwargs.");
  const bool thinks = inner.flag("enable_thinking", true);
  inner.refuse_others();
  fields.adopt(inner);
  return thinks;
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

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json json = {{"error",
                      {{"message", error.message},
                       {"type", error.type},
                       {"param", or_null(error.param)},
                       {"code", or_null(error.code)}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

MaybeApiError read_chat_request(std::string_view body, ChatRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, "");
  read_messages(fields, request.messages);
  read_settings(fields, request.settings);
  // The newer name wins, as OpenAI has it.
  const auto newer =
      fields.whole("max_completion_tokens", 1, std::numeric_limits<std::int32_t>::max());
  if (newer) request.settings.max_tokens = newer;
  request.thinks = read_thinks(fields);
  fields.only("logprobs", {false});
  fields.only("top_logprobs", {0});
  fields.only("tools", {Json::array()});
  fields.only("tool_choice", {"none", "auto"});
  fields.only("functions", {Json::array()});
  fields.only("function_call", {"none", "auto"});
  fields.only("response_format", {Json{{"type", "text"}}});
  fields.only("modalities", {Json::array({"text"})});
  fields.refuse_others();
  return fields.take_error();
}

MaybeApiError read_completion_request(std::string_view body, CompletionRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, "");
  read_prompt(fields, request);
  read_settings(fields, request.settings);
  if (!request.settings.max_tokens) request.settings.max_tokens = 16;  // OpenAI's default
  fields.only("best_of", {1});
  fields.only("echo", {false});
  fields.only("logprobs", {});
  fields.only("suffix", {""});
  fields.refuse_others();
  return fields.take_error();
}

MaybeApiError read_tokenize_request(std::string_view body, TokenizeRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, "");
  if (fields.find("content") == nullptr) fields.fail("content", "missing");
  request.text = fields.text("content", "");
  request.add_special = fields.flag("add_special", false);
  request.parse_special = fields.flag("parse_special", true);
  fields.text("model", "");
  fields.only("with_pieces", {false});
  fields.refuse_others();
  return fields.take_error();
}

MaybeApiError read_detokenize_request(std::string_view body, std::vector<std::int32_t>& ids) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, "");
  const Json* const list = fields.find("tokens");
  if (list == nullptr || !list->is_array()) {
    fields.fail("tokens", "expected a list of token ids");
  } else {
    read_ids(fields, "tokens", *list, ids);
  }
  fields.text("model", "");
  fields.refuse_others();
  return fields.take_error();
}

MaybeApiError read_template_request(std::string_view body, ChatRequest& request) {
  Json json;
  if (MaybeApiError error = parse_body(body, json)) return error;
  FieldReader fields(json, "");
  read_messages(fields, request.messages);
  request.settings.model = fields.text("model", "");
  request.thinks = read_thinks(fields);
  fields.refuse_others();
  return fields.take_error();
}

}  // namespace tqcache::serve
