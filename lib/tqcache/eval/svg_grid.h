#pragma once
// eval/svg_grid.h: how large the cells of a heat map are, and which way round it stands.

#include <string>
#include <vector>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

struct Grid {
  bool is_turned;    // the map's rows run to the right
  bool has_numbers;  // in the cells
  double left, top;  // of the first cell
  double cell_width, cell_height;

  const std::vector<std::string>& down(const HeatMap& map) const;
  const std::vector<std::string>& across(const HeatMap& map) const;
  double value(const HeatMap& map, std::size_t row, std::size_t column) const;
};

inline constexpr double kGridFont = 12;
inline constexpr double kGridName = 9;  // width of a row's or column's name, in units of the font

// For a column of `width`; the grid is wider than that only where its cells could not be read
// otherwise.
Grid heat_map_grid(const HeatMap& map, double width);

}  // namespace tqcache::eval
