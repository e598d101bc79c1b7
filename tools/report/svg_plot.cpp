#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/html_text.h"
#include "report/svg_figures.h"
#include "report/svg_scale.h"

namespace tqcache::report {

using eval::Axis;
using eval::Plot;
using eval::Point;
using eval::Series;

namespace {

// ---- Axes ----

constexpr double kTickSize = 12;  // of the font

struct PlotFrame {
  Box area;  // between the axes
  Scale x, y;

  double x_of(double value) const { return area.left + fraction(x, value) * area.width(); }
  double y_of(double value) const { return area.bottom - fraction(y, value) * area.height(); }
};

// Whether both axes can show the point.
bool can_draw(const Plot& plot, const Point& point) {
  return is_drawable(point.x, plot.x.is_log) && is_drawable(point.y, plot.y.is_log);
}

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
      if (can_draw(plot, point)) ranges.add(point);
    }
  }
  return ranges;
}

// Leaves some space for bounds around the measured values.
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

// The ranges of the measured points and of the bounds close to them.
Ranges shown_ranges(const Plot& plot) {
  const Ranges measured = ranges_of(plot, false);
  if (measured.x.is_empty) return ranges_of(plot, true);
  Ranges shown = measured;
  const Range room = with_room(measured.y, plot.y.is_log);
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      const bool is_near = holds(measured.x, point.x) && holds(room, point.y);
      if (is_near && can_draw(plot, point)) shown.add(point);
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

// The name of an axis, shortened to `width`.
std::string axis_name(const Axis& axis, double width) {
  const std::string_view suffix = axis.is_log ? " (log scale)" : "";
  const double room = width / kTickSize - text_width(suffix);
  return shortened(axis.label, std::max(room, 6.0)) + std::string(suffix);
}

// The frame for all drawable points in a picture of this size. A plot without such points has axes
// from 0 to 1, or from 1 to 10 if logarithmic.
PlotFrame plot_frame(const Plot& plot, double width, double height) {
  const Ranges ranges = shown_ranges(plot);
  PlotFrame frame;
  frame.x = scale_of(ranges.x, plot.x, width < 500 ? 4 : 8);
  frame.y = scale_of(ranges.y, plot.y, 6);
  frame.area = {widest(frame.y) + 12, 30, width - 18, height - 48};
  return frame;
}

// Grid, ticks and names of the axes.
void draw_frame(Canvas& canvas, const Plot& plot, const PlotFrame& frame) {
  const Box& area = frame.area;
  for (const Tick& tick : frame.y.ticks) {
    const double y = frame.y_of(tick.value);
    canvas.line(area.left, y, area.right, y, "grid");
    canvas.text(area.left - 8, y + 4, tick.text, "tick end");
  }
  double free_from = -1e9;  // a tick whose text would touch the previous one gets no text
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

// ---- Labels ----

constexpr std::size_t kMostLabels = 200;
constexpr double kMarkRadius = 6;

// Directions from a point to its label: right, left, above, below, then the corners.
struct Direction {
  double x, y;
};
constexpr std::array<Direction, 8> kDirections = {
    {{1, 0}, {-1, 0}, {0, -1}, {0, 1}, {.75, -.75}, {.75, .75}, {-.75, -.75}, {-.75, .75}}};
constexpr std::array<double, 3> kDistances = {10, 18, 30};

bool overlap(const Box& a, const Box& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

bool is_within(const Box& inner, const Box& outer) {
  return inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top &&
         inner.bottom <= outer.bottom;
}

Box around(const std::pair<double, double>& point, double radius) {
  const auto [x, y] = point;
  return {x - radius, y - radius, x + radius, y + radius};
}

Box label_box(const LabelRequest& request, const Direction& direction, double distance) {
  const double width = text_width(request.text) * kLabelSize;
  const double height = kLabelSize * 1.25;
  const double x = request.x + direction.x * distance;
  const double y = request.y + direction.y * distance;
  const double left = direction.x == 0 ? x - width / 2 : direction.x > 0 ? x : x - width;
  const double top = direction.y == 0 ? y - height / 2 : direction.y > 0 ? y : y - height;
  return {left, top, left + width, top + height};
}

class Placer {
 public:
  Placer(const Box& area, const std::vector<std::pair<double, double>>& points,
         const std::vector<std::pair<double, double>>& lines)
      : area_(area), lines_(lines) {
    for (const auto& point : points) taken_.push_back(around(point, kMarkRadius));
  }

  std::optional<PlacedLabel> place(const LabelRequest& request) {
    for (const double distance : kDistances) {
      const std::optional<Box> box = best(request, distance);
      if (!box) continue;
      taken_.push_back(*box);
      return PlacedLabel{*box, distance > kDistances[0]};
    }
    return std::nullopt;
  }

 private:
  // The free place at `distance` that covers the fewest line positions; the first one in case of a
  // tie.
  std::optional<Box> best(const LabelRequest& request, double distance) const {
    std::optional<Box> found;
    std::ptrdiff_t fewest = 0;
    for (const Direction& direction : kDirections) {
      const Box box = label_box(request, direction, distance);
      if (!is_free(box)) continue;
      const std::ptrdiff_t n_covered = covered(box);
      if (found && n_covered >= fewest) continue;
      found = box;
      fewest = n_covered;
    }
    return found;
  }

  bool is_free(const Box& box) const {
    return is_within(box, area_) &&
           std::none_of(taken_.begin(), taken_.end(),
                        [&](const Box& other) { return overlap(box, other); });
  }

  std::ptrdiff_t covered(const Box& box) const {
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const auto& point) { return overlap(box, around(point, 1)); });
  }

  Box area_;
  const std::vector<std::pair<double, double>>& lines_;
  std::vector<Box> taken_;
};

}  // namespace

