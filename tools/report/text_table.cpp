#include "report/text_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::report {

using eval::Cell;
using eval::Figure;
using eval::Number;
using eval::Report;
using eval::Table;

namespace {

constexpr std::string_view kColumnGap = "  ";
constexpr int kMaxDecimals = 17;  // more than the precision of a double

// Text without control characters, marks that change the direction, and bytes that are no UTF-8.
std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const tokenizer::Utf8Character character = tokenizer::first_character(text);
    const bool is_shown = character.status == tokenizer::Utf8Status::kWhole &&
                          !tokenizer::is_control(character.code_point) &&
                          !tokenizer::changes_direction(character.code_point);
    shown += is_shown ? text.substr(0, character.n_bytes) : "?";
    text.remove_prefix(character.n_bytes);
  }
  return shown;
}

bool begins_code_point(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_code_point));
}

std::string cell_text(const Cell& cell) {
  if (const auto* number = std::get_if<Number>(&cell)) return number_text(*number);
  return printable(std::get<std::string>(cell));
}

bool is_number_column(const Table& table, std::size_t column) {
  return std::ranges::any_of(table.rows, [&](const std::vector<Cell>& row) {
    return column < row.size() && std::holds_alternative<Number>(row[column]);
  });
}

// The texts of one column: its name, then its cells.
std::vector<std::string> column_texts(const Table& table, std::size_t column) {
  std::vector<std::string> texts = {printable(table.columns[column])};
  for (const std::vector<Cell>& row : table.rows) {
    texts.push_back(column < row.size() ? cell_text(row[column]) : std::string());
  }
  return texts;
}

// Appends texts of equal width, one to each line.
void append_column(const std::vector<std::string>& texts, bool to_the_right,
                   std::vector<std::string>& lines) {
  std::size_t width = 0;
  for (const std::string& text : texts) width = std::max(width, width_of(text));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string space(width - width_of(texts[i]), ' ');
    lines[i] += to_the_right ? space + texts[i] : texts[i] + space;
  }
}

void drop_trailing_spaces(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

std::string facts_text(const Report& report) {
  std::vector<std::string> lines(report.facts.size());
  std::vector<std::string> names, values;
  for (const auto& [name, value] : report.facts) {
    names.push_back(printable(name));
    values.push_back(printable(value));
  }
  append_column(names, false, lines);
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    lines[i] += std::string(kColumnGap) + values[i];
    drop_trailing_spaces(lines[i]);
    text += lines[i] + '\n';
  }
  return text;
}

std::string notes_text(const Report& report) {
  std::string text;
  for (const std::string& note : report.notes) text += printable(note) + '\n';
  return text;
}

}  // namespace

std::string number_text(const Number& number) {
  if (std::isnan(number.value)) return {};
  if (std::isinf(number.value)) return number.value > 0 ? "inf" : "-inf";
  std::array<char, 512> digits;  // the largest double has 309 before the point
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), number.value,
                    std::chars_format::fixed, std::clamp(number.decimals, 0, kMaxDecimals));
  return {digits.data(), end};
}

std::string text_table(const Table& table) {
  std::vector<std::string> lines(table.rows.size() + 1);
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    if (column > 0) {
      for (std::string& line : lines) line += kColumnGap;
    }
    append_column(column_texts(table, column), is_number_column(table, column), lines);
  }
  std::string text = table.title.empty() ? "" : printable(table.title) + '\n';
  for (std::string& line : lines) {
    drop_trailing_spaces(line);
    text += line + '\n';
  }
  return text;
}

std::string report_text(const Report& report) {
  std::vector<std::string> parts = {facts_text(report)};
  for (const Figure& figure : report.figures) {
    if (const auto* table = std::get_if<Table>(&figure)) parts.push_back(text_table(*table));
  }
  parts.push_back(notes_text(report));
  std::string text;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    text += (text.empty() ? "" : "\n") + part;
  }
  return text;
}

}  // namespace tqcache::report
