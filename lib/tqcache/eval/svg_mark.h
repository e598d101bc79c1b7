#pragma once
// eval/svg_mark.h: how the series of a plot are told apart: by shape and by color, so that either
// is enough.

#include <cstddef>
#include <string>

namespace tqcache::eval {

inline constexpr std::size_t kSeriesColors = 8;  // the classes s0..s7

// The outline of a mark around (x, y), as data of a path. Shapes repeat after 8 series.
std::string mark_outline(std::size_t series, double x, double y);

// The class of a series. After 8 series colors are shifted by one, so that 64 series have marks of
// their own.
std::string series_class(std::size_t series);

}  // namespace tqcache::eval
