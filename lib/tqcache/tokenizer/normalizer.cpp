#include "tqcache/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }  // utf8proc allocates with malloc
};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

std::string_view step_name(Normalizer step) {
  switch (step) {
    case Normalizer::kNfc:
      return "nfc";
    case Normalizer::kPrependSpace:
      return "prepend";
    case Normalizer::kMarkSpaces:
      return "spaces";
    case Normalizer::kJoinSpaces:
      return "join_spaces";
    case Normalizer::kStripLeft:
      return "strip_left";
    case Normalizer::kStripRight:
      return "strip_right";
    case Normalizer::kStripSpaces:
      return "strip_spaces";
  }
  return {};
}

Result<std::string> compose(const std::string& text) {
  if (is_ascii(text)) return text;
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, FreeMemory> owner(raw);
  if (size < 0) {
    return Error{ErrorCode::kTooLarge, std::string("normalizer: ") + utf8proc_errmsg(size)};
  }
  return std::string(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(size));
}

std::string join_spaces(std::string text) {
  const auto both_spaces = [](char a, char b) { return a == ' ' && b == ' '; };
  text.erase(std::unique(text.begin(), text.end(), both_spaces), text.end());
  return text;
}

std::string strip_spaces(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

Result<std::string> apply(Normalizer step, std::string text) {
  switch (step) {
    case Normalizer::kNfc:
      return compose(text);
    case Normalizer::kPrependSpace:
      return text.empty() ? text : " " + text;
    case Normalizer::kMarkSpaces:
      return spaces_for_marks(text);
    case Normalizer::kJoinSpaces:
      return join_spaces(std::move(text));
    case Normalizer::kStripLeft:
      return text.substr(leading_white_space(text));
    case Normalizer::kStripRight:
      return text.substr(0, text.size() - trailing_white_space(text));
    case Normalizer::kStripSpaces:
      return strip_spaces(text);
  }
  return text;
}

}  // namespace

std::string normalizers_name(const Normalizers& steps) {
  if (steps.empty()) return "none";
  std::string name;
  for (const Normalizer step : steps) {
    name.append(name.empty() ? "" : "+").append(step_name(step));
  }
  return name;
}

Result<std::string> normalize(const Normalizers& steps, std::string_view text) {
  std::string normalized(text);
  for (const Normalizer step : steps) {
    TQC_TRY_ASSIGN(normalized, apply(step, std::move(normalized)));
  }
  return normalized;
}

std::string spaces_for_marks(std::string_view text) {
  std::string spaces;
  spaces.reserve(text.size());
  for (;;) {
    const std::size_t mark = text.find(kSpaceMark);
    spaces += text.substr(0, mark);
    if (mark == std::string_view::npos) return spaces;
    spaces += ' ';
    text.remove_prefix(mark + kSpaceMark.size());
  }
}

}  // namespace tqcache::tokenizer
