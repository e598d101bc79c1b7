#pragma once
// tokenizer/byte_alphabet.h: the printable characters that stand for bytes in a byte-level
// vocabulary.
//
// Vocabulary files hold text, and tokens are bytes; so each byte is written as one character: the
// printable ones of Latin-1 as themselves, the other 68 as U+0100 onward, in order. A space is
// "Ġ", a line feed "Ċ".
//
// Source: openai/gpt-2 src/encoder.py, bytes_to_unicode.

#include <optional>
#include <string>
#include <string_view>

namespace tqcache::tokenizer {

// The bytes that `text` stands for; nothing when a character is outside the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view text);

}  // namespace tqcache::tokenizer
