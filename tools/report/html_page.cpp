#include "report/html_page.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include "report/html_table.h"
#include "report/html_text.h"
#include "report/svg_canvas.h"
#include "report/svg_figures.h"
#include "report/svg_scale.h"

namespace tqcache::report {

using eval::Bars;
using eval::Figure;
using eval::HeatMap;
using eval::Plot;
using eval::Report;
using eval::Series;
using eval::Table;

namespace {

// ---- Legends ----

// A sample of a mark or color of the picture; its name is the text beside it.
std::string key(double width, std::string_view shapes) {
  return fmt::format(
      "<svg class=\"key\" aria-hidden=\"true\" viewBox=\"0 0 {0} 16\" width=\"{0}\" "
      "height=\"16\">{1}</svg>",
      coordinate(width), shapes);
}

std::string item(std::string_view sample, std::string_view name) {
  return fmt::format("<li>{}<span>{}</span></li>\n", sample, escaped(name));
}

std::string list(std::string_view items) {
  if (items.empty()) return "";
  return fmt::format("<ul class=\"legend\">\n{}</ul>\n", items);
}

std::string sample_of(const Series& series, std::size_t index) {
  const bool is_joined = series.is_line || series.is_bound;
  Canvas canvas;
  if (is_joined) {
    canvas.line(0, 8, 28, 8, series.is_bound ? "bound" : "curve " + series_class(index));
  }
  if (!series.is_bound) {
    canvas.path(mark_outline(index, is_joined ? 14 : 8, 8), "mark " + series_class(index));
  }
  return key(is_joined ? 28 : 16, canvas.markup());
}

std::string swatches(const ColorScale& scale) {
  std::string out;
  for (int i = 0; i < kColorSteps; ++i) {
    const int step = scale.more_is_better ? kColorSteps - 1 - i : i;
    out += fmt::format("<rect class=\"cell q{}\" x=\"{}\" y=\"2\" width=\"18\" height=\"12\"/>",
                       step, 18 * i);
  }
  return key(18.0 * kColorSteps, out);
}

bool has_gap(const HeatMap& map) {
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      if (std::isnan(value_at(map, row, column))) return true;
    }
  }
  return false;
}

}  // namespace

std::string legend(const Plot& plot) {
  if (plot.series.size() == 1 && plot.series[0].name.empty()) return "";
  std::string items;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    items += item(sample_of(plot.series[i], i), plot.series[i].name);
  }
  return list(items);
}

std::string legend(const HeatMap& map) {
  const std::optional<ColorScale> scale = color_scale(map);
  std::string text;
  if (scale) {
    const std::string low = shown_number({scale->low, map.decimals});
    const std::string high = shown_number({scale->high, map.decimals});
    text += fmt::format("<li><span>{}</span>{}<span>{}</span></li>\n<li>{}{}{}</li>\n", low,
                        swatches(*scale), high, escaped(map.unit), map.unit.empty() ? "" : "; ",
                        map.more_is_better ? "higher is better" : "lower is better");
    if (scale->is_log) text += "<li>logarithmic: colors in equal factors</li>\n";
  }
  if (has_gap(map)) text += "<li>hatched: no number</li>\n";
  return list(text);
}

std::string legend(const Bars& bars) {
  const std::vector<std::string> names = part_names(bars);
  if (names.size() == 1) return "";
  std::string items;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Canvas canvas;
    canvas.box({1, 2, 15, 14}, "part " + series_class(i));
    items += item(key(16, canvas.markup()), names[i]);
  }
  return list(items);
}

namespace {

// ---- Figures ----

// Columns of the page, in CSS pixels (html_style.cpp).
constexpr double kWide = 736;
constexpr double kNarrow = 358;

std::string paragraph(std::string_view classes, std::string_view text) {
  if (text.empty()) return "";
  return fmt::format("<p class=\"{}\">{}</p>\n", classes, escaped(text));
}

std::string column(std::string_view classes, const Picture& picture) {
  return fmt::format("<div class=\"picture {}\">\n{}{}</div>\n", classes, picture.svg,
                     paragraph("note", picture.note));
}

std::string note_of(const Plot& plot) {
  const std::size_t n = n_undrawable(plot);
  if (n == 0) return "";
  const bool any_log = plot.x.is_log || plot.y.is_log;
  return fmt::format("Left out of the picture: {} point{} not finite{}.", n,
                     n == 1 ? " that is" : "s that are",
                     any_log ? ", or not positive on a logarithmic axis" : "");
}

std::string note_of(const HeatMap&) { return ""; }

std::string note_of(const Bars& bars) {
  const std::size_t n = n_undrawable(bars);
  if (n == 0) return "";
  return fmt::format("Left out of the picture: {} part{} negative or not finite.", n,
                     n == 1 ? " that is" : "s that are");
}

bool is_empty(const Plot& plot) {
  std::size_t n_points = 0;
  for (const Series& series : plot.series) n_points += series.points.size();
  return n_points == 0;
}
bool is_empty(const HeatMap& map) { return map.rows.empty() || map.columns.empty(); }
bool is_empty(const Bars& bars) { return bars.bars.empty(); }

Picture picture_of(const Plot& plot, double width, const std::string& id) {
  return svg_plot(plot, width, id);
}
Picture picture_of(const HeatMap& map, double width, const std::string& id) {
  return svg_heat_map(map, width, id);
}
Picture picture_of(const Bars& bars, double width, const std::string& id) {
  return svg_bars(bars, width, id);
}

// The content below title and caption.
std::string body_of(const Table& table, std::size_t) { return html_table(table, table.title); }

template <typename Drawn>
std::string body_of(const Drawn& figure, std::size_t number) {
  if (is_empty(figure)) return paragraph("note", "Nothing to show.");
  const std::string id = fmt::format("figure-{}", number);
  return legend(figure) + column("wide", picture_of(figure, kWide, id + "-wide")) +
         column("narrow", picture_of(figure, kNarrow, id + "-narrow")) +
         paragraph("note", note_of(figure)) +
         fmt::format("<details>\n<summary>The same as a table</summary>\n{}</details>\n",
                     html_table(data_of(figure), figure.title + ", as a table"));
}

// A section with the id "figure-<number>": title, caption, legend, picture and table. The picture
// is there twice, drawn for a wide and for a narrow column; the style sheet shows one of them.
std::string html_figure(const Figure& figure, std::size_t number) {
  return std::visit(
      [&](const auto& shown) {
        return fmt::format(
            "<section id=\"figure-{0}\" aria-labelledby=\"figure-{0}-name\">\n"
            "<h2 id=\"figure-{0}-name\">{1}</h2>\n{2}{3}</section>\n",
            number, escaped(shown.title), paragraph("caption", shown.caption),
            body_of(shown, number));
      },
      figure);
}

// ---- The page ----

const std::string& title_of(const Figure& figure) {
  return std::visit([](const auto& shown) -> const std::string& { return shown.title; }, figure);
}

constexpr std::size_t kFiguresWithoutContents = 3;  // no table of contents up to this number

// The policy forbids everything that the page does not need, so that no other content can load.
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

}  // namespace tqcache::report
