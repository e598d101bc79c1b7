#include "tqcache/research/answers.h"

#include <utf8proc.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::research {
namespace {

enum class Kind { kSpace, kMark, kOther };

// utf8proc counts line feeds and tabs as control characters.
Kind kind_of(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
      return Kind::kSpace;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return Kind::kMark;
    default:
      return Kind::kOther;
  }
}

void append_lower(char32_t c, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
  const auto n = static_cast<std::size_t>(utf8proc_encode_char(lower, bytes.data()));
  text.append(reinterpret_cast<const char*>(bytes.data()), n);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether text[at] and the character before it are digits of the same number.
bool cuts_number(std::string_view text, std::size_t at) {
  return at > 0 && at < text.size() && is_digit(text[at - 1]) && is_digit(text[at]);
}

bool contains(std::string_view text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    if (!cuts_number(text, at) && !cuts_number(text, at + part.size())) return true;
  }
  return false;
}

}  // namespace

std::string plain_answer(std::string_view text) {
  std::string plain;
  bool space = false;
  while (!text.empty()) {
    const tokenizer::Utf8Character c = tokenizer::first_character(text);
    text.remove_prefix(c.n_bytes);
    if (c.status != tokenizer::Utf8Status::kWhole) continue;
    const Kind kind = kind_of(c.code_point);
    if (kind == Kind::kSpace) space = !plain.empty();
    if (kind != Kind::kOther) continue;
    if (space) plain += ' ';
    space = false;
    append_lower(c.code_point, plain);
  }
  auto composed = tokenizer::normalize({tokenizer::Normalizer::kNfc}, plain);
  return composed ? std::move(composed).value() : plain;
}

Match match_answer(std::string_view given, std::span<const std::string> expected) {
  const std::string answer = plain_answer(given);
  Match match;
  for (const std::string& each : expected) {
    const std::string wanted = plain_answer(each);
    if (wanted.empty()) continue;
    match.exact |= answer == wanted;
    match.found |= contains(answer, wanted);
  }
  return match;
}

std::vector<std::string> score_columns(std::vector<std::string> first) {
  first.insert(first.end(), {"trials", "found", "+-", "exact", "forced", "log-probability"});
  return first;
}

std::vector<eval::Cell> score_row(std::vector<eval::Cell> first, const AnswerScore& score) {
  first.emplace_back(eval::Number{static_cast<double>(score.trials), 0});
  const double found = score.mean(score.found);
  first.emplace_back(eval::Number{found, 3});
  first.emplace_back(
      eval::Number{std::sqrt(found * (1 - found) / static_cast<double>(score.trials)), 3});
  for (const std::int64_t count : {score.exact, score.forced}) {
    first.emplace_back(eval::Number{score.mean(count), 3});
  }
  first.emplace_back(eval::Number{score.mean(score.log_probability), 4});
  return first;
}

eval::HeatMap found_map(std::string title, std::string row_label, std::string column_label) {
  eval::HeatMap map;
  map.title = std::move(title);
  map.row_label = std::move(row_label);
  map.column_label = std::move(column_label);
  map.unit = "share of trials";
  map.more_is_better = true;
  map.decimals = 2;
  map.low = 0;
  map.high = 1;
  return map;
}

void add_found_row(eval::HeatMap& map, std::string name, std::span<const AnswerScore> scores) {
  map.rows.push_back(std::move(name));
  map.values.emplace_back();
  for (const AnswerScore& score : scores) map.values.back().push_back(score.mean(score.found));
}

}  // namespace tqcache::research
