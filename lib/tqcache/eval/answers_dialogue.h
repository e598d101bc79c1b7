#pragma once
// eval/answers_dialogue.h: how turns of a conversation look as token ids.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tokenizer/tokenizer.h"

namespace tqcache::eval {

using Ids = std::vector<std::int32_t>;

// What stands around the text of a turn. Plain ids, since the frame of a chat is special tokens
// that no text can spell.
struct Dialogue {
  Ids open_user, close_user;
  Ids open_assistant, close_assistant;
  bool one_line = false;               // an answer ends with its line, not only at an end token
  std::string_view answer_start = {};  // a text that expected answers begin with: " ", or nothing

  Ids user(const Ids& text) const;
  Ids assistant(const Ids& text) const;
};

// For a model that knows no turns: the text as it is, and then "Answer:".
// Errors: those of Tokenizer::encode.
Result<Dialogue> plain_dialogue(const tokenizer::Tokenizer& tokenizer);

// The ids of a text in which no token is special.
Result<Ids> encode_text(const tokenizer::Tokenizer& tokenizer, std::string_view text);

Ids join(std::initializer_list<Ids> parts);

// Whether an answer ends at a token. Requires: both outlive the function.
using EndsAnswer = std::function<bool(std::int32_t id)>;
EndsAnswer answer_end(const Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer);

}  // namespace tqcache::eval
