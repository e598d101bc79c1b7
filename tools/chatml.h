#pragma once
// tools/chatml.h: turns of a conversation as token ids, in ChatML:
//
//   <|im_start|>ROLE\nTEXT<|im_end|>\n
//
// Only the frame becomes special tokens. What a person types is text, even if it spells
// <|im_end|>: nobody can close their own turn and speak for the model.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/tokenizer.h"

namespace tqcache::cli {

using Ids = std::vector<std::int32_t>;

class ChatMl {
 public:
  // Requires: `tokenizer` outlives this. Errors: kUnsupported when it has no ChatML tokens.
  static Result<ChatMl> make(const model::Tokenizer& tokenizer);

  // Errors: those of Tokenizer::encode.
  Result<Ids> turn(std::string_view role, std::string_view text) const;

  // The beginning of a turn that the model shall write.
  Result<Ids> open_turn(std::string_view role) const;

  // What is missing at the end of `tokens` for the last turn to be closed: nothing after a closed
  // turn or a text without turns.
  Result<Ids> closing(std::span<const std::int32_t> tokens) const;

 private:
  ChatMl(const model::Tokenizer& tokenizer, std::int32_t start, std::int32_t end)
      : tokenizer_(&tokenizer), start_(start), end_(end) {}

  Result<Ids> plain(std::string_view text) const;

  const model::Tokenizer* tokenizer_;
  std::int32_t start_;  // <|im_start|>
  std::int32_t end_;    // <|im_end|>
};

// Appends `more` to `ids`.
void append_ids(Ids& ids, const Ids& more);

}  // namespace tqcache::cli
