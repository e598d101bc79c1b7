#pragma once
// tools/cli/chat_turns.h: turns of a conversation as token ids, each to be appended to those
// before.
//
// Only the frame becomes special tokens. What a person types is text, even if it spells
// <|im_end|>: nobody can close their own turn and speak for the model.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tokenizer/chat_template.h"
#include "tqcache/tokenizer/tokenizer.h"

namespace tqcache::cli {

using Ids = std::vector<std::int32_t>;

class ChatTurns {
 public:
  // The form of this name, or, when it is empty, the model's own: that of the template in its
  // files, or ChatML where there is none and the tokenizer has ChatML's tokens.
  // Requires: `tokenizer` outlives this.
  // Errors:   kUnsupported when there is no such form, or the tokenizer lacks its marks.
  static Result<ChatTurns> make(const tokenizer::Tokenizer& tokenizer, std::string_view name);

  std::string_view name() const { return template_.format().name; }

  // What has to follow `tokens` so that the model answers to `text`. `system` counts only where
  // `tokens` is empty.
  // Errors: those of Tokenizer::encode and ChatTemplate::render.
  Result<Ids> ask(std::span<const std::int32_t> tokens, const std::string& system,
                  const std::string& text, bool thinks) const;

  // The beginning of a user's turn or of the model's, without what a conversation begins with.
  Result<Ids> open_turn(tokenizer::ChatRole role) const;

  // What is missing at the end of `tokens` for the last turn to be closed: nothing after a closed
  // turn or a text without turns.
  Result<Ids> closing(std::span<const std::int32_t> tokens) const;

 private:
  ChatTurns(const tokenizer::Tokenizer& tokenizer, tokenizer::ChatTemplate chat_template,
            std::int32_t end)
      : tokenizer_(&tokenizer), template_(std::move(chat_template)), end_(end) {}

  // The text that closes the last turn, from the end token on, which may be there already.
  struct Closing {
    std::string text;
    bool has_end;
  };
  Closing find_closing(std::span<const std::int32_t> tokens) const;

  Result<Ids> encode(const tokenizer::ChatText& text, bool at_beginning) const;
  // Closes the last turn of `tokens` and goes on with `text`: one text, as it would have been cut
  // into tokens if all of it had been there at once.
  Result<Ids> encode_behind(std::span<const std::int32_t> tokens,
                            const tokenizer::ChatText& text) const;

  const tokenizer::Tokenizer* tokenizer_;
  tokenizer::ChatTemplate template_;
  std::int32_t end_;  // the token that ends an answer
};

// Appends `more` to `ids`.
void append_ids(Ids& ids, const Ids& more);

}  // namespace tqcache::cli
