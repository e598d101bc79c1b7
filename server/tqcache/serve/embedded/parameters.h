#pragma once
// server/tqcache/serve/embedded/parameters.h: the table of parameters that clients may send, and
// what becomes of them.
//
// Clients send the same parameters to every server. Those that cannot change an answer are ignored;
// those that would, and are not implemented, are refused by name. This table is the only place that
// decides it. docs/reference/http.md lists it, and a test compares the two.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tqcache::serve {

// The interfaces in which clients ask for text.
enum class Dialect : std::uint8_t {
  kChat,        // OpenAI's /v1/chat/completions
  kCompletion,  // OpenAI's /v1/completions
  kMessages,    // Anthropic's /v1/messages
  kResponses,   // OpenAI's /v1/responses
};

struct Parameter {
  // As in "messages[].role". "reasoning.*" is every field of `reasoning` that has no row.
  std::string_view name;
  // For each dialect:
  //   "read"              the reader of the dialect takes it
  //   "ignored"           it cannot change the answer
  //   "only 1 or [1, 2]"  these values, in JSON, ask for nothing; others are refused
  //   ""                  unknown, and refused
  std::string_view treatments[4];
  std::string_view reason = {};  // that a refusal adds

  std::string_view treatment(Dialect dialect) const {
    return treatments[static_cast<std::size_t>(dialect)];
  }
};

std::span<const Parameter> parameters();

// The row of the field `key` in the object at `place`; null if there is none. `key` is a client's
// and may be any text. `place` is empty, or ends with a dot: "messages[3].".
const Parameter* find_parameter(std::string_view place, std::string_view key);

}  // namespace tqcache::serve
