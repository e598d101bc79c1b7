#include "tqcache/tokenizer/jinja/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer::jinja {

std::size_t next_character(std::string_view text, std::size_t at) {
  return at + first_character(text.substr(at)).n_bytes;
}

char32_t character_at(std::string_view text, std::size_t at) {
  const Utf8Character character = first_character(text.substr(at));
  return character.status == Utf8Status::kWhole ? character.code_point : char32_t{0xfffd};
}

std::string utf8_of(char32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string hexadecimal(const char* prefix, char32_t c, int n_digits) {
  std::string text = prefix;
  for (int i = n_digits - 1; i >= 0; --i) text += "0123456789abcdef"[(c >> (4 * i)) & 15];
  return text;
}

std::int64_t n_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

namespace {

bool contains(std::string_view characters, std::string_view one) {
  for (std::size_t at = 0; at < characters.size(); at = next_character(characters, at)) {
    if (characters.substr(at).starts_with(one)) return true;
  }
  return false;
}

std::size_t previous_character(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (text[begin] & 0xc0) == 0x80) --begin;
  return begin;
}

}  // namespace

std::size_t stripped_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = previous_character(text, end);
    if (!is_python_space(character_at(text, begin))) break;
    end = begin;
  }
  return end;
}

Text strip(Heap& heap, const Text& text, std::optional<std::string_view> characters, Sides sides) {
  const std::string_view bytes = text.bytes;
  const auto goes = [&](std::size_t begin, std::size_t end) {
    heap.spend(characters ? 1 + characters->size() : 1);
    if (characters) return contains(*characters, bytes.substr(begin, end - begin));
    return is_python_space(character_at(bytes, begin));
  };
  std::size_t begin = 0, end = bytes.size();
  while (sides.left && begin < end && !heap.is_spent()) {
    const std::size_t next = next_character(bytes, begin);
    if (!goes(begin, next)) break;
    begin = next;
  }
  while (sides.right && begin < end && !heap.is_spent()) {
    const std::size_t last = previous_character(bytes, end);
    if (!goes(last, end)) break;
    end = last;
  }
  heap.spend(end - begin);
  return part(text, begin, end);
}

namespace {

// Letters that Python writes as several in upper case, or otherwise than in title case.
bool is_several_in_upper_case(utf8proc_int32_t c) {
  return c == 0xdf || c == 0x149 || (c >= 0x1c4 && c <= 0x1cc) || (c >= 0x1f0 && c <= 0x1f3) ||
         c == 0x390 || c == 0x3b0 || c == 0x587 || (c >= 0x1e96 && c <= 0x1e9a) ||
         (c >= 0x1f50 && c <= 0x1fff) || (c >= 0xfb00 && c <= 0xfb17);
}

}  // namespace

Text change_case(Heap& heap, const Text& text, Case to) {
  TextBuilder out(heap);
  bool begins_word = true;
  for (std::size_t at = 0; at < text.bytes.size() && !heap.is_spent();) {
    const auto c = static_cast<utf8proc_int32_t>(character_at(text.bytes, at));
    const bool to_upper = to == Case::kUpper || (to != Case::kLower && begins_word);
    const bool is_special = to_upper ? is_several_in_upper_case(c) : c == 0x130 || c == 0x3a3;
    if (is_special) return heap.fail("the case of " + utf8_of(static_cast<char32_t>(c)));
    const utf8proc_int32_t changed = to_upper ? utf8proc_toupper(c) : utf8proc_tolower(c);
    out.add(utf8_of(static_cast<char32_t>(changed)), mark_at(text, at));
    const utf8proc_category_t category = utf8proc_category(c);
    const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
    const bool ends_word = is_python_space(static_cast<char32_t>(c)) || c == '-' || c == '(' ||
                           c == '{' || c == '[' || c == '<';
    begins_word = (to == Case::kTitle && !is_letter) || (to == Case::kWords && ends_word);
    at = next_character(text.bytes, at);
  }
  return out.take();
}

// The search may compare the whole part at each position.
std::size_t find_part(Heap& heap, std::string_view text, std::string_view part, std::size_t at) {
  if (at > text.size()) return std::string_view::npos;
  const std::size_t found =
      heap.is_spent() ? std::string_view::npos : text.find(part.substr(0, 64), at);
  const std::size_t n_seen = (found == std::string_view::npos ? text.size() : found) - at;
  if (!heap.spend(1 + n_seen) || part.size() <= 64) return found;
  for (std::size_t next = found; next != std::string_view::npos;
       next = text.find(part.substr(0, 64), next + 1)) {
    if (!heap.spend(64 + part.size() / 16)) return std::string_view::npos;
    if (text.substr(next).starts_with(part)) return next;
  }
  return std::string_view::npos;
}

Text replace(Heap& heap, const Text& text, std::string_view from, const Text& to,
             std::int64_t at_most) {
  TextBuilder out(heap);
  std::size_t done = 0;
  if (from.empty()) return heap.fail("a replacement of nothing");
  for (; at_most != 0 && !heap.is_spent(); --at_most) {
    const std::size_t found = find_part(heap, text.bytes, from, done);
    if (found == std::string_view::npos) break;
    out.add(text, done, found);
    out.add(to);
    done = found + from.size();
  }
  out.add(text, done, text.bytes.size());
  return out.take();
}

namespace {

// Ranges of words, from the left.
std::vector<std::pair<std::size_t, std::size_t>> words_of(std::string_view bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> words;
  std::size_t begin = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < bytes.size(); at = next_character(bytes, at)) {
    const bool is_space = is_python_space(character_at(bytes, at));
    if (!is_space && !in_word) begin = at;
    if (is_space && in_word) words.emplace_back(begin, at);
    in_word = !is_space;
  }
  if (in_word) words.emplace_back(begin, bytes.size());
  return words;
}

}  // namespace

