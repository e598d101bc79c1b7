#pragma once
// server/tqcache/serve/llama_answer.h: what llama-server says at the end of an answer: tokens that
// it reused and computed, and the slot.
//
// Source: ggml-org/llama.cpp tools/server, build b11549.

#include <cstdint>
#include <optional>
#include <string_view>

namespace tqcache::serve {

// Counts are at least 0, and absent where the answer does not say them.
struct AnswerEnd {
  // Of /completion only. The prompt is behind it, so a long one may have moved it out of the tail.
  std::optional<std::int64_t> slot;
  // Of /completion only: the context was full. Either tokens at the beginning of the slot are gone
  // (--context-shift), or the answer ended there: see n_held().
  bool truncated = false;
  std::optional<std::int64_t> n_reused, n_computed;  // tokens of the prompt
  std::optional<std::int64_t> n_predicted;           // tokens of the answer
  std::optional<double> prompt_ms;                   // to compute the prompt

  // Tokens that the slot holds afterwards: prompt and answer without its last token, which nobody
  // has computed from. If /slots says fewer, the context was shifted: what the slot holds is then
  // not what a model computes from these tokens.
  std::optional<std::int64_t> n_held() const {
    if (!n_reused || !n_computed || !n_predicted) return std::nullopt;
    return *n_reused + *n_computed + (*n_predicted > 0 ? *n_predicted - 1 : 0);
  }
};

// Reads the end of an answer: of one JSON object, or of a stream of events (SSE). `tail` may begin
// anywhere. "timings" come first; where there are none (/v1/messages, /v1/responses at once), the
// numbers are those of "usage". What fits nowhere is left out.
//
// `head` is the beginning of a stream. Streams of /v1/messages have what was reused and computed in
// their first event (message_start) alone, and the tokens of the answer in one of the last. It
// counts where the end says neither.
//
// Only fields of an event's own object count, wherever its text or the arguments of a tool have
// fields of these names: a model writes those.
AnswerEnd read_answer_end(std::string_view tail, std::string_view head = {});

}  // namespace tqcache::serve
