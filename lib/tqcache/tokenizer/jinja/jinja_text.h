#pragma once
// tokenizer/jinja/jinja_text.h: Python's operations on texts, which keep the mark of each byte.
//
// Positions in the program are characters, not bytes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/tokenizer/jinja/jinja_value.h"

namespace tqcache::tokenizer::jinja {

// --- Characters. Requires: `at` is in the text, at the beginning of a character.

std::size_t next_character(std::string_view text, std::size_t at);
char32_t character_at(std::string_view text, std::size_t at);
std::string utf8_of(char32_t c);
bool is_ascii(std::string_view text);
bool is_python_space(char32_t c);  // str.isspace()
bool is_printable(char32_t c);     // str.isprintable()
std::string hexadecimal(const char* prefix, char32_t c, int n_digits);

std::int64_t n_characters(std::string_view text);

// --- Texts

struct Sides {
  bool left = true;
  bool right = true;
};
// Without the characters at the sides that are in `characters`, or are white space if it is absent.
Text strip(Heap& heap, const Text& text, std::optional<std::string_view> characters, Sides sides);
std::size_t stripped_end(std::string_view text);  // of white space

// kTitle is str.title(); kWords is Jinja's filter `title`, where fewer characters end a word.
enum class Case { kUpper, kLower, kTitle, kWords, kCapitalized };
// Errors: kUnsupported (a letter whose other case is several letters).
Text change_case(Heap& heap, const Text& text, Case to);

// The byte position of `part` from `at` on; npos.
std::size_t find_part(Heap& heap, std::string_view text, std::string_view part, std::size_t at = 0);

Text replace(Heap& heap, const Text& text, std::string_view from, const Text& to,
             std::int64_t at_most);
// `at_most` cuts, or any number if it is negative. Without a separator, at white space.
std::vector<Value> split(Heap& heap, const Text& text, std::optional<std::string_view> separator,
                         std::int64_t at_most, bool from_right);
std::vector<Value> split_lines(Heap& heap, const Text& text, bool keeps_ends);

// The positions that Python's slice selects of `size` items, in order.
struct SliceBounds {
  std::optional<std::int64_t> begin, end, step;
};
std::vector<std::size_t> slice_positions(Heap& heap, std::int64_t size, const SliceBounds& bounds);
Text slice(Heap& heap, const Text& text, const SliceBounds& bounds);
std::optional<Text> character(const Text& text, std::int64_t index);  // negative: from the end

// "%s %d" % values.
Value format_percent(Heap& heap, const Text& text, const std::vector<Value>& values);

}  // namespace tqcache::tokenizer::jinja
