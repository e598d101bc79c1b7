#pragma once
// tools/report/svg_scale.h: scales of axes with their ticks, and color scales of heat maps.

#include <optional>
#include <string>
#include <vector>

#include "tqcache/report.h"

namespace tqcache::report {

struct Tick {
  double value;
  std::string text;
};

// From `low` to `high`, both finite and low < high; both positive if is_log.
struct Scale {
  bool is_log;
  double low;
  double high;
  std::vector<Tick> ticks;  // ascending, within low..high
};

// Whether a picture can show `value`: finite, at most 1e100 in magnitude, and at least 1e-100 on a
// logarithmic axis.
bool is_drawable(double value, bool is_log);

// A scale for drawable values from `least` to `greatest` with about `n_ticks` ticks, which are 1, 2
// or 5 times a power of ten apart, or such multiples themselves on a logarithmic axis. Leaves a
// small margin around the values; a linear scale begins at zero if zero is close.
//
// Requires: least <= greatest, n_ticks >= 2.
Scale make_scale(double least, double greatest, bool is_log, int n_ticks);

// 0 at low, 1 at high.
double fraction(const Scale& scale, double value);

// ---- Colors of a heat map: steps from pale (better) to strong (worse), which differ only in
// lightness, in light and dark mode ----

inline constexpr int kColorSteps = 9;  // the classes q0..q8

struct ColorScale {
  double low, high;  // low <= high
  bool is_log;       // logarithmic: the values span more than two orders of magnitude
  bool more_is_better;

  // 0..8, where 0 is the better end. Values beyond an end count as that end. A scale of a single
  // value has only its better end.
  int step(double value) const;
};

// Between the map's given ends, or its least and greatest number; nullopt if it has no number.
std::optional<ColorScale> color_scale(const eval::HeatMap& map);

// NaN if the map has no number, or an infinite one.
double value_at(const eval::HeatMap& map, std::size_t row, std::size_t column);

}  // namespace tqcache::report
