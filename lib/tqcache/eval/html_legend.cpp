#include "tqcache/eval/html_legend.h"

#include <fmt/format.h>

#include <cmath>

#include "tqcache/eval/html_text.h"
#include "tqcache/eval/svg_bars.h"
#include "tqcache/eval/svg_canvas.h"
#include "tqcache/eval/svg_color_scale.h"
#include "tqcache/eval/svg_mark.h"

namespace tqcache::eval {
namespace {

// A sample of what stands in the picture; the text beside it is its name.
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
    if (scale->is_log) text += "<li>colors in equal factors</li>\n";
  }
  if (has_gap(map)) text += "<li>hatched: no number</li>\n";
  return list(text);
}

std::string legend(const Bars& bars) {
  const std::vector<std::string> names = part_names(bars);
  std::string items;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Canvas canvas;
    canvas.box({1, 2, 15, 14}, "part " + series_class(i));
    items += item(key(16, canvas.markup()), names[i]);
  }
  return list(items);
}

}  // namespace tqcache::eval
