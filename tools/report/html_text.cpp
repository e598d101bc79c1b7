#include "report/html_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::report {

namespace {

using tokenizer::first_character;
using tokenizer::Utf8Character;
using tokenizer::Utf8Status;

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr std::string_view kEllipsis = "\xe2\x80\xa6";
constexpr double kEllipsisWidth = 1.1;
constexpr double kMostDigits = 1e15;

bool is_noncharacter(char32_t c) { return (c & 0xfffe) == 0xfffe || (c >= 0xfdd0 && c <= 0xfdef); }

bool is_shown(const Utf8Character& character) {
  const char32_t c = character.code_point;
  if (c == '\t' || c == '\n') return true;  // shown as a space on a page
  return character.status == Utf8Status::kWhole && !tokenizer::is_control(c) &&
         !tokenizer::changes_direction(c) && !is_noncharacter(c);
}

std::string_view markup(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

double character_width(char32_t c) {
  if (c >= 0x1100) return 1.1;  // Hangul, Chinese, Japanese, symbols
  if (c < 0x80 && std::string_view("iljtfrI.,:;'|!()[]- ").find(static_cast<char>(c)) !=
                      std::string_view::npos) {
    return 0.42;
  }
  if (c < 0x80 && std::string_view("mwMW@%").find(static_cast<char>(c)) != std::string_view::npos) {
    return 0.98;
  }
  return c >= 'A' && c <= 'Z' ? 0.72 : 0.64;
}

double width_of(const Utf8Character& character) {
  return is_shown(character) ? character_width(character.code_point) : kEllipsisWidth;
}

std::string grouped(std::string digits) {
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  const std::size_t end = std::min(digits.find('.'), digits.size());
  for (std::size_t i = end; i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

bool is_zero(std::string_view digits) {
  return digits.find_first_of("123456789") == std::string_view::npos;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const std::string_view entity = markup(text[0]);
    if (!is_shown(character)) {
      out += kReplacement;
    } else {
      out += entity.empty() ? text.substr(0, character.n_bytes) : entity;
    }
    text.remove_prefix(character.n_bytes);
  }
  return out;
}

double text_width(std::string_view text) {
  double width = 0;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    width += width_of(character);
    text.remove_prefix(character.n_bytes);
  }
  return width;
}

std::string shortened(std::string_view text, double width) {
  const double room = width - kEllipsisWidth;
  double used = 0;
  std::size_t end = 0;   // of the characters read so far
  std::size_t kept = 0;  // of those that leave space for an ellipsis
  while (end < text.size()) {
    const Utf8Character character = first_character(text.substr(end));
    used += width_of(character);
    if (used > width) return std::string(text.substr(0, kept)) + std::string(kEllipsis);
    end += character.n_bytes;
    if (used <= room) kept = end;
  }
  return std::string(text);
}

std::string shown_number(Number number) {
  const double value = number.value;
  const int decimals = std::clamp(number.decimals, 0, 12);
  if (std::isnan(value)) return "\xe2\x80\x93";
  if (std::isinf(value)) return value < 0 ? "-\xe2\x88\x9e" : "\xe2\x88\x9e";
  if (std::abs(value) >= kMostDigits) return fmt::format("{:.{}e}", value, std::min(decimals, 6));
  std::string digits = fmt::format("{:.{}f}", value, decimals);
  if (digits[0] == '-' && is_zero(digits)) digits.erase(0, 1);
  return grouped(std::move(digits));
}

int decimals_needed(double value, int n_digits) {
  if (!std::isfinite(value) || value == 0) return 0;
  // In scientific notation: digits after the point, minus trailing zeros, minus the exponent.
  const std::string text = fmt::format("{:.{}e}", value, n_digits - 1);
  const std::size_t e = text.find('e');
  const std::size_t point = std::min(text.find('.'), e - 1);
  const std::size_t last = text.find_last_not_of("0.", e - 1);
  const int digits =
      last == std::string::npos || last <= point ? 0 : static_cast<int>(last - point);
  return std::clamp(digits - std::stoi(text.substr(e + 1)), 0, 12);
}

}  // namespace tqcache::report
