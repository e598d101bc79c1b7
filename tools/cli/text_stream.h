#pragma once
// tools/cli/text_stream.h: shows generated text token by token, never half a character, up to a
// stop string.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/stop_strings.h"
#include "tqcache/tokenizer/tokenizer.h"

namespace tqcache::cli {

class TextStream {
 public:
  // With `show`, prints to standard output; on a terminal without control characters. A text that
  // `begins` here is shown as decode() gives it: some tokenizers put a space before it.
  // Requires: no stop string is empty.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops, bool show,
             bool begins = false);

  // Whether the text goes on: not behind a stop string, which is not shown.
  Outcome<bool> add(std::int32_t id);

  // Shows what is left, even if it is no whole character, and ends the line.
  Outcome<Done> end();

  const std::string& text() const { return text_; }  // all of it so far

 private:
  void take(const std::string& bytes);
  Outcome<Done> show(const std::string& text) const;

  const tokenizer::Tokenizer& tokenizer_;
  StopFilter filter_;
  bool show_;
  bool terminal_;
  bool drops_space_;  // that comes next
  std::string text_;
  std::string pending_;  // the beginning of a character
};

}  // namespace tqcache::cli
