#pragma once
// tools/cli/text.h: Numbers as people read them, and generated text shown as it arrives.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "tqcache/session.h"
#include "tqcache/tokenizer.h"

namespace tqcache::cli {

// "1,234,567"
std::string grouped(std::uint64_t number);

// "1.2 MiB"; bytes below 1 KiB as they are.
std::string human_bytes(std::uint64_t bytes);

class TextStream {
 public:
  // With `show`, prints to standard output; on a terminal without control characters. A text that
  // `begins` here is shown as decode() gives it: some tokenizers put a space before it.
  // Requires: no stop string is empty.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops, bool show,
             bool begins = false);

  // Returns whether the text continues: not after a stop string, which is not shown.
  Result<bool> add(std::int32_t id);

  // Shows what is left, even if it is no whole character, and ends the line.
  Result<void> end();

  const std::string& text() const { return text_; }  // all of it so far

 private:
  void take(const std::string& bytes);
  Result<void> show(const std::string& text) const;

  const tokenizer::Tokenizer& tokenizer_;
  session::StopFilter filter_;
  bool show_;
  bool terminal_;
  bool drops_space_;  // that comes next
  std::string text_;
  std::string pending_;  // the beginning of a character
};

}  // namespace tqcache::cli
