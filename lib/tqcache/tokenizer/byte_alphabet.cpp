#include "tqcache/tokenizer/byte_alphabet.h"

#include <array>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr std::size_t kSubstitutes = 68;

constexpr bool stands_for_itself(unsigned byte) {
  // 0xAD, the soft hyphen, is invisible.
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

constexpr std::array<char, kSubstitutes> make_substituted_bytes() {
  std::array<char, kSubstitutes> bytes{};
  std::size_t n = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) bytes[n++] = static_cast<char>(byte);
  }
  return bytes;
}

constexpr std::array<char, kSubstitutes> kSubstitutedBytes = make_substituted_bytes();

std::optional<char> byte_of(char32_t code_point) {
  if (code_point >= kFirstSubstitute + kSubstitutes) return std::nullopt;
  if (code_point >= kFirstSubstitute) return kSubstitutedBytes[code_point - kFirstSubstitute];
  if (!stands_for_itself(static_cast<unsigned>(code_point))) return std::nullopt;
  return static_cast<char>(code_point);
}

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.status != Utf8Status::kWhole) return std::nullopt;
    const std::optional<char> byte = byte_of(character.code_point);
    if (!byte) return std::nullopt;
    bytes += *byte;
    text.remove_prefix(character.n_bytes);
  }
  return bytes;
}

}  // namespace tqcache::tokenizer
