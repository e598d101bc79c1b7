#include "tqcache/eval/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/eval/html_text.h"
#include "tqcache/eval/svg_labels.h"
#include "tqcache/eval/svg_mark.h"
#include "tqcache/eval/svg_plot_frame.h"

namespace tqcache::eval {
namespace {

constexpr double kLabelWidth = 16;         // in units of the font
constexpr std::size_t kMarksOfALine = 40;  // more would hide it

using Position = std::pair<double, double>;

std::string value_text(double value) { return shown_number({value, decimals_needed(value, 5)}); }

// What the pointer finds: "turbo4: 4.125 bits a value, 0.0864 mean KLD".
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

  // Marks and labels. Returns how many labels found no room.
  std::size_t draw_labels() {
    const std::vector<LabelRequest> requests = label_requests();
    const auto placed = place_labels(requests, label_area(), marks_, lines_);
    std::size_t n_left_out = 0;
    Canvas texts;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      n_left_out += placed[i] ? 0 : 1;
      if (placed[i]) draw_label(requests[i], *placed[i], texts);
    }
    canvas_.raw(marks_canvas_.markup());  // over the lines that lead to labels
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
      const bool is_gap = !is_drawable(plot_, point);
      if (!is_gap) add_to_line(path, position(point), is_first);
      is_first = is_gap;
    }
    if (path.empty()) return;
    canvas_.path(path, series.is_bound ? "bound" : "curve " + series_class(i), series.name);
  }

  void add_to_line(std::string& path, const Position& end, bool is_first) {
    // What lies far outside is cut away later, but has to stay a number that browsers can read.
    const double x = std::clamp(end.first, -1e5, 1e5);
    const double y = std::clamp(end.second, -1e5, 1e5);
    path += fmt::format("{}{} {}", is_first ? "M" : "L", coordinate(x), coordinate(y));
    if (!is_first) remember_line(lines_.back(), {x, y});
    lines_.emplace_back(x, y);
  }

  // Positions along a line, for labels to keep off.
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
      if (!is_drawable(plot_, point) || (j % every != 0 && point.label.empty())) continue;
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
        if (series.is_bound || point.label.empty() || !is_drawable(plot_, point)) continue;
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
    // Towards its point, since the text may be narrower than its box.
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
                      [&](const Point& point) { return !is_drawable(plot, point); }));
  }
  return n;
}

}  // namespace tqcache::eval
