#include "tqcache/eval/html_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tqcache/eval/html_text.h"

namespace tqcache::eval {
namespace {

bool has_numbers(const Table& table, std::size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
    return column < row.size() && std::holds_alternative<Number>(row[column]);
  });
}

std::string_view attributes(bool is_number) { return is_number ? " class=\"n\"" : ""; }

std::string heading(const Table& table) {
  std::string row;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    // A column without a name needs no heading, but a cell.
    const std::string_view tag = table.columns[i].empty() ? "td" : "th";
    const std::string_view scope = table.columns[i].empty() ? "" : " scope=\"col\"";
    row += fmt::format("<{0}{1}{2}>{3}</{0}>", tag, scope, attributes(has_numbers(table, i)),
                       escaped(table.columns[i]));
  }
  return row;
}

std::string cell_html(const Cell& cell, bool is_first) {
  if (const auto* const number = std::get_if<Number>(&cell)) {
    return fmt::format("<td class=\"n\">{}</td>", shown_number(*number));
  }
  const std::string text = escaped(std::get<std::string>(cell));
  if (is_first) return fmt::format("<th scope=\"row\">{}</th>", text);
  return fmt::format("<td>{}</td>", text);
}

std::string row_html(const std::vector<Cell>& row, std::size_t n_columns) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < n_columns; ++i) {
    html += i < row.size() ? cell_html(row[i], i == 0) : "<td></td>";
  }
  return html + "</tr>\n";
}

}  // namespace

std::string html_table(const Table& table, const std::string& label) {
  if (table.rows.empty() || table.columns.empty())
    return "<p class=\"note\">Nothing to show.</p>\n";
  std::string rows;
  for (const std::vector<Cell>& row : table.rows) rows += row_html(row, table.columns.size());
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">\n<table>\n"
      "<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n</div>\n",
      escaped(label), heading(table), rows);
}

}  // namespace tqcache::eval
