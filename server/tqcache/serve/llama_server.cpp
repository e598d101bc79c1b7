#include "tqcache/serve/llama_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tqcache/serve/llama_answer.h"
#include "tqcache/tensors/foreign_json.h"

namespace tqcache::serve {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Before each token of a prompt that is given as tokens (Asked::prompt).
constexpr char kTokenMark = '\x01';

// A field of an object, or null.
const Json& field(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::int64_t number(const Json& value, std::int64_t otherwise = 0) {
  return value.is_number_integer() ? value.get<std::int64_t>() : otherwise;
}

std::string text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// What is nested deeper could overflow the stack: writing or copying it takes a call for each
// level.
constexpr tensors::JsonLimits kLimits{.max_bytes = SIZE_MAX,
                                      .max_depth = kDeepestJson,
                                      .max_values = SIZE_MAX,
                                      .takes_repeated_keys = true};

// Discarded: not JSON, or too deep.
Json parse(std::string_view text) {
  auto value = tensors::parse_json(text, kLimits);
  return value ? std::move(*value) : Json(Json::value_t::discarded);
}

// What a server says, in printable ASCII.
std::string shown(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 300));
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

Result<Json> parse_answer(const std::string& body, std::string_view target) {
  Json answer = parse(body);
  if (!answer.is_discarded()) return answer;
  return corrupt(fmt::format("{}: the answer is not JSON", target));
}

std::string dumped(const OrderedJson& object) {
  return object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// The text parts of a content, joined; nullopt: there are others.
std::optional<std::string> joined_text(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string all;
  for (const Json& part : content) {
    const std::string type = text(field(part, "type"));
    if (type != "text" && type != "input_text" && type != "output_text") return std::nullopt;
    all += text(field(part, "text"));
  }
  return all;
}

// Tools of Anthropic and Responses as those of a chat completion.
OrderedJson chat_tools(const Json& tools) {
  OrderedJson list = OrderedJson::array();
  for (const Json& tool : tools) {
    OrderedJson function;
    function["name"] = text(field(tool, "name"));
    function["description"] = text(field(tool, "description"));
    const Json& schema = field(tool, tool.contains("input_schema") ? "input_schema" : "parameters");
    // Of a schema that was parsed, so there is no error.
    function["parameters"] = *tensors::parse_ordered_json(schema.dump(), kLimits);
    list.push_back({{"type", "function"}, {"function", function}});
  }
  return list;
}

// Appends a message of Anthropic. Returns false if it has a part without an equal.
bool append_anthropic(const Json& message, OrderedJson& messages) {
  const std::string role = text(field(message, "role"));
  const Json& content = field(message, "content");
  if (const auto all = joined_text(content)) {
    messages.push_back({{"role", role}, {"content", *all}});
    return true;
  }
  if (!content.is_array()) return false;
  OrderedJson own = {{"role", role}, {"content", ""}};
  OrderedJson calls = OrderedJson::array();
  std::string all;
  for (const Json& part : content) {
    const std::string type = text(field(part, "type"));
    if (type == "text") {
      all += text(field(part, "text"));
    } else if (type == "tool_use") {
      calls.push_back(
          {{"id", text(field(part, "id"))},
           {"type", "function"},
           {"function",
            {{"name", text(field(part, "name"))}, {"arguments", field(part, "input").dump()}}}});
    } else if (type == "tool_result") {
      const auto result = joined_text(field(part, "content"));
      if (!result) return false;
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", text(field(part, "tool_use_id"))},
                          {"content", *result}});
    } else {
      return false;
    }
  }
  own["content"] = all;
  if (!calls.empty()) own["tool_calls"] = calls;
  if (!all.empty() || !calls.empty()) messages.push_back(own);
  return true;
}

bool append_item(const Json& item, OrderedJson& messages) {
  const std::string type = text(field(item, "type"));
  if (!type.empty() && type != "message") return false;
  const auto all = joined_text(field(item, "content"));
  if (!all) return false;
  messages.push_back({{"role", text(field(item, "role"))}, {"content", *all}});
  return true;
}

// Whether a list of content parts has one that is neither text, nor a call of a tool or its result.
bool has_media(const Json& content) {
  static const std::set<std::string> kOthers = {
      "text",     "input_text",  "output_text",       "tool_use", "server_tool_use",
      "thinking", "tool_result", "redacted_thinking", "refusal",  "reasoning_text"};
  if (!content.is_array()) return false;
  return std::ranges::any_of(content, [](const Json& part) {
    return (part.is_object() && !kOthers.contains(text(field(part, "type")))) ||
           has_media(field(part, "content"));
  });
}

// The same for a request. A prompt that is an object has a list of media.
bool has_media(const Json& request, Api api) {
  if (api == Api::kCompletion) {
    const Json& prompt = field(request, "prompt");
    return prompt.is_object() || (prompt.is_array() && std::ranges::any_of(prompt, [](auto& each) {
                                    return each.is_object();
                                  }));
  }
  const Json& messages = field(request, api == Api::kResponses ? "input" : "messages");
  return messages.is_array() && std::ranges::any_of(messages, [](const Json& message) {
           const std::string type = text(field(message, "type"));
           return type == "input_image" || type == "input_file" || type == "input_audio" ||
                  has_media(field(message, "content")) || has_media(field(message, "output"));
         });
}

