#pragma once
// tokenizer/utf8.h: reads UTF-8 one character at a time. Safe for untrusted input.

#include <cstddef>
#include <string_view>

namespace tqcache::tokenizer {

enum class Utf8Status {
  kWhole,    // a character
  kCut,      // the text ends inside what may become a character
  kInvalid,  // no character begins like this
};

struct Utf8Character {
  Utf8Status status;
  char32_t code_point;  // when whole
  std::size_t n_bytes;  // of the character, or of the longest start of one: at least 1
};

// The character that `text` begins with. Surrogates and overlong forms are invalid.
// Requires: text not empty.
// Source:   The Unicode Standard 15, table 3-7.
Utf8Character first_character(std::string_view text);

// Whether Unicode counts it among its spaces (property White_Space).
bool is_white_space(char32_t code_point);

// How many bytes of white space `text` begins, or ends, with. Requires: text is UTF-8.
std::size_t leading_white_space(std::string_view text);
std::size_t trailing_white_space(std::string_view text);

// How many bytes of `text`, from its start, are whole characters.
std::size_t valid_utf8_bytes(std::string_view text);

}  // namespace tqcache::tokenizer
