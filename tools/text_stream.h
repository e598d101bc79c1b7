#pragma once
// tools/text_stream.h: shows generated text token by token, never half a character.

#include <cstdint>
#include <string>
#include <string_view>

#include "console.h"
#include "tqcache/model/tokenizer.h"

namespace tqcache::cli {

class TextStream {
 public:
  // With `show`, prints to standard output; on a terminal without control characters. A text that
  // `begins` here is shown as decode() gives it: some tokenizers put a space before it.
  TextStream(const model::Tokenizer& tokenizer, bool show, bool begins = false);

  Outcome<Done> add(std::int32_t id);

  // Shows what is left, even if it is no whole character, and ends the line.
  Outcome<Done> end();

  const std::string& text() const { return text_; }  // all of it so far

 private:
  Outcome<Done> show(const std::string& text) const;

  const model::Tokenizer& tokenizer_;
  bool show_;
  bool terminal_;
  bool drops_space_;  // that comes next
  std::string text_;
  std::string pending_;  // the beginning of a character
};

}  // namespace tqcache::cli
