#pragma once
// tokenizer/pretokenizer.h: cuts a text into pieces (words, numbers, runs of spaces) by a regular
// expression, so that merging never crosses their borders. Safe for untrusted input.
//
// The expressions were written for Oniguruma, and PCRE2 runs them here. What the two understand
// differently is translated or refused: a tokenizer that is nearly right is wrong. What remains is
// the version of Unicode: to PCRE2 10.42 (Unicode 14) the letters that came later, all of rare
// scripts, are no letters.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::tokenizer {

class Pretokenizer {
 public:
  // Errors: kCorrupt (no regular expression), kUnsupported (a construct that PCRE2 and Oniguruma
  //         disagree on), kTooLarge.
  static Result<Pretokenizer> compile(std::string_view pattern);

  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // The memory of one thread's matching.
  class Matcher {
   public:
    // Requires: `pretokenizer` outlives the matcher.
    explicit Matcher(const Pretokenizer& pretokenizer);
    Matcher(Matcher&&) noexcept;
    ~Matcher();

    // Calls piece() for every match and for everything between matches, in order: together they
    // are the text.
    // Requires: text is UTF-8.
    // Errors:   kTooLarge when the match limit is passed.
    Result<void> split(std::string_view text, const std::function<void(std::string_view)>& piece);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  explicit Pretokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The expression in PCRE2's dialect. Errors: kUnsupported, kCorrupt (ends inside a construct).
Result<std::string> translate_pattern(std::string_view pattern);

}  // namespace tqcache::tokenizer
