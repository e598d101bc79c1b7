#include "tqcache/eval/svg_grid.h"

#include <algorithm>

#include "tqcache/eval/html_text.h"
#include "tqcache/eval/svg_color_scale.h"

namespace tqcache::eval {
namespace {

constexpr std::size_t kMostNumbers = 400;
constexpr double kLeastCell = 5;
constexpr double kMostCell = 64;  // unless names are wider

double widest(const std::vector<std::string>& names) {
  double width = 0;
  for (const std::string& name : names)
    width = std::max(width, text_width(shortened(name, kGridName)));
  return width * kGridFont;
}

double widest_number(const HeatMap& map) {
  double width = 0;
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      const Number number{value_at(map, row, column), map.decimals};
      width = std::max(width, text_width(shown_number(number)));
    }
  }
  return width * kGridFont;
}

// The narrowest cell that can be read, and how wide the grid gets with it.
double least_cell(const Grid& grid, double number_width) {
  return grid.has_numbers ? std::max(number_width + 6, 24.0) : kLeastCell;
}

double least_width(const Grid& grid, const HeatMap& map, double number_width) {
  return grid.left + least_cell(grid, number_width) * static_cast<double>(grid.across(map).size());
}

Grid make_grid(const HeatMap& map, bool is_turned, bool has_numbers) {
  Grid grid{is_turned, has_numbers, 0, 48, 0, 0};
  const std::string& label = is_turned ? map.column_label : map.row_label;
  const double label_width = (text_width(shortened(label, kGridName)) + 1.6) * kGridFont;
  grid.left = std::max(widest(grid.down(map)), label_width) + 10;
  return grid;
}

double cell_height(const Grid& grid, std::size_t n_down) {
  if (grid.has_numbers || n_down <= 16) return 26;
  return n_down <= 40 ? 18 : 13;
}

}  // namespace

const std::vector<std::string>& Grid::down(const HeatMap& map) const {
  return is_turned ? map.columns : map.rows;
}

const std::vector<std::string>& Grid::across(const HeatMap& map) const {
  return is_turned ? map.rows : map.columns;
}

double Grid::value(const HeatMap& map, std::size_t row, std::size_t column) const {
  return is_turned ? value_at(map, column, row) : value_at(map, row, column);
}

Grid heat_map_grid(const HeatMap& map, double width) {
  const std::size_t n_rows = map.rows.size();
  const std::size_t n_columns = map.columns.size();
  const bool has_numbers = n_columns == 0 || n_rows <= kMostNumbers / n_columns;
  const double number_width = has_numbers ? widest_number(map) : 0;

  Grid upright = make_grid(map, false, has_numbers);
  Grid turned = make_grid(map, true, has_numbers);
  const double upright_width = least_width(upright, map, number_width);
  const double turned_width = least_width(turned, map, number_width);
  // A tall grid without numbers is turned for its height, and a wide one for its width.
  const bool is_tall = !has_numbers && n_rows > 2 * n_columns;
  const bool fits_better = upright_width > width && turned_width < upright_width;
  Grid grid = fits_better || (is_tall && turned_width <= width) ? turned : upright;

  const double n_across = static_cast<double>(std::max<std::size_t>(grid.across(map).size(), 1));
  const double least = least_cell(grid, number_width);
  const double most = std::max({least, kMostCell, widest(grid.across(map)) + 8});
  grid.cell_width = std::clamp((width - grid.left - 2) / n_across, least, most);
  grid.cell_height = cell_height(grid, grid.down(map).size());
  return grid;
}

}  // namespace tqcache::eval
