#include "tqcache/eval/html.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tqcache/eval/html_figure.h"
#include "tqcache/eval/html_style.h"
#include "tqcache/eval/html_text.h"

namespace tqcache::eval {
namespace {

constexpr std::size_t kFiguresWithoutContents = 3;

// The policy forbids whatever the page does not have: should something slip in, it would not load.
std::string head(const Report& report) {
  return fmt::format(
      "<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
      "form-action 'none'\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
      "<meta name=\"referrer\" content=\"no-referrer\"/>\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n",
      escaped(report.title), html_style());
}

std::string facts(const Report& report) {
  if (report.facts.empty()) return "";
  std::string items;
  for (const auto& [name, value] : report.facts) {
    items += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
  }
  return fmt::format("<dl>\n{}</dl>\n", items);
}

std::string contents(const Report& report) {
  if (report.figures.size() <= kFiguresWithoutContents) return "";
  std::string items;
  for (std::size_t i = 0; i < report.figures.size(); ++i) {
    const std::string& title = title_of(report.figures[i]);
    if (title.empty()) continue;
    items += fmt::format("<li><a href=\"#figure-{}\">{}</a></li>\n", i + 1, escaped(title));
  }
  if (items.empty()) return "";
  return fmt::format("<nav aria-label=\"Figures\">\n<ol>\n{}</ol>\n</nav>\n", items);
}

std::string notes(const Report& report) {
  if (report.notes.empty()) return "";
  std::string items;
  for (const std::string& note : report.notes) items += fmt::format("<li>{}</li>\n", escaped(note));
  return fmt::format(
      "<section id=\"notes\" class=\"notes\" aria-labelledby=\"notes-name\">\n"
      "<h2 id=\"notes-name\">Notes</h2>\n<ul>\n{}</ul>\n</section>\n",
      items);
}

}  // namespace

std::string html_page(const Report& report) {
  std::string figures;
  for (std::size_t i = 0; i < report.figures.size(); ++i) {
    figures += html_figure(report.figures[i], i + 1);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html "
      "lang=\"en\">\n{}<body>\n<main>\n<header>\n<h1>{}</h1>\n{}{}</header>\n"
      "{}{}</main>\n</body>\n</html>\n",
      head(report), escaped(report.title), facts(report), contents(report), figures, notes(report));
}

}  // namespace tqcache::eval
