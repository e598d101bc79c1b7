#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/html_text.h"
#include "report/svg_figures.h"
#include "report/svg_scale.h"

namespace tqcache::report {

using eval::HeatMap;
using eval::Number;

namespace {

constexpr std::size_t kMostNumbers = 400;
constexpr double kLeastCell = 5;
constexpr double kMostCell = 64;  // wider only for long names

constexpr double kGridFont = 12;
constexpr double kGridName = 9;  // width of a row's or column's name, in units of the font size

// The size of the cells, and whether the map is transposed.
struct Grid {
  bool is_turned;    // transposed: the map's rows run to the right
  bool has_numbers;  // in the cells
  double left, top;  // of the first cell
  double cell_width, cell_height;

  const std::vector<std::string>& down(const HeatMap& map) const {
    return is_turned ? map.columns : map.rows;
  }
  const std::vector<std::string>& across(const HeatMap& map) const {
    return is_turned ? map.rows : map.columns;
  }
  double value(const HeatMap& map, std::size_t row, std::size_t column) const {
    return is_turned ? value_at(map, column, row) : value_at(map, row, column);
  }
};

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

// The narrowest readable cell.
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

// The grid for a column of `width`; wider only if cells would otherwise be unreadable.
Grid heat_map_grid(const HeatMap& map, double width) {
  const std::size_t n_rows = map.rows.size();
  const std::size_t n_columns = map.columns.size();
  const bool has_numbers = n_columns == 0 || n_rows <= kMostNumbers / n_columns;
  const double number_width = has_numbers ? widest_number(map) : 0;

  Grid upright = make_grid(map, false, has_numbers);
  Grid turned = make_grid(map, true, has_numbers);
  const double upright_width = least_width(upright, map, number_width);
  const double turned_width = least_width(turned, map, number_width);
  // A tall grid without numbers is transposed for its height, a wide one for its width.
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

constexpr double kCellGap = 1;  // between cells

// The least n of 1, 2, 5, 10, ... for which every n-th name fits.
std::size_t every_nth(double pitch, double needed) {
  for (std::size_t power = 1; power < 1000000; power *= 10) {
    for (const std::size_t n : {power, 2 * power, 5 * power}) {
      if (pitch * static_cast<double>(n) >= needed) return n;
    }
  }
  return 1000000;
}

std::string description(const HeatMap& map, const std::optional<ColorScale>& scale) {
  const std::string size = fmt::format("{} by {} cells, {} by {}.", map.rows.size(),
                                       map.columns.size(), map.row_label, map.column_label);
  if (!scale) return size + " No cell has a number.";
  return fmt::format("{} Numbers from {} to {} {}. The table below has every one.", size,
                     shown_number({scale->low, map.decimals}),
                     shown_number({scale->high, map.decimals}), map.unit);
}

class HeatMapPainter {
 public:
  HeatMapPainter(const HeatMap& map, double width, const std::string& id)
      : map_(map),
        id_(id),
        width_(width),
        grid_(heat_map_grid(map, width)),
        scale_(color_scale(map)),
        down_(grid_.down(map)),
        across_(grid_.across(map)) {}

  std::string paint() {
    draw_hatching();
    draw_axes();
    draw_row_names();
    draw_column_names();
    draw_cells();
    return finish();
  }

 private:
  void draw_hatching() {
    canvas_.raw(fmt::format(
        "<pattern id=\"{}-hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\">\n<line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" "
        "y2=\"6\"/>\n</pattern>\n",
        id_));
  }

  double x_of(std::size_t column) const {
    return grid_.left + static_cast<double>(column) * grid_.cell_width;
  }
  double y_of(std::size_t row) const {
    return grid_.top + static_cast<double>(row) * grid_.cell_height;
  }

  void draw_axes() {
    const std::string& label_down = grid_.is_turned ? map_.column_label : map_.row_label;
    const std::string& label_across = grid_.is_turned ? map_.row_label : map_.column_label;
    if (!label_down.empty()) {
      canvas_.text(grid_.left - 10, grid_.top - 10,
                   shortened(label_down, kGridName) + " \xe2\x86\x93", "name end");
    }
    if (!label_across.empty()) {
      canvas_.text(grid_.left, 14, shortened(label_across, 14) + " \xe2\x86\x92", "name");
    }
  }

  void draw_row_names() {
    const std::size_t every = every_nth(grid_.cell_height, kGridFont * 1.1);
    for (std::size_t i = 0; i < down_.size(); i += every) {
      canvas_.text(grid_.left - 10, y_of(i) + grid_.cell_height / 2 + 4,
                   shortened(down_[i], kGridName), "tick end");
    }
  }

  void draw_column_names() {
    double widest = 0;
    for (const std::string& name : across_) {
      widest = std::max(widest, text_width(shortened(name, kGridName)) * kGridFont);
    }
    const std::size_t every = every_nth(grid_.cell_width, widest + 6);
    for (std::size_t i = 0; i < across_.size(); i += every) draw_column_name(i, widest);
  }

  // Centered over its column, or from the column's left edge if it is wider; not beyond the last
  // column.
  void draw_column_name(std::size_t i, double widest) {
    const double room = x_of(across_.size()) - x_of(i);
    const std::string name = shortened(across_[i], std::min(kGridName, room / kGridFont));
    if (widest <= grid_.cell_width) {
      canvas_.text(x_of(i) + grid_.cell_width / 2, grid_.top - 10, name, "tick mid");
    } else if (text_width(across_[i]) * kGridFont <= room || i == 0) {
      canvas_.text(x_of(i), grid_.top - 10, name, "tick");
    }
  }

  void draw_cells() {
    for (std::size_t row = 0; row < down_.size(); ++row) {
      for (std::size_t column = 0; column < across_.size(); ++column) draw_cell(row, column);
    }
  }

  void draw_cell(std::size_t row, std::size_t column) {
    const double value = grid_.value(map_, row, column);
    const double gap = grid_.cell_width < 12 ? 0.5 : kCellGap;
    const Box box{x_of(column), y_of(row), x_of(column) + grid_.cell_width - gap,
                  y_of(row) + grid_.cell_height - kCellGap};
    const std::string number = shown_number({value, map_.decimals});
    const std::string tip = fmt::format("{}, {}: {}", shortened(down_[row], 40),
                                        shortened(across_[column], 40), number);
    if (std::isnan(value)) return draw_empty_cell(box, tip);
    const std::string step = fmt::format("q{}", scale_->step(value));
    canvas_.box(box, "cell " + step, tip);
    if (!grid_.has_numbers) return;
    canvas_.text((box.left + box.right) / 2, (box.top + box.bottom) / 2 + 4, number,
                 "number mid " + step);
  }

  void draw_empty_cell(const Box& box, const std::string& tip) {
    canvas_.raw(fmt::format("<g fill=\"url(#{}-hatch)\">", id_));
    canvas_.box(box, "empty", tip);
    canvas_.raw("</g>\n");
  }

  std::string finish() const {
    const double right = x_of(across_.size()) + 2;
    const double bottom = y_of(down_.size()) + 4;
    return canvas_.finish(std::max(right, width_), bottom,
                          {id_, map_.title, description(map_, scale_)}, right > width_ ? right : 0);
  }

  const HeatMap& map_;
  const std::string& id_;
  double width_;
  Grid grid_;
  std::optional<ColorScale> scale_;
  const std::vector<std::string>& down_;
  const std::vector<std::string>& across_;
  Canvas canvas_;
};

}  // namespace

Picture svg_heat_map(const HeatMap& map, double width, const std::string& id) {
  return {HeatMapPainter(map, width, id).paint(), ""};
}

}  // namespace tqcache::report
