#include "tqcache/eval/svg_mark.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>

#include "tqcache/eval/svg_canvas.h"

namespace tqcache::eval {
namespace {

// A polygon, or a star if the corners in between lie further inside.
struct Shape {
  int n_corners;  // 0: a circle
  double radius;  // areas look alike
  double inner;   // of the corners in between, in radii; 0: there are none
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

}  // namespace tqcache::eval
