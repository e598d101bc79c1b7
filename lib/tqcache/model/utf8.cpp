#include "tqcache/model/utf8.h"

#include <cstdint>

namespace tqcache::model {
namespace {

// What the first byte says: how many bytes follow, and between which bounds the second one lies
// (tighter than 80..BF where overlong forms, surrogates or values past 10FFFF would begin).
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

std::size_t valid_utf8_bytes(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const Utf8Character character = first_character(text.substr(position));
    if (character.status != Utf8Status::kWhole) break;
    position += character.n_bytes;
  }
  return position;
}

}  // namespace tqcache::model
