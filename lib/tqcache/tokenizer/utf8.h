#pragma once
// tokenizer/utf8.h: a decoder of UTF-8, one character at a time. Safe for untrusted input.

#include <cstddef>
#include <string_view>

namespace tqcache::tokenizer {

enum class Utf8Status {
  kWhole,    // a character
  kCut,      // the text ends inside a character that may be valid
  kInvalid,  // no character begins like this
};

struct Utf8Character {
  Utf8Status status;
  char32_t code_point;  // when whole
  std::size_t n_bytes;  // of the character, or of its longest valid prefix: at least 1
};

// The first character of `text`. Surrogates and overlong forms are invalid.
// Requires: text not empty.
// Source:   The Unicode Standard 15, table 3-7.
Utf8Character first_character(std::string_view text);

// Whether a terminal or a page may obey the character instead of showing it: a control character
// (C0, DEL, C1), or a separator of lines or paragraphs.
bool is_control(char32_t code_point);

// Whether the character changes the direction of writing. It could disguise one name as another.
// Source: The Unicode Standard 15, Bidi_Control.
bool changes_direction(char32_t code_point);

// Returns whether the character has the Unicode property White_Space.
bool is_white_space(char32_t code_point);

// The number of white-space bytes at the beginning, or the end, of `text`. Requires: text is UTF-8.
std::size_t leading_white_space(std::string_view text);
std::size_t trailing_white_space(std::string_view text);

// The length in bytes of the longest prefix of `text` that consists of whole characters.
std::size_t valid_utf8_bytes(std::string_view text);

}  // namespace tqcache::tokenizer
