#pragma once
// lib/tqcache/serve/llama_answer.h: what llama-server says at the end of an answer: tokens that it
// reused and computed, and the slot.
//
// Source: ggml-org/llama.cpp tools/server, build b11549.

#include <cstdint>
#include <optional>
#include <string_view>

namespace tqcache::serve {

// Counts are at least 0, and absent where the answer does not say them.
struct AnswerEnd {
  std::optional<std::int64_t> slot;  // /completion only. Behind it is the prompt, so a long one
                                     // may have moved it out of the tail
  bool truncated = false;            // /completion only: the context was shifted, so tokens at the
                                     // beginning of the slot are gone
  std::optional<std::int64_t> n_reused;     // tokens of the prompt
  std::optional<std::int64_t> n_computed;   // tokens of the prompt
  std::optional<std::int64_t> n_predicted;  // tokens of the answer
  std::optional<double> prompt_ms;          // to compute the prompt
};

// Reads the end of an answer: of one JSON object, or of a stream of events (SSE). `tail` may begin
// anywhere. "timings" come first; where there are none (/v1/messages, /v1/responses at once), the
// numbers are those of "usage". What fits nowhere is left out.
//
// Only fields of an event's own object count, wherever its text or the arguments of a tool have
// fields of these names: a model writes those.
AnswerEnd read_answer_end(std::string_view tail);

}  // namespace tqcache::serve