std::vector<Value> split(Heap& heap, const Text& text, std::optional<std::string_view> separator,
                         std::int64_t at_most, bool from_right) {
  std::vector<Value> pieces;
  const std::string_view bytes = text.bytes;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  if (!heap.spend(bytes.size() * (separator ? 1 : sizeof ranges[0]))) return pieces;
  if (!separator) {
    ranges = words_of(bytes);
    const std::size_t limit = at_most < 0 ? ranges.size() : static_cast<std::size_t>(at_most);
    if (ranges.size() > limit && from_right) {
      // What is left of the last `limit` words is one piece.
      const auto first = ranges.end() - static_cast<std::ptrdiff_t>(limit);
      *(first - 1) = {0, (first - 1)->second};
      ranges.erase(ranges.begin(), first - 1);
    } else if (ranges.size() > limit) {
      ranges.resize(limit + 1);
      ranges.back().second = bytes.size();
    }
  } else if (from_right) {
    std::size_t end = bytes.size();
    for (std::int64_t n = 0; n != at_most; ++n) {
      if (end < separator->size()) break;
      const std::size_t found = bytes.rfind(*separator, end - separator->size());
      if (!heap.spend(64 + separator->size()) || found == std::string_view::npos) break;
      ranges.emplace_back(found + separator->size(), end);
      end = found;
    }
    ranges.emplace_back(0, end);
    std::ranges::reverse(ranges);
  } else {
    std::size_t begin = 0;
    for (std::int64_t n = 0; n != at_most; ++n) {
      const std::size_t found = find_part(heap, bytes, *separator, begin);
      if (!heap.spend(64) || found == std::string_view::npos) break;
      ranges.emplace_back(begin, found);
      begin = found + separator->size();
    }
    ranges.emplace_back(begin, bytes.size());
  }
  for (const auto& [begin, end] : ranges) {
    if (!heap.spend(64 + end - begin)) break;
    pieces.push_back(heap.text(part(text, begin, end)));
  }
  return pieces;
}

std::vector<Value> split_lines(Heap& heap, const Text& text, bool keeps_ends) {
  std::vector<Value> lines;
  const std::string_view bytes = text.bytes;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size() && heap.spend(1);) {
    const char32_t c = character_at(bytes, at);
    std::size_t next = next_character(bytes, at);
    const bool ends = (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (c == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
    if (ends) {
      heap.spend(64 + next - begin);
      lines.push_back(heap.text(part(text, begin, keeps_ends ? next : at)));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(heap.text(part(text, begin, bytes.size())));
  return lines;
}

std::vector<std::size_t> slice_positions(Heap& heap, std::int64_t size, const SliceBounds& bounds) {
  const std::int64_t step = bounds.step.value_or(1);
  if (step == 0) return heap.fail("a slice with step 0");
  const auto clamp = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    if (!at) return otherwise;
    if (*at < 0) return std::max(*at + size, step < 0 ? std::int64_t{-1} : std::int64_t{0});
    return std::min(*at, step < 0 ? size - 1 : size);
  };
  const std::int64_t begin = clamp(bounds.begin, step < 0 ? size - 1 : 0);
  const std::int64_t end = clamp(bounds.end, step < 0 ? -1 : size);
  std::vector<std::size_t> positions;
  // Steps beyond the size select one item at most, and could overflow.
  const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
  for (std::int64_t at = begin; stride > 0 ? at < end : at > end; at += stride) {
    if (!heap.spend(sizeof at)) break;
    positions.push_back(static_cast<std::size_t>(at));
  }
  return positions;
}

Text slice(Heap& heap, const Text& text, const SliceBounds& bounds) {
  const std::string_view bytes = text.bytes;
  if (!heap.spend(8 * bytes.size())) return Text();
  std::vector<std::size_t> offsets;  // of characters, and of the end
  for (std::size_t at = 0; at < bytes.size(); at = next_character(bytes, at)) offsets.push_back(at);
  offsets.push_back(bytes.size());
  const auto positions = slice_positions(heap, std::ssize(offsets) - 1, bounds);
  TextBuilder out(heap);
  for (std::size_t i = 0; i < positions.size();) {
    std::size_t n = 1;
    while (i + n < positions.size() && positions[i + n] == positions[i] + n) ++n;
    out.add(text, offsets[positions[i]], offsets[positions[i] + n]);
    i += n;
  }
  return out.take();
}

std::optional<Text> character(const Text& text, std::int64_t index) {
  const std::int64_t size = n_characters(text.bytes);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < index; ++i) at = next_character(text.bytes, at);
  return part(text, at, next_character(text.bytes, at));
}

Value format_percent(Heap& heap, const Text& text, const std::vector<Value>& values) {
  TextBuilder out(heap);
  std::size_t n_used = 0, done = 0;
  while (!heap.is_spent()) {
    const std::size_t at = text.bytes.find('%', done);
    if (at == std::string::npos) break;
    out.add(text, done, at);
    const char code = at + 1 < text.bytes.size() ? text.bytes[at + 1] : '\0';
    done = at + 2;
    if (code == '%') {
      out.add("%", mark_at(text, at));
      continue;
    }
    if (n_used == values.size()) return heap.fail("a format with too few values");
    const Value& value = values[n_used++];
    if (code != 's' && (code != 'd' || !value.integer())) {
      return heap.fail("the format code %" + std::string(1, code) + " of a " + type_name(value));
    }
    write_str(heap, code == 'd' ? Value(*value.integer()) : value, out);
  }
  if (n_used != values.size()) return heap.fail("a format with too many values");
  out.add(text, done, text.bytes.size());
  return out.value();
}

}  // namespace tqcache::tokenizer::jinja