std::vector<std::optional<PlacedLabel>> place_labels(
    const std::vector<LabelRequest>& requests, const Box& area,
    const std::vector<std::pair<double, double>>& points,
    const std::vector<std::pair<double, double>>& lines) {
  Placer placer(area, points, lines);
  std::vector<std::optional<PlacedLabel>> placed(requests.size());
  for (std::size_t i = 0; i < std::min(requests.size(), kMostLabels); ++i) {
    placed[i] = placer.place(requests[i]);
  }
  return placed;
}

namespace {

// ---- The picture ----

constexpr double kLabelWidth = 16;         // in units of the font size
constexpr std::size_t kMarksOfALine = 40;  // more marks would hide the line

using Position = std::pair<double, double>;

std::string value_text(double value) { return shown_number({value, decimals_needed(value, 5)}); }

// The tooltip: "turbo4: 4.125 bits per value, 0.0864 mean KLD".
std::string tip(const Plot& plot, const Series& series, const Point& point) {
  const std::string& name = point.label.empty() ? series.name : point.label;
  return fmt::format("{}: {} {}, {} {}", shortened(name, 80), value_text(point.x),
                     shortened(plot.x.label, 60), value_text(point.y), shortened(plot.y.label, 60));
}

std::string description(const Plot& plot) {
  std::string text = fmt::format("{} upwards, {} to the right.", plot.y.label, plot.x.label);
  for (const Series& series : plot.series) {
    text += fmt::format(" {}: {} point{}{}.", series.name.empty() ? "Points" : series.name,
                        series.points.size(), series.points.size() == 1 ? "" : "s",
                        series.is_bound ? ", a bound" : "");
  }
  return text + " The table below has every number.";
}

bool is_joined(const Series& series) { return series.is_line || series.is_bound; }

class PlotPainter {
 public:
  PlotPainter(const Plot& plot, double width, const std::string& id)
      : plot_(plot), id_(id), frame_(plot_frame(plot, width, width < 500 ? 320 : 420)) {}

  void draw_grid() { draw_frame(canvas_, plot_, frame_); }

  void draw_lines() {
    const Box& area = frame_.area;
    canvas_.raw(fmt::format("<clipPath id=\"{}-clip\">\n", id_));
    canvas_.box({area.left, area.top - 8, area.right + 8, area.bottom}, "clip");
    canvas_.raw(fmt::format("</clipPath>\n<g clip-path=\"url(#{}-clip)\">\n", id_));
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      if (is_joined(plot_.series[i])) draw_line(i);
    }
    canvas_.raw("</g>\n");
  }

