#include "tqcache/eval/html_figure.h"

#include <fmt/format.h>

#include "tqcache/eval/html_data.h"
#include "tqcache/eval/html_legend.h"
#include "tqcache/eval/html_table.h"
#include "tqcache/eval/html_text.h"
#include "tqcache/eval/svg_bars.h"
#include "tqcache/eval/svg_heat_map.h"
#include "tqcache/eval/svg_plot.h"

namespace tqcache::eval {
namespace {

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

// What stands below title and caption.
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

}  // namespace

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

const std::string& title_of(const Figure& figure) {
  return std::visit([](const auto& shown) -> const std::string& { return shown.title; }, figure);
}

}  // namespace tqcache::eval
