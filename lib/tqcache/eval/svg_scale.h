#pragma once
// eval/svg_scale.h: where a value stands on an axis, and which values are written beside it.

#include <string>
#include <vector>

namespace tqcache::eval {

struct Tick {
  double value;
  std::string text;
};

// From `low` to `high`, both finite and low < high; both positive when is_log.
struct Scale {
  bool is_log;
  double low;
  double high;
  std::vector<Tick> ticks;  // ascending, within low..high
};

// Whether a picture can show `value`: finite, at most 1e100 in size, and on a logarithmic axis at
// least 1e-100.
bool is_drawable(double value, bool is_log);

// A scale for drawable values from `least` to `greatest`, with about `n_ticks` ticks: 1, 2 or 5
// times a power of ten apart, or such multiples themselves on a logarithmic axis. There is a little
// room around the values; a linear scale begins at zero if that is not far off.
// Requires: least <= greatest, n_ticks >= 2.
Scale make_scale(double least, double greatest, bool is_log, int n_ticks);

// 0 at low, 1 at high.
double fraction(const Scale& scale, double value);

}  // namespace tqcache::eval
