#pragma once
// tokenizer/pretokenizer.h: splitting of a text into words, by a regular expression (byte-level
// BPE) or at spaces (SentencePiece). Safe for untrusted input.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/tokenizer/work_budget.h"

namespace tqcache::tokenizer {

// The PCRE2 that runs, and its Unicode: "10.42 2022-12-11, Unicode 14.0.0".
std::string pcre2_version();

// Splitting at spaces, for SentencePiece vocabularies.
//
// A word begins with its space: " the" and "the" are different tokens, and the first word of a text
// may get a space that the text does not contain.

// The words that get a space before them if they have none.
enum class SpacePrefix : std::uint8_t {
  kNever = 0,
  kFirst = 1,  // the first word of the text
  kEach = 2,   // also the words after a special token
};

// The numbers are part of the fingerprint.
struct WordRules {
  bool drop_white_space = false;  // words are what lies between white space
  bool mark_spaces = false;       // U+2581 becomes a space, as by Normalizer::kMarkSpaces
  SpacePrefix prefix = SpacePrefix::kNever;
  bool cut_at_spaces = false;  // every space begins a word

  bool operator==(const WordRules&) const = default;
};

// The end of the first word of a text with its leading spaces: the next space.
std::size_t find_word_end(std::string_view text);

// Calls word() for the words of a text segment between special tokens, in order. `begins`: the
// segment is the beginning of the whole text.
// Requires: text is UTF-8.
// Errors: those of word().
Result<void> split_words(const WordRules& rules, std::string_view text, bool begins,
                         const std::function<Result<void>(std::string_view)>& word);

// Splits a text into words, numbers and runs of spaces by a regular expression; merging never
// crosses their boundaries.
//
// The expressions were written for Oniguruma, but PCRE2 runs them here. Constructs that the two
// interpret differently are translated or refused: a tokenizer that is nearly right is wrong. The
// characters of Unicode 15 and 16, which PCRE2 10.42 does not know, are listed
// (tokenizer/new_characters.h).
class Pretokenizer {
 public:
  // Errors: kCorrupt (not a regular expression), kUnsupported (a construct that PCRE2 and Oniguruma
  //         interpret differently), kTooLarge.
  static Result<Pretokenizer> compile(std::string_view pattern);

  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // The memory of one thread for matching.
  class Matcher {
   public:
    // Requires: `pretokenizer` outlives the matcher.
    explicit Matcher(const Pretokenizer& pretokenizer);
    Matcher(Matcher&&) noexcept;
    ~Matcher();

    // Calls piece() for every match and for the text between matches, in order: together they are
    // the text.
    // Requires: text is UTF-8.
    // Errors:   kTooLarge when one match exceeds its limit of steps, those of `budget` and of
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

// Returns the expression in PCRE2's dialect. `lists_new`: categories have the characters of Unicode
// 15 and 16, whatever the tables of PCRE2 have.
// Errors: kUnsupported, kCorrupt (ends inside a construct).
Result<std::string> translate_pattern(std::string_view pattern, bool lists_new = false);

// Pre-tokenizers that GGUF files name without their expressions.
//
// Source: llama.cpp src/llama-vocab.cpp for the names; the expressions are those of each family's
//         tokenizer.json (Mistral: tekken.json). llama.cpp writes them differently where its own
//         regex engine lacks a property.

// GPT-2's expression, the default of byte-level tokenizers.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct KnownPretokenizer {
  std::string_view name;
  // Each splits what the one before leaves; empty behind the last.
  std::array<std::string_view, 5> patterns;
  bool ignore_merges;
  bool adds_begin;  // unless the file says otherwise
};

// nullptr: unknown name.
const KnownPretokenizer* find_pretokenizer(std::string_view name);

}  // namespace tqcache::tokenizer
