#pragma once
// eval/svg_color_scale.h: which color a number of a heat map has. Colors are steps from pale, the
// better end, to strong, the worse end: lightness alone tells them apart, in either scheme.

#include <optional>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

inline constexpr int kColorSteps = 9;  // the classes q0..q8

struct ColorScale {
  double low, high;  // low <= high
  bool is_log;       // in equal factors: the values reach over two orders of magnitude
  bool more_is_better;

  // 0..8, 0 the better end. Values beyond the ends count as the ends; a scale of one value has its
  // better end only.
  int step(double value) const;
};

// By the map's ends, or by its least and greatest number; nothing if it has no number.
std::optional<ColorScale> color_scale(const HeatMap& map);

// NaN where the map has no number, or an infinite one.
double value_at(const HeatMap& map, std::size_t row, std::size_t column);

}  // namespace tqcache::eval
