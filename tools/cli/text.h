#pragma once
// tools/cli/text.h: readable numbers, and generated text shown as it arrives.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "tqcache/session.h"
#include "tqcache/tokenizer.h"

namespace tqcache::cli {

// "1,234,567"
std::string grouped(std::uint64_t number);

// "1 token", "2,048 tokens"
template <class T>
std::string counted(T number, std::string_view what) {
  return grouped(static_cast<std::uint64_t>(number))
      .append(" ")
      .append(what)
      .append(number == 1 ? "" : "s");
}

// "1.2 MiB"; below 1 KiB a plain number of bytes.
std::string human_bytes(std::uint64_t bytes);

class TextStream {
 public:
  // With `show`, prints to standard output; on a terminal without control characters. A text that
  // `begins` here is an answer: it is shown as decode() returns it, without the space that some
  // tokenizers add, and channels as ShownAnswer shows them.
  // Requires: no stop string is empty.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops, bool show,
             bool begins = false);

  // Returns whether the text continues. It ends at a stop string, which is not shown.
  Result<bool> add(std::int32_t id);

  // Shows the rest, even an incomplete character, and ends the line.
  Result<void> end();

  const std::string& text() const { return text_; }  // all text so far

 private:
  void take(const std::string& bytes);
  Result<void> show(const std::string& text) const;

  const tokenizer::Tokenizer& tokenizer_;
  std::optional<session::ShownAnswer> answer_;
  session::StopFilter filter_;
  bool show_;
  bool terminal_;
  bool drops_space_;  // the next one
  std::string text_;
  std::string pending_;  // the first bytes of a character
};

}  // namespace tqcache::cli
