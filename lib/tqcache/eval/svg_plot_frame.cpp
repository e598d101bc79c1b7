#include "tqcache/eval/svg_plot_frame.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "tqcache/eval/html_text.h"

namespace tqcache::eval {
namespace {

constexpr double kTickSize = 12;  // of the font

struct Range {
  double least = 0;
  double greatest = 0;
  bool is_empty = true;

  void add(double value) {
    least = is_empty ? value : std::min(least, value);
    greatest = is_empty ? value : std::max(greatest, value);
    is_empty = false;
  }
};

struct Ranges {
  Range x, y;

  void add(const Point& point) {
    x.add(point.x);
    y.add(point.y);
  }
};

Ranges ranges_of(const Plot& plot, bool of_bounds) {
  Ranges ranges;
  for (const Series& series : plot.series) {
    if (series.is_bound != of_bounds) continue;
    for (const Point& point : series.points) {
      if (is_drawable(plot, point)) ranges.add(point);
    }
  }
  return ranges;
}

// Around what was measured, as much room for bounds as leaves it most of the picture.
Range with_room(const Range& range, bool is_log) {
  constexpr double kRoom = 0.35;
  Range wider = range;
  if (is_log) {
    const double factor = std::pow(range.greatest / range.least, kRoom);
    wider.least /= factor;
    wider.greatest *= factor;
  } else {
    const double room = kRoom * (range.greatest - range.least);
    wider.least -= room;
    wider.greatest += room;
  }
  return wider;
}

bool holds(const Range& range, double value) {
  return value >= range.least && value <= range.greatest;
}

// What was measured, and as much of the bounds as stands near it.
Ranges shown_ranges(const Plot& plot) {
  const Ranges measured = ranges_of(plot, false);
  if (measured.x.is_empty) return ranges_of(plot, true);
  Ranges shown = measured;
  const Range room = with_room(measured.y, plot.y.is_log);
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      const bool is_near = holds(measured.x, point.x) && holds(room, point.y);
      if (is_near && is_drawable(plot, point)) shown.add(point);
    }
  }
  return shown;
}

Scale scale_of(const Range& range, const Axis& axis, int n_ticks) {
  if (range.is_empty)
    return make_scale(axis.is_log ? 1 : 0, axis.is_log ? 10 : 1, axis.is_log, n_ticks);
  return make_scale(range.least, range.greatest, axis.is_log, n_ticks);
}

double widest(const Scale& scale) {
  double width = 0;
  for (const Tick& tick : scale.ticks) width = std::max(width, text_width(tick.text));
  return width * kTickSize;
}

// The name of an axis, cut to what stands in `width`.
std::string axis_name(const Axis& axis, double width) {
  const std::string_view suffix = axis.is_log ? " (log scale)" : "";
  const double room = width / kTickSize - text_width(suffix);
  return shortened(axis.label, std::max(room, 6.0)) + std::string(suffix);
}

}  // namespace

bool is_drawable(const Plot& plot, const Point& point) {
  return is_drawable(point.x, plot.x.is_log) && is_drawable(point.y, plot.y.is_log);
}

PlotFrame plot_frame(const Plot& plot, double width, double height) {
  const Ranges ranges = shown_ranges(plot);
  PlotFrame frame;
  frame.x = scale_of(ranges.x, plot.x, width < 500 ? 4 : 8);
  frame.y = scale_of(ranges.y, plot.y, 6);
  frame.area = {widest(frame.y) + 12, 30, width - 18, height - 48};
  return frame;
}

void draw_frame(Canvas& canvas, const Plot& plot, const PlotFrame& frame) {
  const Box& area = frame.area;
  for (const Tick& tick : frame.y.ticks) {
    const double y = frame.y_of(tick.value);
    canvas.line(area.left, y, area.right, y, "grid");
    canvas.text(area.left - 8, y + 4, tick.text, "tick end");
  }
  double free_from = -1e9;  // ticks whose texts would touch have none
  for (const Tick& tick : frame.x.ticks) {
    const double x = frame.x_of(tick.value);
    const double half = text_width(tick.text) * kTickSize / 2;
    canvas.line(x, area.top, x, area.bottom, "grid");
    if (x - half < free_from) continue;
    canvas.text(x, area.bottom + 18, tick.text, "tick mid");
    free_from = x + half + 4;
  }
  canvas.line(area.left, area.bottom, area.right, area.bottom, "axis");
  canvas.text(0, 14, axis_name(plot.y, area.right), "name");
  canvas.text(area.right, area.bottom + 40, axis_name(plot.x, area.right), "name end");
}

}  // namespace tqcache::eval
