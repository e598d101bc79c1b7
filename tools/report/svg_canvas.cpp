#include "report/svg_canvas.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>

#include "report/html_text.h"

namespace tqcache::report {

namespace {

// Browsers show the title inside an element as a tooltip.
std::string closed(std::string_view element, std::string_view tip) {
  if (tip.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escaped(tip), element);
}

// A polygon, or a star if the corners in between are closer to the center.
struct Shape {
  int n_corners;  // 0: a circle
  double radius;  // chosen so that all areas look equal
  double inner;   // relative radius of the corners in between; 0: none
  double turn;    // of the first corner from the right, in eighths of a circle
};

constexpr std::array<Shape, 8> kShapes = {{
    {0, 5.2, 0, 0},     // circle
    {4, 6.6, 0, 1},     // square
    {3, 7.0, 0, -2},    // triangle
    {4, 6.6, 0, 0},     // diamond
    {4, 7.2, .42, 1},   // cross
    {3, 7.0, 0, 2},     // triangle, upside down
    {5, 7.2, .45, -2},  // star
    {4, 7.4, .36, 0},   // star of four points
}};

std::string circle(double x, double y, double radius) {
  const std::string r = coordinate(radius);
  const std::string diameter = coordinate(2 * radius);
  return fmt::format("M{} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", coordinate(x - radius),
                     coordinate(y), fmt::arg("r", r), fmt::arg("d", diameter));
}

}  // namespace

std::string coordinate(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

void Canvas::line(double x1, double y1, double x2, double y2, std::string_view classes) {
  body_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", classes,
                       coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2));
}

void Canvas::box(const Box& box, std::string_view classes, std::string_view tip) {
  body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}", classes,
                       coordinate(box.left), coordinate(box.top), coordinate(box.width()),
                       coordinate(box.height()), closed("rect", tip));
}

void Canvas::path(std::string_view data, std::string_view classes, std::string_view tip) {
  body_ += fmt::format("<path class=\"{}\" d=\"{}\"{}", classes, data, closed("path", tip));
}

void Canvas::text(double x, double y, std::string_view text, std::string_view classes) {
  if (text.empty()) return;
  const std::string attribute = classes.empty() ? "" : fmt::format(" class=\"{}\"", classes);
  body_ += fmt::format("<text{} x=\"{}\" y=\"{}\">{}</text>\n", attribute, coordinate(x),
                       coordinate(y), escaped(text));
}

std::string Canvas::finish(double width, double height, const Alternative& alternative,
                           double least_width) const {
  const std::string id = escaped(alternative.id);
  const std::string style =
      least_width > 0 ? fmt::format(";min-width:{}px", coordinate(least_width)) : "";
  return fmt::format(
      "<svg role=\"img\" aria-labelledby=\"{0}-title {0}-desc\" viewBox=\"0 0 {1} {2}\" "
      "style=\"max-width:{1}px{3}\">\n"
      "<title id=\"{0}-title\">{4}</title>\n<desc id=\"{0}-desc\">{5}</desc>\n{6}</svg>\n",
      id, coordinate(width), coordinate(height), style, escaped(alternative.title),
      escaped(alternative.description), body_);
}

std::string mark_outline(std::size_t series, double x, double y) {
  const Shape& shape = kShapes[series % kShapes.size()];
  if (shape.n_corners == 0) return circle(x, y, shape.radius);

  const int n = shape.inner > 0 ? 2 * shape.n_corners : shape.n_corners;
  std::string path;
  for (int i = 0; i < n; ++i) {
    const bool is_inner = shape.inner > 0 && i % 2 == 1;
    const double radius = shape.radius * (is_inner ? shape.inner : 1);
    const double angle = std::numbers::pi * (shape.turn / 4 + 2.0 * i / n);
    path += fmt::format("{}{} {}", i == 0 ? "M" : "L", coordinate(x + radius * std::cos(angle)),
                        coordinate(y + radius * std::sin(angle)));
  }
  return path + "z";
}

std::string series_class(std::size_t series) {
  return fmt::format("s{}", (series + series / kSeriesColors) % kSeriesColors);
}

}  // namespace tqcache::report
