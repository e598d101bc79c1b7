#include "tqcache/eval/svg_color_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tqcache/eval/svg_scale.h"

namespace tqcache::eval {
namespace {

constexpr double kSpanOfLog = 100;

}  // namespace

int ColorScale::step(double value) const {
  if (high <= low) return 0;
  const double clamped = std::clamp(value, low, high);
  const double part =
      is_log ? std::log(clamped / low) / std::log(high / low) : (clamped - low) / (high - low);
  const double worse = more_is_better ? 1 - part : part;
  return std::clamp(static_cast<int>(worse * kColorSteps), 0, kColorSteps - 1);
}

std::optional<ColorScale> color_scale(const HeatMap& map) {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -least;
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      const double value = value_at(map, row, column);
      if (std::isnan(value)) continue;
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  }
  if (least > greatest) return std::nullopt;
  const bool has_ends = is_drawable(map.low, false) || is_drawable(map.high, false);
  if (is_drawable(map.low, false)) least = map.low;
  if (is_drawable(map.high, false)) greatest = map.high;
  const bool is_log = !has_ends && is_drawable(least, true) && greatest / least >= kSpanOfLog;
  return ColorScale{least, std::max(least, greatest), is_log, map.more_is_better};
}

double value_at(const HeatMap& map, std::size_t row, std::size_t column) {
  if (row >= map.values.size() || column >= map.values[row].size() ||
      !is_drawable(map.values[row][column], false)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return map.values[row][column];
}

}  // namespace tqcache::eval
