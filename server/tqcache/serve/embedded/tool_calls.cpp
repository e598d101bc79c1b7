#include "tqcache/serve/embedded/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "tqcache/tensors/foreign_json.h"

namespace tqcache::serve {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr tensors::JsonLimits kLimits = {.max_bytes = std::size_t{1} << 20, .max_depth = 32};

constexpr std::string_view kSpaces = " \t\r\n";
bool is_white(char c) { return kSpaces.find(c) != std::string_view::npos; }

std::string make_call_id() {
  thread_local std::random_device device;
  return fmt::format("call_{:08x}{:08x}", device(), device());
}

// The call in the text between the two tags, or nothing if it is another text.
std::optional<ToolCall> read_call(std::string_view text) {
  const auto json = tensors::parse_json(text, kLimits);
  if (!json || !json->is_object()) return std::nullopt;
  const auto name = json->find("name");
  const auto arguments = json->find("arguments");
  if (name == json->end() || !name->is_string() || name->get<std::string>().empty() ||
      arguments == json->end() || !arguments->is_object()) {
    return std::nullopt;
  }
  // As the model has written it: an object that was parsed has lost the order of its keys.
  const auto raw = raw_member(text, "arguments");
  if (!raw) return std::nullopt;
  return ToolCall{make_call_id(), name->get<std::string>(), std::string(*raw)};
}

// How much of the end of a text may be the beginning of a call, with the white space before it.
std::size_t length_of_beginning(std::string_view text) {
  std::size_t n = std::min(kOpen.size() - 1, text.size());
  while (n > 0 && !kOpen.starts_with(text.substr(text.size() - n))) --n;
  while (n < text.size() && is_white(text[text.size() - n - 1])) ++n;
  return n;
}

// The end of the string whose first quote is at `at`.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// The end of the value that begins at `at`.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  if (at < text.size() && text[at] == '"') return end_of_string(text, at);
  std::size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const bool closes = c == '}' || c == ']';
    if (depth == 0 && (closes || c == ',' || is_white(c))) return at;
    if (c == '{' || c == '[') ++depth;
    ++at;
    if (closes && --depth == 0) return at;
  }
  return at;
}

}  // namespace

std::optional<std::string_view> raw_member(std::string_view object, std::string_view key) {
  std::size_t at = std::min(object.find('{'), object.size());
  while (at < object.size()) {
    const std::size_t begin = object.find('"', at);
    if (begin == std::string_view::npos) return std::nullopt;
    const std::size_t end = end_of_string(object, begin);
    // A name may be written with escapes.
    const auto name = nlohmann::json::parse(object.substr(begin, end - begin), nullptr, false);
    std::size_t value = std::min(object.find(':', end), object.size());
    value = std::min(object.find_first_not_of(": \t\r\n", value), object.size());
    at = end_of_value(object, value);
    if (name.is_string() && name.get_ref<const std::string&>() == key) {
      return object.substr(value, at - value);
    }
  }
  return std::nullopt;
}

std::optional<ToolCall> make_call(std::string name, std::string arguments) {
  const auto json = tensors::parse_json(arguments, kLimits);
  if (name.empty() || !json || !json->is_object()) return std::nullopt;
  return ToolCall{make_call_id(), std::move(name), std::move(arguments)};
}

std::string ToolCallReader::add(std::string_view piece) {
  held_ += piece;
  std::string shown;
  for (;;) {
    if (is_inside_) {
      const std::size_t close = held_.find(kClose, n_searched_);
      if (close == std::string::npos) {
        n_searched_ = std::max(n_searched_, held_.size() - std::min(held_.size(), kClose.size()));
        return shown;
      }
      take_call(close + kClose.size(), shown);
      continue;
    }
    std::size_t begin = held_.find(kOpen);
    is_inside_ = begin != std::string::npos;
    if (!is_inside_) begin = held_.size() - length_of_beginning(held_);
    while (is_inside_ && begin > 0 && is_white(held_[begin - 1])) --begin;
    shown += held_.substr(0, begin);
    held_.erase(0, begin);
    n_searched_ = 0;
    if (!is_inside_) return shown;
  }
}

// Takes the call that ends at `end` out of held_.
void ToolCallReader::take_call(std::size_t end, std::string& shown) {
  const std::size_t begin = held_.find(kOpen) + kOpen.size();
  const auto text = std::string_view(held_).substr(begin, end - kClose.size() - begin);
  if (auto call = read_call(text)) {
    calls_.push_back(std::move(*call));
  } else {
    shown += held_.substr(0, end);
  }
  held_.erase(0, end);
  is_inside_ = false;
}

std::string ToolCallReader::end() {
  std::string rest = std::exchange(held_, {});
  is_inside_ = false;
  const bool is_blank = rest.find_first_not_of(kSpaces) == std::string::npos;
  // White space behind the last call is part of its form.
  return is_blank && !calls_.empty() ? "" : rest;
}

std::string assistant_fields(bool has_text, const std::vector<ToolCall>& calls,
                             const std::optional<std::string>& reasoning) {
  if (calls.empty() && !reasoning) return {};
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string fields = "{";
  if (!has_text) fields += R"("content":null,)";
  if (reasoning) fields += fmt::format(R"("reasoning_content":{},)", quoted(*reasoning));
  if (!calls.empty()) fields += R"("tool_calls":[)";
  for (const ToolCall& call : calls) {
    fields +=
        fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}},)",
                    quoted(call.id), quoted(call.name), call.arguments);
  }
  fields.pop_back();
  return fields + (calls.empty() ? "}" : "]}");
}

}  // namespace tqcache::serve
