#include "tqcache/tokenizer/utf8.h"

#include <cstdint>

namespace tqcache::tokenizer {
namespace {

// The meaning of a first byte: the number of bytes, and the bounds of the second byte (tighter than
// 80..BF to exclude overlong forms, surrogates and values past 10FFFF).
struct Lead {
  std::size_t n_bytes;  // 0: no character begins with this byte
  std::uint8_t low;
  std::uint8_t high;
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Character first_character(std::string_view text) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  const Lead lead = classify(first);
  if (lead.n_bytes == 0) return {Utf8Status::kInvalid, 0, 1};
  if (lead.n_bytes == 1) return {Utf8Status::kWhole, first, 1};

  char32_t code_point = first & (0x7fu >> lead.n_bytes);
  for (std::size_t i = 1; i < lead.n_bytes; ++i) {
    if (i == text.size()) return {Utf8Status::kCut, 0, i};
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const std::uint8_t low = i == 1 ? lead.low : 0x80;
    const std::uint8_t high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {Utf8Status::kInvalid, 0, i};
    code_point = (code_point << 6) | (byte & 0x3fu);
  }
  return {Utf8Status::kWhole, code_point, lead.n_bytes};
}

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029;
}

bool changes_direction(char32_t c) {
  return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const Utf8Character character = first_character(text.substr(n));
    if (!is_white_space(character.code_point)) break;
    n += character.n_bytes;
  }
  return n;
}

std::size_t trailing_white_space(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t start = begin - 1;
    while (start > 0 && (text[start] & 0xc0) == 0x80) --start;
    if (!is_white_space(first_character(text.substr(start)).code_point)) break;
    begin = start;
  }
  return text.size() - begin;
}

std::size_t valid_utf8_bytes(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const Utf8Character character = first_character(text.substr(position));
    if (character.status != Utf8Status::kWhole) break;
    position += character.n_bytes;
  }
  return position;
}

}  // namespace tqcache::tokenizer
