#pragma once
// server/tqcache/serve/embedded/tool_calls.h: calls of tools, in the text of an answer and in the
// messages of a conversation.
//
// Models whose chat template writes <tool_call> answer in the form that Hermes and Qwen were
// trained on:
//
//   I will look.
//   <tool_call>
//   {"name": "get_weather", "arguments": {"city": "Paris"}}
//   </tool_call>
//
// Safe for untrusted input: an answer may be anything. What is not exactly such a call stays text.
//
// Spec: docs/reference/http.md, section 2.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::serve {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object
};

// Takes the calls out of a text that comes in pieces.
class ToolCallReader {
 public:
  // The text that may be shown now. White space is held back until it is known whether a call
  // follows it, and a call until it is complete.
  std::string add(std::string_view piece);
  // The rest of the text. A call that is not complete is text.
  std::string end();

  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  void take_call(std::size_t end, std::string& shown);

  std::string held_;
  std::size_t n_searched_ = 0;  // bytes of held_ that do not begin the end of the call
  bool is_inside_ = false;      // held_ is white space and the beginning of a call
  std::vector<ToolCall> calls_;
};

// A call with a new id. nullopt: the function has no name, or `arguments` are no JSON object.
std::optional<ToolCall> make_call(std::string name, std::string arguments);

// The fields of a message of the assistant, for its template: a JSON object; empty: none. Without a
// text, `content` is null. `reasoning`: its thoughts.
std::string assistant_fields(bool has_text, const std::vector<ToolCall>& calls,
                             const std::optional<std::string>& reasoning);

// The text of a member of a JSON object, as it is written there; nullopt: it has none.
// Requires: `object` is the text of a JSON object, as tensors::parse_json() takes it.
std::optional<std::string_view> raw_member(std::string_view object, std::string_view key);

}  // namespace tqcache::serve