// Whether llama-server would make several answers: it takes 2.0 for 2, too.
bool is_more_than_one(const Json& value) { return value.is_number() && !(value.get<double>() < 2); }

bool is_tokens(const Json& value) {
  if (!value.is_array() || value.empty()) return false;
  for (const Json& each : value) {
    if (!each.is_number_integer() || each.get<std::int64_t>() < 0 ||
        each.get<std::int64_t>() > INT32_MAX) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string as_chat(Api api, std::string_view body) {
  const Json asked = parse(body);
  if (!asked.is_object()) return {};
  OrderedJson chat;
  OrderedJson messages = OrderedJson::array();
  const bool is_anthropic = api == Api::kMessages;
  const auto system = joined_text(field(asked, is_anthropic ? "system" : "instructions"));
  if (system) messages.push_back({{"role", "system"}, {"content", *system}});
  const Json& items = field(asked, is_anthropic ? "messages" : "input");
  if (items.is_string()) {
    messages.push_back({{"role", "user"}, {"content", items.get<std::string>()}});
  } else if (items.is_array()) {
    for (const Json& item : items) {
      if (!(is_anthropic ? append_anthropic(item, messages) : append_item(item, messages))) break;
    }
  }
  chat["messages"] = messages;
  if (const Json& tools = field(asked, "tools"); tools.is_array() && !tools.empty()) {
    chat["tools"] = chat_tools(tools);
  }
  return dumped(chat);
}

Result<std::string> LlamaServer::call(std::string_view method, const std::string& target,
                                      std::string body, Client* client) const {
  std::vector<Header> headers = headers_;
  if (!body.empty()) headers.push_back({"Content-Type", "application/json"});
  TQC_TRY_ASSIGN(Upstream::Reply reply, upstream_.call(method, upstream_.prefix() + target,
                                                       std::move(body), headers, client));
  if (reply.status == 200) return std::move(reply.body);
  const Json answer = parse(reply.body);
  const std::string message = shown(text(field(field(answer, "error"), "message")));
  const ErrorCode code = reply.status == 503 ? ErrorCode::kBusy : ErrorCode::kUnsupported;
  return Error{code, fmt::format("{}: status {}{}{}", target, reply.status,
                                 message.empty() ? "" : ": ", message)};
}

Result<ServerProps> LlamaServer::props() const {
  TQC_TRY_ASSIGN(const std::string body, call("GET", "/props", {}, nullptr));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "/props"));
  ServerProps props;
  const auto is_true = [](const Json& value) { return value.is_boolean() && value.get<bool>(); };
  props.build = text(field(answer, "build_info"));
  props.is_router = text(field(answer, "role")) == "router";
  if (props.is_router) return props;
  props.is_sleeping = is_true(field(answer, "is_sleeping"));
  props.model_path = text(field(answer, "model_path"));
  props.n_slots = number(field(answer, "total_slots"));
  props.n_ctx = number(field(field(answer, "default_generation_settings"), "n_ctx"));
  props.takes_images = is_true(field(field(answer, "modalities"), "vision"));
  props.takes_audio = is_true(field(field(answer, "modalities"), "audio"));
  if (props.n_slots < 1 || props.n_slots > 1024) {
    return corrupt("/props: no number of slots: the server is not llama-server");
  }
  // Keys and values depend on adapters that are applied.
  const auto adapters = call("GET", "/lora-adapters", {}, nullptr);
  if (!adapters) return props;
  const Json list = parse(*adapters);
  if (!list.is_array()) return props;
  for (const Json& adapter : list) {
    const Json& scale = field(adapter, "scale");
    if (scale.is_number() && scale.get<double>() != 0) props.adapters += adapter.dump();
  }
  return props;
}

Result<bool> LlamaServer::is_sleeping() const {
  TQC_TRY_ASSIGN(const std::string body, call("GET", "/props", {}, nullptr));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "/props"));
  const Json& sleeps = field(answer, "is_sleeping");
  return sleeps.is_boolean() && sleeps.get<bool>();
}

Result<std::vector<SlotState>> LlamaServer::slots() const {
  TQC_TRY_ASSIGN(const std::string body, call("GET", "/slots", {}, nullptr));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "/slots"));
  if (!answer.is_array()) return corrupt("/slots: the answer is not a list");
  std::vector<SlotState> slots;
  for (const Json& each : answer) {
    SlotState slot;
    slot.id = number(field(each, "id"), -1);
    const Json& processing = field(each, "is_processing");
    slot.is_processing = processing.is_boolean() && processing.get<bool>();
    if (const Json& task = field(each, "id_task"); task.is_number_integer()) {
      slot.task = task.get<std::int64_t>();
    }
    slot.n_tokens = number(field(each, "n_prompt_tokens"));
    slot.n_ctx = number(field(each, "n_ctx"));
    slot.n_computed = number(field(each, "n_prompt_tokens_processed"));
    slot.n_reused = number(field(each, "n_prompt_tokens_cache"));
    slots.push_back(slot);
  }
  return slots;
}

