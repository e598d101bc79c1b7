#include "report/svg_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "report/html_text.h"

namespace tqcache::report {

using eval::HeatMap;

namespace {

constexpr double kGreatest = 1e100;
constexpr double kLeast = 1e-100;
// Least relative difference of values that a linear scale can show.
constexpr double kLeastSpan = 1e-9;

// "2e-5"
std::string scientific(double value) {
  std::string text = fmt::format("{:.6g}", value);
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  return text.substr(0, e) + "e" + std::to_string(std::stoi(text.substr(e + 1)));
}

std::string tick_text(double value, double step) {
  const double size = std::abs(value);
  if (size >= 1e10 || (size > 0 && step < 1e-5)) return scientific(value);
  return shown_number({value, decimals_needed(step, 3)});
}

// 1, 2 or 5 times a power of ten, close to `step`.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= 0.8 * step) return factor * power;
  }
  return 10 * power;
}

// Adds a small margin around the values, and zero if it is close.
void widen(double& least, double& greatest) {
  const double size = std::max(std::abs(least), std::abs(greatest));
  if (greatest - least <= std::max(size * kLeastSpan, kLeast)) {
    const double room = size < kLeast ? 1 : size * 0.1;
    const bool has_sign = least != 0;
    least = has_sign ? least - room : 0;
    greatest += room;
    return;
  }
  const double room = 0.04 * (greatest - least);
  if (least < 0) {
    least -= room;
  } else {
    least = least < 0.35 * greatest ? 0 : least - room;
  }
  if (greatest != 0) greatest += room;
}

std::vector<Tick> multiples(double step, double low, double high) {
  std::vector<Tick> ticks;
  const double first = std::ceil(low / step - kLeastSpan);
  for (int i = 0; i < 100; ++i) {
    const double value = (first + i) * step;
    if (value > high + step * kLeastSpan) break;
    ticks.push_back({std::clamp(value, low, high), tick_text(value, step)});
  }
  return ticks;
}

Scale linear_scale(double least, double greatest, int n_ticks) {
  widen(least, greatest);
  const double step = round_step((greatest - least) / n_ticks);
  return {false, least, greatest, multiples(step, least, greatest)};
}

// Every factor of every `every`-th power of ten within the scale.
std::vector<Tick> powers(std::span<const int> factors, int every, double low, double high) {
  std::vector<Tick> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int power = first; power <= last; ++power) {
    if (power % every != 0) continue;
    for (const int factor : factors) {
      const double value = factor * std::pow(10, power);
      if (value < low || value > high) continue;
      const bool is_long = value >= 1e7 || value < 9e-5;
      ticks.push_back({value, is_long ? scientific(value) : tick_text(value, value)});
    }
  }
  return ticks;
}

// The sparsest family of ticks with enough ticks.
std::vector<Tick> log_ticks(double low, double high, int n_ticks) {
  static constexpr std::array kOne = {1};
  static constexpr std::array kThree = {1, 2, 5};
  static constexpr std::array kNine = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const double decades = std::log10(high / low);
  const std::size_t n_enough = n_ticks < 6 ? 2 : 3;
  const int every = std::max(1, static_cast<int>(std::ceil(decades / n_ticks)));
  for (const std::span<const int> factors : {std::span<const int>(kOne), {kThree}, {kNine}}) {
    std::vector<Tick> ticks = powers(factors, every, low, high);
    if (ticks.size() >= n_enough) return ticks;
  }
  return multiples(round_step((high - low) / n_ticks), low, high);
}

Scale log_scale(double least, double greatest, int n_ticks) {
  double room = 0.05 * std::log10(greatest / least);
  if (room < kLeastSpan) room = 0.1;
  const double low = least * std::pow(10, -room);
  const double high = greatest * std::pow(10, room);
  return {true, low, high, log_ticks(low, high, n_ticks)};
}

constexpr double kSpanOfLog = 100;

}  // namespace

bool is_drawable(double value, bool is_log) {
  if (!std::isfinite(value) || std::abs(value) > kGreatest) return false;
  return !is_log || value >= kLeast;
}

Scale make_scale(double least, double greatest, bool is_log, int n_ticks) {
  return is_log ? log_scale(least, greatest, n_ticks) : linear_scale(least, greatest, n_ticks);
}

double fraction(const Scale& scale, double value) {
  if (scale.is_log) return std::log(value / scale.low) / std::log(scale.high / scale.low);
  return (value - scale.low) / (scale.high - scale.low);
}

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

}  // namespace tqcache::report
