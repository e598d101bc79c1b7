#pragma once
// eval/svg_labels.h: finds room for the labels of a plot's points.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/eval/svg_canvas.h"

namespace tqcache::eval {

inline constexpr double kLabelSize = 12;  // of the font

struct LabelRequest {
  double x, y;  // of the point
  std::string text;
};

struct PlacedLabel {
  Box box;
  bool is_apart;  // so far off that a line should lead to it
};

// One place for each request, in their order, or none where all are taken: a label covers neither a
// point of `points` nor another label, stays within `area`, and keeps off `lines` (positions along
// them) if it can. At most 200 are placed.
std::vector<std::optional<PlacedLabel>> place_labels(
    const std::vector<LabelRequest>& requests, const Box& area,
    const std::vector<std::pair<double, double>>& points,
    const std::vector<std::pair<double, double>>& lines);

}  // namespace tqcache::eval
