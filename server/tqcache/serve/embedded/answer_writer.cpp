#include "tqcache/serve/embedded/answer_writer.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "tqcache/version.h"

namespace tqcache::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;
using session::StopReason;

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string make_id(std::string_view prefix) {
  thread_local std::random_device device;
  return fmt::format("{}{:08x}{:08x}", prefix, device(), device());
}

bool is_cut(const Answer& answer) {
  return answer.stop == StopReason::kLength || answer.stop == StopReason::kContextFull;
}

// As llama.cpp has them, and where the prefix came from.
OrderedJson timings_json(const Answer& answer) {
  return {{"cache_n", answer.cached_tokens},
          {"cache_source", source_name(answer.source)},
          {"cache_ms", answer.load_seconds * 1000},
          {"prompt_n", answer.prompt_tokens - answer.cached_tokens},
          {"prompt_ms", answer.prompt_seconds * 1000},
          {"predicted_n", answer.completion_tokens},
          {"predicted_ms", answer.answer_seconds * 1000}};
}

std::string data_line(const OrderedJson& json) { return "data: " + text_of(json) + "\n\n"; }

// An event whose type is in its name and in its object.
std::string typed_event(const OrderedJson& json) {
  return "event: " + json["type"].get<std::string>() + "\n" + data_line(json);
}

}  // namespace

const char* source_name(PrefixSource source) {
  switch (source) {
    case PrefixSource::kNothing:
      return "nothing";
    case PrefixSource::kMemory:
      return "memory";
    case PrefixSource::kStore:
      return "store";
  }
  return "nothing";
}

AnswerWriter make_writer(Dialect dialect, const GenerationSettings& settings, std::string model) {
  switch (dialect) {
    case Dialect::kChat:
    case Dialect::kCompletion:
      break;
    case Dialect::kMessages:
      return MessagesWriter(std::move(model));
    case Dialect::kResponses:
      return ResponsesWriter(settings, std::move(model));
  }
  return CompletionWriter(dialect == Dialect::kChat, std::move(model), settings.include_usage);
}

// --- OpenAI's completions

