#pragma once
// tokenizer/word_rules.h: how a text of a SentencePiece vocabulary is cut into words before its
// pieces are found. Safe for untrusted input.
//
// A word begins with its space: " the" and "the" are different tokens, and the first word of a
// text may get a space that is not there.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tqcache::tokenizer {

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
void split_words(const WordRules& rules, std::string_view text, bool begins,
                 const std::function<void(std::string_view)>& word);

}  // namespace tqcache::tokenizer
