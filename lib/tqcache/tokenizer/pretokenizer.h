#pragma once
// tokenizer/pretokenizer.h: the cutting of a text into words. Safe for untrusted input.
//
// By a regular expression (byte-level BPE), or at spaces (SentencePiece).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/tokenizer/work_budget.h"

namespace tqcache::tokenizer {

// Cutting at spaces, for SentencePiece vocabularies.
//
// A word begins with its space: " the" and "the" are different tokens, and the first word of a
// text may get a space that is not there.

// Which words get a space before them, unless they have one.
enum class SpacePrefix : std::uint8_t {
  kNever = 0,
  kFirst = 1,  // the one that the text begins with
  kEach = 2,   // and those behind a special token
};

// The numbers are part of the fingerprint.
struct WordRules {
  bool drop_white_space = false;  // words are what stands between white space
  bool mark_spaces = false;       // U+2581 becomes a space, as by Normalizer::kMarkSpaces
  SpacePrefix prefix = SpacePrefix::kNever;
  bool cut_at_spaces = false;  // every space begins a word

  bool operator==(const WordRules&) const = default;
};

// Where the first word of a text ends, together with the spaces before it: at the next space.
std::size_t find_word_end(std::string_view text);

// Calls word() for the words of a piece of text between special tokens, in order. `begins` says
// whether it is the beginning of the whole text.
// Requires: text is UTF-8.
// Errors: those of word().
Result<void> split_words(const WordRules& rules, std::string_view text, bool begins,
                         const std::function<Result<void>(std::string_view)>& word);

// Cuts a text into words, numbers and runs of spaces by a regular expression; merging never crosses
// their borders.
//
// The expressions were written for Oniguruma, and PCRE2 runs them here. What the two understand
// differently is translated or refused: a tokenizer that is nearly right is wrong. What remains is
// the version of Unicode: to PCRE2 10.42 (Unicode 14) the letters that came later, all of rare
// scripts, are no letters.
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
    // Errors:   kTooLarge when a match takes more steps than one may, those of `budget` and of
    //           piece().
    Result<void> split(std::string_view text, WorkBudget& budget,
                       const std::function<Result<void>(std::string_view)>& piece);

   private:
    struct State;
    struct Range {
      std::size_t begin;
      std::size_t end;
    };
    Result<std::optional<Range>> find(std::string_view text, std::size_t from, WorkBudget& budget);
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  explicit Pretokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The expression in PCRE2's dialect. Errors: kUnsupported, kCorrupt (ends inside a construct).
Result<std::string> translate_pattern(std::string_view pattern);

// Pre-tokenizers that GGUF files name without holding their expressions.
//
// Source: llama.cpp src/llama-vocab.cpp for the names; the expressions are those of each family's
// tokenizer.json (of Mistral's: tekken.json), which llama.cpp writes differently where its own
// engine lacks a property.

// GPT-2's expression, which byte-level tokenizers use when they name none.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct KnownPretokenizer {
  std::string_view name;
  std::string_view pattern;
  std::string_view later_pattern;  // cuts what the first one leaves; empty: none
  bool ignore_merges;
  bool adds_begin;  // unless the file says otherwise
};

// nullptr when the name is not known.
const KnownPretokenizer* find_pretokenizer(std::string_view name);

}  // namespace tqcache::tokenizer