Result<Asked> LlamaServer::ask(Api api, const std::string& body, Client* client) const {
  const Json request = parse(body);
  if (!request.is_object()) return invalid("the body is not a JSON object");
  Asked asked;
  const Json& slot = field(request, "id_slot");
  const Json& reuse = field(request, "cache_prompt");
  asked.is_steered =
      (!slot.is_null() && slot != -1) || (reuse.is_boolean() && !reuse.get<bool>()) ||
      is_more_than_one(field(request, "n")) || is_more_than_one(field(request, "n_cmpl"));
  const Json& adapters = field(request, "lora");
  asked.has_adapters = !adapters.is_null() && !adapters.empty();
  asked.is_media = has_media(request, api);
  const Json& is_stream = field(request, "stream");
  asked.is_stream = is_stream.is_boolean() && is_stream.get<bool>();
  for (const char* name :
       {"n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens"}) {
    const Json& n = field(request, name);
    if (!asked.n_predict && n.is_number_integer()) asked.n_predict = n.get<std::int64_t>();
  }
  if (asked.is_steered) return asked;
  if (api == Api::kCompletion) {
    const Json& prompt = field(request, "prompt");
    if (prompt.is_string()) asked.prompt = prompt.get<std::string>();
    if (is_tokens(prompt)) {
      asked.tokens = prompt.get<std::vector<std::int32_t>>();
      // Compared with the prompts of other requests as text is.
      for (const std::int32_t token : asked.tokens) {
        asked.prompt += fmt::format("{}{}", kTokenMark, token);
      }
    }
    asked.is_steered = prompt.is_array() && asked.tokens.empty();  // maybe several prompts
    return asked;
  }
  const std::string chat = api == Api::kChat ? body : as_chat(api, body);
  TQC_TRY_ASSIGN(const std::string answer, call("POST", "/apply-template", chat, client));
  TQC_TRY_ASSIGN(const Json rendered, parse_answer(answer, "/apply-template"));
  asked.prompt = text(field(rendered, "prompt"));
  return asked;
}

Result<std::vector<std::int32_t>> LlamaServer::tokenize(const std::string& prompt,
                                                        Client* client) const {
  const OrderedJson asked = {{"content", prompt}, {"add_special", true}, {"parse_special", true}};
  TQC_TRY_ASSIGN(const std::string body, call("POST", "/tokenize", dumped(asked), client));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "/tokenize"));
  const Json& tokens = field(answer, "tokens");
  if (tokens.is_array() && tokens.empty()) return std::vector<std::int32_t>{};
  if (!is_tokens(tokens)) return corrupt("/tokenize: the answer has no tokens");
  return tokens.get<std::vector<std::int32_t>>();
}

Result<std::vector<std::int32_t>> LlamaServer::tokens_of(const std::string& prompt, bool is_tokens,
                                                         Client* client) const {
  if (!is_tokens) return tokenize(prompt, client);
  std::vector<std::int32_t> tokens;
  const char *at = prompt.data(), *const end = at + prompt.size();
  while (at != end && *at == kTokenMark) {
    std::int32_t token = 0;
    const auto [next, error] = std::from_chars(at + 1, end, token);
    if (error != std::errc()) break;
    tokens.push_back(token);
    at = next;
  }
  return tokens;
}

namespace {

std::string slot_target(std::int64_t slot, std::string_view action) {
  return fmt::format("/slots/{}?action={}", slot, action);
}

}  // namespace

Result<std::int64_t> LlamaServer::save(std::int64_t slot, const std::string& file) const {
  const OrderedJson asked = {{"filename", file}};
  TQC_TRY_ASSIGN(const std::string body,
                 call("POST", slot_target(slot, "save"), dumped(asked), nullptr));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "save"));
  return number(field(answer, "n_saved"));
}

Result<std::int64_t> LlamaServer::restore(std::int64_t slot, const std::string& file,
                                          Client* client) const {
  const OrderedJson asked = {{"filename", file}};
  TQC_TRY_ASSIGN(const std::string body,
                 call("POST", slot_target(slot, "restore"), dumped(asked), client));
  TQC_TRY_ASSIGN(const Json answer, parse_answer(body, "restore"));
  return number(field(answer, "n_restored"));
}

Result<void> LlamaServer::erase(std::int64_t slot) const {
  TQC_TRY(call("POST", slot_target(slot, "erase"), "{}", nullptr));
  return {};
}

Result<std::int64_t> LlamaServer::read(std::int64_t slot, std::span<const std::int32_t> tokens,
                                       Client* client) const {
  const OrderedJson asked = {
      {"prompt", tokens}, {"n_predict", 0}, {"id_slot", slot}, {"cache_prompt", true}};
  TQC_TRY_ASSIGN(const std::string answer, call("POST", "/completion", dumped(asked), client));
  return read_answer_end(answer, "").n_computed.value_or(std::ssize(tokens));
}

}  // namespace tqcache::serve