namespace {

OrderedJson completion_usage(const Answer& answer) {
  return {{"prompt_tokens", answer.prompt_tokens},
          {"completion_tokens", answer.completion_tokens},
          {"total_tokens", answer.prompt_tokens + answer.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", answer.cached_tokens}}}};
}

const char* finish_reason(const Answer& answer) {
  if (is_cut(answer)) return "length";
  return answer.calls.empty() ? "stop" : "tool_calls";
}

OrderedJson call_json(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

CompletionWriter::CompletionWriter(bool is_chat, std::string model, bool with_usage)
    : is_chat_(is_chat),
      id_(make_id(is_chat ? "chatcmpl-" : "cmpl-")),
      model_(std::move(model)),
      with_usage_(with_usage),
      created_(std::time(nullptr)) {}

OrderedJson CompletionWriter::head(bool is_chunk) const {
  const char* object = "text_completion";
  if (is_chat_) object = is_chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_},
          {"system_fingerprint", "tqcache-" + std::string(version())}};
}

std::string CompletionWriter::whole(const Answer& answer) const {
  OrderedJson choice = {{"index", 0}};
  if (is_chat_) {
    choice["message"] = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
    if (!answer.calls.empty() && answer.text.empty()) choice["message"]["content"] = nullptr;
    if (!answer.thoughts.empty()) choice["message"]["reasoning_content"] = answer.thoughts;
    for (const ToolCall& call : answer.calls) {
      choice["message"]["tool_calls"].push_back(call_json(call));
    }
  } else {
    choice["text"] = answer.text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason(answer);
  OrderedJson json = head(false);
  json["choices"] = OrderedJson::array({choice});
  json["usage"] = completion_usage(answer);
  json["timings"] = timings_json(answer);
  return text_of(json);
}

// `finished`: the answer, in the last chunk.
std::string CompletionWriter::chunk(std::string_view text, const OrderedJson& delta,
                                    const Answer* finished) const {
  OrderedJson choice = {{"index", 0}};
  if (is_chat_) {
    choice["delta"] = delta;
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] =
      finished == nullptr ? OrderedJson() : OrderedJson(finish_reason(*finished));
  OrderedJson json = head(true);
  json["choices"] = OrderedJson::array({choice});
  if (with_usage_) json["usage"] = nullptr;
  if (finished != nullptr) json["timings"] = timings_json(*finished);
  return data_line(json);
}

std::string CompletionWriter::begin(const Answer&) const {
  return is_chat_ ? chunk("", {{"role", "assistant"}, {"content", ""}}, nullptr) : "";
}

std::string CompletionWriter::piece(std::string_view text) const {
  return chunk(text, {{"content", text}}, nullptr);
}

std::string CompletionWriter::thought(std::string_view text) const {
  return is_chat_ ? chunk("", {{"reasoning_content", text}}, nullptr) : "";
}

std::string CompletionWriter::end(const Answer& answer) const {
  std::string events;
  for (std::size_t i = 0; i < answer.calls.size(); ++i) {
    OrderedJson call = {{"index", i}};
    call.update(call_json(answer.calls[i]));
    events += chunk("", {{"tool_calls", OrderedJson::array({call})}}, nullptr);
  }
  events += chunk("", OrderedJson::object(), &answer);
  if (with_usage_) {
    OrderedJson json = head(true);
    json["choices"] = OrderedJson::array();
    json["usage"] = completion_usage(answer);
    events += data_line(json);
  }
  return events + "data: [DONE]\n\n";
}

// Without [DONE], so that no client takes the stream for complete.
std::string CompletionWriter::fail(const Answer&, const ApiError& error) const {
  return "data: " + error_json(error, Dialect::kChat) + "\n\n";
}

// --- Anthropic's messages

namespace {

// Tokens that come from a cache are not in input_tokens. Keeping tokens costs nothing here.
OrderedJson messages_usage(const Answer& answer) {
  return {{"input_tokens", answer.prompt_tokens - answer.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", answer.cached_tokens},
          {"output_tokens", answer.completion_tokens}};
}

// {"stop_reason", "stop_sequence"}
OrderedJson messages_stop(const Answer& answer) {
  const char* reason = is_cut(answer) ? "max_tokens" : "end_turn";
  if (answer.stop == StopReason::kContextFull) reason = "model_context_window_exceeded";
  if (!is_cut(answer) && !answer.calls.empty()) {
    return {{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}};
  }
  if (answer.stop != StopReason::kStopString) {
    return {{"stop_reason", reason}, {"stop_sequence", nullptr}};
  }
  return {{"stop_reason", "stop_sequence"}, {"stop_sequence", answer.stop_string}};
}

// Without its input.
OrderedJson tool_use(const ToolCall& call) {
  return {
      {"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", OrderedJson::object()}};
}

}  // namespace

MessagesWriter::MessagesWriter(std::string model)
    : id_(make_id("msg_")), model_(std::move(model)) {}

// Without content.
OrderedJson MessagesWriter::message(const Answer& answer) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", messages_usage(answer)}};
}

std::string MessagesWriter::whole(const Answer& answer) const {
  OrderedJson json = message(answer);
  if (!answer.thoughts.empty()) {
    json["content"].push_back(
        {{"type", "thinking"}, {"thinking", answer.thoughts}, {"signature", ""}});
  }
  if (answer.calls.empty() || !answer.text.empty()) {
    json["content"].push_back({{"type", "text"}, {"text", answer.text}});
  }
  for (const ToolCall& call : answer.calls) {
    OrderedJson block = tool_use(call);
    block["input"] = OrderedJson::parse(call.arguments, nullptr, false);
    json["content"].push_back(std::move(block));
  }
  json.update(messages_stop(answer));
  return text_of(json);
}

std::string MessagesWriter::open_block(const OrderedJson& block) {
  const auto type = block["type"].get<std::string>();
  if (type == open_ && type != "tool_use") return {};
  std::string events = close_block();
  open_ = type;
  return events +
         typed_event(
             {{"type", "content_block_start"}, {"index", next_block_}, {"content_block", block}});
}

std::string MessagesWriter::close_block() {
  if (open_.empty()) return {};
  open_.clear();
  return typed_event({{"type", "content_block_stop"}, {"index", next_block_++}});
}

std::string MessagesWriter::begin(const Answer& so_far) {
  std::string events = typed_event({{"type", "message_start"}, {"message", message(so_far)}});
  if (!so_far.may_think) events += open_block({{"type", "text"}, {"text", ""}});
  return events + typed_event({{"type", "ping"}});
}

std::string MessagesWriter::piece(std::string_view text) {
  std::string events = open_block({{"type", "text"}, {"text", ""}});
  return events + typed_event({{"type", "content_block_delta"},
                               {"index", next_block_},
                               {"delta", {{"type", "text_delta"}, {"text", text}}}});
}

std::string MessagesWriter::thought(std::string_view text) {
  std::string events = open_block({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
  return events + typed_event({{"type", "content_block_delta"},
                               {"index", next_block_},
                               {"delta", {{"type", "thinking_delta"}, {"thinking", text}}}});
}

std::string MessagesWriter::end(const Answer& answer) {
  std::string events;
  if (answer.calls.empty() && answer.text.empty()) {
    events += open_block({{"type", "text"}, {"text", ""}});
  }
  for (const ToolCall& call : answer.calls) {
    events += open_block(tool_use(call));
    events +=
        typed_event({{"type", "content_block_delta"},
                     {"index", next_block_},
                     {"delta", {{"type", "input_json_delta"}, {"partial_json", call.arguments}}}});
  }
  events += close_block();
  return events +
         typed_event({{"type", "message_delta"},
                      {"delta", messages_stop(answer)},
                      {"usage", messages_usage(answer)}}) +
         typed_event({{"type", "message_stop"}});
}

std::string MessagesWriter::fail(const Answer&, const ApiError& error) const {
  return "event: error\ndata: " + error_json(error, Dialect::kMessages) + "\n\n";
}

// --- OpenAI's responses

ResponsesWriter::ResponsesWriter(const GenerationSettings& settings, std::string model)
    : id_(make_id("resp_")),
      item_id_(make_id("msg_")),
      thoughts_id_(make_id("rs_")),
      model_(std::move(model)),
      settings_(settings),
      created_(std::time(nullptr)) {}

namespace {

OrderedJson output_text(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

// `arguments`: empty in an item that was begun.
OrderedJson function_call(const ToolCall& call, const std::string& arguments, const char* status) {
  return {{"type", "function_call"}, {"id", "fc_" + call.id},  {"call_id", call.id},
          {"name", call.name},       {"arguments", arguments}, {"status", status}};
}

}  // namespace

bool ResponsesWriter::has_message(const Answer& answer) const {
  return !answer.text.empty() || answer.calls.empty();
}

OrderedJson ResponsesWriter::message(const std::string& text, const char* status) const {
  OrderedJson content = OrderedJson::array();
  if (std::string_view(status) != "in_progress") content.push_back(output_text(text));
  return {{"type", "message"},
          {"id", item_id_},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

OrderedJson ResponsesWriter::reasoning(const std::string& thoughts) const {
  OrderedJson content = OrderedJson::array();
  if (!thoughts.empty()) content.push_back({{"type", "reasoning_text"}, {"text", thoughts}});
  return {{"type", "reasoning"},
          {"id", thoughts_id_},
          {"summary", OrderedJson::array()},
          {"content", std::move(content)}};
}

OrderedJson ResponsesWriter::response(const Answer& answer, const char* status) const {
  const std::string_view word(status);
  const bool is_done = word == "completed" || word == "incomplete";
  OrderedJson json = {{"id", id_},
                      {"object", "response"},
                      {"created_at", created_},
                      {"status", status},
                      {"error", nullptr},
                      {"incomplete_details", nullptr},
                      {"model", model_},
                      {"output", OrderedJson::array()},
                      {"max_output_tokens", nullptr},
                      {"parallel_tool_calls", settings_.may_call && !settings_.one_call},
                      {"previous_response_id", nullptr},
                      {"store", false},
                      {"temperature", settings_.sampling.temperature},
                      {"text", {{"format", {{"type", "text"}}}}},
                      {"tool_choice", settings_.may_call ? "auto" : "none"},
                      {"tools", OrderedJson::array()},
                      {"top_p", settings_.sampling.top_p},
                      {"truncation", "disabled"},
                      {"metadata", OrderedJson::object()},
                      {"usage", nullptr}};
  if (settings_.max_tokens) json["max_output_tokens"] = *settings_.max_tokens;
  if (word == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (is_done) {
    if (!answer.thoughts.empty()) json["output"].push_back(reasoning(answer.thoughts));
    if (has_message(answer)) json["output"].push_back(message(answer.text, status));
    for (const ToolCall& call : answer.calls) {
      json["output"].push_back(function_call(call, call.arguments, "completed"));
    }
    json["usage"] = {{"input_tokens", answer.prompt_tokens},
                     {"input_tokens_details",
                      {{"cached_tokens", answer.cached_tokens}, {"cache_write_tokens", 0}}},
                     {"output_tokens", answer.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", 0}}},
                     {"total_tokens", answer.prompt_tokens + answer.completion_tokens}};
    json["timings"] = timings_json(answer);
  }
  return json;
}

std::string ResponsesWriter::event(const char* type, const OrderedJson& fields) {
  OrderedJson json = {{"type", type}, {"sequence_number", next_event_++}};
  json.update(fields);
  return typed_event(json);
}

std::string ResponsesWriter::whole(const Answer& answer) const {
  return text_of(response(answer, is_cut(answer) ? "incomplete" : "completed"));
}

std::string ResponsesWriter::begin(const Answer& so_far) {
  const OrderedJson begun = {{"response", response(so_far, "in_progress")}};
  std::string events = event("response.created", begun);
  return events + event("response.in_progress", begun);
}

// Begins an item of text or thoughts, behind the one before it. Few answers have a second one.
std::string ResponsesWriter::open_item(const std::string& type) {
  if (open_ == type) return {};
  const bool is_first = next_item_ == 0 && open_.empty();
  std::string events = close_item("completed");
  open_ = type;
  const bool is_text = type == "message";
  std::string& id = is_text ? item_id_ : thoughts_id_;
  if (!is_first) id = make_id(is_text ? "msg_" : "rs_");
  events += event("response.output_item.added",
                  {{"output_index", next_item_},
                   {"item", is_text ? message("", "in_progress") : reasoning("")}});
  const OrderedJson part =
      is_text ? output_text("") : OrderedJson({{"type", "reasoning_text"}, {"text", ""}});
  return events +
         event(
             "response.content_part.added",
             {{"item_id", id}, {"output_index", next_item_}, {"content_index", 0}, {"part", part}});
}

std::string ResponsesWriter::close_item(const char* status) {
  if (open_.empty()) return {};
  const bool is_text = std::exchange(open_, {}) == "message";
  const std::string all = std::exchange(shown_, {});
  const OrderedJson done = is_text ? message(all, status) : reasoning(all);
  const OrderedJson place = {{"item_id", is_text ? item_id_ : thoughts_id_},
                             {"output_index", next_item_},
                             {"content_index", 0}};
  OrderedJson text = place;
  text["text"] = all;
  if (is_text) text["logprobs"] = OrderedJson::array();
  std::string events =
      event(is_text ? "response.output_text.done" : "response.reasoning_text.done", text);
  OrderedJson part = place;
  part["part"] = done["content"].empty() ? OrderedJson::object() : done["content"][0];
  events += event("response.content_part.done", part);
  return events +
         event("response.output_item.done", {{"output_index", next_item_++}, {"item", done}});
}

std::string ResponsesWriter::piece(std::string_view text) {
  std::string events = open_item("message");
  shown_ += text;
  return events + event("response.output_text.delta", {{"item_id", item_id_},
                                                       {"output_index", next_item_},
                                                       {"content_index", 0},
                                                       {"delta", text},
                                                       {"logprobs", OrderedJson::array()}});
}

std::string ResponsesWriter::thought(std::string_view text) {
  std::string events = open_item("reasoning");
  shown_ += text;
  return events + event("response.reasoning_text.delta", {{"item_id", thoughts_id_},
                                                          {"output_index", next_item_},
                                                          {"content_index", 0},
                                                          {"delta", text}});
}

std::string ResponsesWriter::call_events(const ToolCall& call) {
  const OrderedJson done = function_call(call, call.arguments, "completed");
  const OrderedJson place = {{"item_id", done["id"]}, {"output_index", next_item_}};
  std::string events =
      event("response.output_item.added",
            {{"output_index", next_item_}, {"item", function_call(call, "", "in_progress")}});
  OrderedJson delta = place, all = place;
  delta["delta"] = call.arguments;
  all["name"] = call.name;
  all["arguments"] = call.arguments;
  events += event("response.function_call_arguments.delta", delta);
  events += event("response.function_call_arguments.done", all);
  return events +
         event("response.output_item.done", {{"output_index", next_item_++}, {"item", done}});
}

std::string ResponsesWriter::end(const Answer& answer) {
  const char* const status = is_cut(answer) ? "incomplete" : "completed";
  std::string events;
  if (answer.text.empty() && answer.calls.empty()) events += open_item("message");
  events += close_item(status);
  for (const ToolCall& call : answer.calls) events += call_events(call);
  return events + event(is_cut(answer) ? "response.incomplete" : "response.completed",
                        {{"response", response(answer, status)}});
}

std::string ResponsesWriter::fail(const Answer& answer, const ApiError& error) {
  std::string events = next_event_ == 0 ? begin(answer) : "";
  OrderedJson failed = response(answer, "failed");
  failed["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                     {"message", error.message}};
  return events + event("response.failed", {{"response", std::move(failed)}});
}

}  // namespace tqcache::serve
