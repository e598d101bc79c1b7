#include "tqcache/serve/llama_answer.h"

#include <functional>
#include <nlohmann/json.hpp>

namespace tqcache::serve {
namespace {

using Json = nlohmann::json;

// Where the string whose last quote is at `end` begins; npos: before the text.
std::size_t begin_of_string(std::string_view text, std::size_t end) {
  for (std::size_t at = end; at > 0;) {
    at = text.rfind('"', at - 1);
    if (at == std::string_view::npos) break;
    // Inside a string each quote is escaped: an odd number of backslashes is before it.
    std::size_t n = 0;
    while (n < at && text[at - 1 - n] == '\\') ++n;
    if (n % 2 == 0) return at;
  }
  return std::string_view::npos;
}

// Calls `visit` with the fields of the object that ends with the text, the last one first. The text
// may begin inside of the object: then those fields are visited that are whole. Backward is the one
// direction in which a cut object can be read: its end is known, its beginning is not.
void for_each_field_backward(
    std::string_view text,
    const std::function<void(std::string_view key, std::string_view value)>& visit) {
  int depth = 0;
  std::size_t value_end = 0;
  for (std::size_t i = text.size(); i-- > 0;) {
    switch (text[i]) {
      case '"':
        i = begin_of_string(text, i);
        if (i == std::string_view::npos) return;
        break;
      case '}':
      case ']':
        if (depth++ == 0) value_end = i;
        break;
      case '{':
      case '[':
        if (--depth <= 0) return;
        break;
      case ',':
        if (depth == 1) value_end = i;
        break;
      case ':': {
        if (depth != 1) break;
        // nlohmann::json writes no space before a colon.
        const std::size_t begin =
            i > 0 && text[i - 1] == '"' ? begin_of_string(text, i - 1) : std::string_view::npos;
        if (begin == std::string_view::npos) return;
        visit(text.substr(begin + 1, i - begin - 2), text.substr(i + 1, value_end - i - 1));
        i = begin;
        break;
      }
      default:
        break;
    }
  }
}

// A number of tokens or milliseconds that makes sense.
std::optional<double> amount_in(const Json& object, const char* name) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double n = found->get<double>();
  return n >= 0 && n <= 1e12 ? std::optional(n) : std::nullopt;
}

std::optional<std::int64_t> count_in(const Json& object, const char* name) {
  const auto n = amount_in(object, name);
  return n ? std::optional(static_cast<std::int64_t>(*n)) : std::nullopt;
}

void read_timings(const Json& timings, AnswerEnd& end) {
  end.n_reused = count_in(timings, "cache_n");
  end.n_computed = count_in(timings, "prompt_n");
  end.n_predicted = count_in(timings, "predicted_n");
  end.prompt_ms = amount_in(timings, "prompt_ms");
}

void read_usage(const Json& usage, AnswerEnd& end) {
  if (const auto n_reused = count_in(usage, "cache_read_input_tokens")) {  // Anthropic's
    end.n_reused = n_reused;
    end.n_computed = count_in(usage, "input_tokens");
    end.n_predicted = count_in(usage, "output_tokens");
    return;
  }
  const bool is_chat = usage.is_object() && usage.contains("prompt_tokens");
  const auto details =
      usage.is_object()
          ? usage.value(is_chat ? "prompt_tokens_details" : "input_tokens_details", Json())
          : Json();
  const auto n_prompt = count_in(usage, is_chat ? "prompt_tokens" : "input_tokens");
  const auto n_reused = count_in(details, "cached_tokens");
  end.n_predicted = count_in(usage, is_chat ? "completion_tokens" : "output_tokens");
  if (!n_prompt || !n_reused || *n_reused > *n_prompt) return;
  end.n_reused = n_reused;
  end.n_computed = *n_prompt - *n_reused;
}

// The usage of the first event of a stream, if that is {"type": "message_start", "message":
// {"usage": ...}}.
void read_message_start(std::string_view head, AnswerEnd& end) {
  constexpr std::string_view kData = "data: ";
  while (!head.empty()) {
    const std::size_t line_end = head.find('\n');
    if (line_end == std::string_view::npos) return;  // maybe cut
    const std::string_view line = head.substr(0, line_end);
    head.remove_prefix(line_end + 1);
    if (!line.starts_with(kData)) continue;  // "event: ..."
    const Json event = Json::parse(line.substr(kData.size()), nullptr, false);
    if (!event.is_object()) return;
    const auto type = event.find("type"), message = event.find("message");
    if (type == event.end() || *type != "message_start") return;
    if (message == event.end() || !message->is_object()) return;
    const auto usage = message->find("usage");
    AnswerEnd start;
    if (usage != message->end()) read_usage(*usage, start);
    if (!start.n_reused || !start.n_computed) return;
    end.n_reused = start.n_reused;
    end.n_computed = start.n_computed;
    return;
  }
}

}  // namespace

AnswerEnd read_answer_end(std::string_view tail, std::string_view head) {
  AnswerEnd end;
  bool has_timings = false, has_usage = false;
  // An event is a line, and so is an answer at once: JSON strings have no line ends.
  while (!tail.empty() && !has_timings) {
    const std::size_t line_end = tail.find_last_not_of(" \t\r\n");
    if (line_end == std::string_view::npos) break;
    const std::size_t before = tail.rfind('\n', line_end);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string_view line = tail.substr(begin, line_end + 1 - begin);
    tail = tail.substr(0, begin);
    if (!line.ends_with('}')) continue;  // "data: [DONE]", "event: ...", ": ping"
    Json timings, usage;
    for_each_field_backward(line, [&](std::string_view key, std::string_view value) {
      if (key == "timings") timings = Json::parse(value, nullptr, false);
      if (key == "usage") usage = Json::parse(value, nullptr, false);
      if (key == "truncated") end.truncated = end.truncated || value == "true";
      if (key == "id_slot" && !end.slot) {
        const Json slot = Json::parse(value, nullptr, false);
        const bool is_slot = slot.is_number_unsigned() && slot.get<std::uint64_t>() <= 1024;
        if (is_slot) end.slot = slot.get<std::int64_t>();
      }
    });
    if (timings.is_object()) {
      has_timings = true;
      read_timings(timings, end);
    } else if (usage.is_object() && !has_usage) {
      has_usage = true;
      read_usage(usage, end);
    }
  }
  if (!end.n_reused && !end.n_computed) read_message_start(head, end);
  return end;
}

}  // namespace tqcache::serve