  void draw_marks() {
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      if (!plot_.series[i].is_bound) draw_marks_of(i);
    }
  }

  // Draws marks and labels. Returns the number of labels that do not fit.
  std::size_t draw_labels() {
    const std::vector<LabelRequest> requests = label_requests();
    const auto placed = place_labels(requests, label_area(), marks_, lines_);
    std::size_t n_left_out = 0;
    Canvas texts;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      n_left_out += placed[i] ? 0 : 1;
      if (placed[i]) draw_label(requests[i], *placed[i], texts);
    }
    canvas_.raw(marks_canvas_.markup());  // above the lines that lead to labels
    canvas_.raw(texts.markup());
    return n_left_out;
  }

  std::string finish(double width) const {
    return canvas_.finish(width, frame_.area.bottom + 48, {id_, plot_.title, description(plot_)});
  }

 private:
  Position position(const Point& point) const {
    return {frame_.x_of(point.x), frame_.y_of(point.y)};
  }

  void draw_line(std::size_t i) {
    const Series& series = plot_.series[i];
    std::string path;
    bool is_first = true;
    for (const Point& point : series.points) {
      const bool is_gap = !can_draw(plot_, point);
      if (!is_gap) add_to_line(path, position(point), is_first);
      is_first = is_gap;
    }
    if (path.empty()) return;
    canvas_.path(path, series.is_bound ? "bound" : "curve " + series_class(i), series.name);
  }

  void add_to_line(std::string& path, const Position& end, bool is_first) {
    // Points far outside are clipped later, but the numbers must be readable for browsers.
    const double x = std::clamp(end.first, -1e5, 1e5);
    const double y = std::clamp(end.second, -1e5, 1e5);
    path += fmt::format("{}{} {}", is_first ? "M" : "L", coordinate(x), coordinate(y));
    if (!is_first) remember_line(lines_.back(), {x, y});
    lines_.emplace_back(x, y);
  }

  // Positions along a line, which labels avoid.
  void remember_line(Position from, Position to) {
    constexpr int kSteps = 24;
    for (int i = 1; i < kSteps; ++i) {
      const double part = static_cast<double>(i) / kSteps;
      lines_.emplace_back(from.first + part * (to.first - from.first),
                          from.second + part * (to.second - from.second));
    }
  }

  void draw_marks_of(std::size_t i) {
    const Series& series = plot_.series[i];
    const std::size_t n = series.points.size();
    const std::size_t every = series.is_line && n > kMarksOfALine ? n / (kMarksOfALine / 2) : 1;
    for (std::size_t j = 0; j < n; ++j) {
      const Point& point = series.points[j];
      if (!can_draw(plot_, point) || (j % every != 0 && point.label.empty())) continue;
      const auto [x, y] = position(point);
      marks_canvas_.path(mark_outline(i, x, y), "mark " + series_class(i),
                         tip(plot_, series, point));
      marks_.emplace_back(x, y);
    }
  }

  std::vector<LabelRequest> label_requests() const {
    std::vector<LabelRequest> requests;
    for (const Series& series : plot_.series) {
      for (const Point& point : series.points) {
        if (series.is_bound || point.label.empty() || !can_draw(plot_, point)) continue;
        const auto [x, y] = position(point);
        requests.push_back({x, y, shortened(point.label, kLabelWidth)});
      }
    }
    return requests;
  }

  Box label_area() const {
    const Box& area = frame_.area;
    return {area.left + 2, area.top - 8, area.right + 16, area.bottom - 2};
  }

  void draw_label(const LabelRequest& request, const PlacedLabel& label, Canvas& texts) {
    const Box& box = label.box;
    if (label.is_apart) {
      canvas_.line(request.x, request.y, std::clamp(request.x, box.left, box.right),
                   std::clamp(request.y, box.top, box.bottom), "leader");
    }
    // Aligned toward its point, because the text may be narrower than its box.
    const bool is_right = box.left > request.x;
    const bool is_left = box.right < request.x;
    const double x = is_right ? box.left : is_left ? box.right : (box.left + box.right) / 2;
    texts.text(x, box.top + kLabelSize * 0.95, request.text,
               is_right  ? "label"
               : is_left ? "label end"
                         : "label mid");
  }

  const Plot& plot_;
  const std::string& id_;
  PlotFrame frame_;
  Canvas canvas_, marks_canvas_;
  std::vector<Position> marks_, lines_;
};

}  // namespace

Picture svg_plot(const Plot& plot, double width, const std::string& id) {
  PlotPainter painter(plot, width, id);
  painter.draw_grid();
  painter.draw_lines();
  painter.draw_marks();
  const std::size_t n = painter.draw_labels();
  std::string note;
  if (n > 0)
    note = fmt::format("{} label{} found no room here; the table has all.", n, n == 1 ? "" : "s");
  return {painter.finish(width), note};
}

std::size_t n_undrawable(const Plot& plot) {
  std::size_t n = 0;
  for (const Series& series : plot.series) {
    n += static_cast<std::size_t>(
        std::count_if(series.points.begin(), series.points.end(),
                      [&](const Point& point) { return !can_draw(plot, point); }));
  }
  return n;
}

}  // namespace tqcache::report
