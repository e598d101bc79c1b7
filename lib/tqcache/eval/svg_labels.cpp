#include "tqcache/eval/svg_labels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tqcache/eval/html_text.h"

namespace tqcache::eval {
namespace {

constexpr std::size_t kMostLabels = 200;
constexpr double kMarkRadius = 6;

// Where a label's nearest point stands, from its own: right, left, above, below, then the corners.
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
  // Of the free places at `distance`, the first of those that cover least of the lines.
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

}  // namespace tqcache::eval
