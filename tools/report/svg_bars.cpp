#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "report/html_text.h"
#include "report/svg_canvas.h"
#include "report/svg_figures.h"
#include "report/svg_scale.h"

namespace tqcache::report {

using eval::Bar;
using eval::BarPart;
using eval::Bars;

namespace {

constexpr double kFont = 13;  // of names and sums
constexpr double kPartFont = 12;
constexpr double kPartName = 16;  // its width, in units of the font size

// Heights.
constexpr double kName = 22;
constexpr double kHeight = 22;  // of a bar
constexpr double kLine = 17;    // of its parts
constexpr double kBetweenBars = 18;

bool is_shown(const BarPart& part) { return part.value >= 0 && is_drawable(part.value, false); }

std::string with_unit(double value, const Bars& bars) {
  const std::string number = shown_number({value, bars.decimals});
  return bars.unit.empty() ? number : number + " " + shortened(bars.unit, 12);
}

std::string description(const Bars& bars) {
  std::string text = "Stacked bars.";
  for (const Bar& bar : bars.bars) {
    text += fmt::format(" {}: {}.", bar.name, with_unit(sum_of(bar), bars));
  }
  return text + " The table below has every part.";
}

// The parts of a bar as words, in lines that fit `width`, so that colors are not needed to read it.
std::vector<std::string> part_lines(const Bar& bar, const Bars& bars, double width) {
  constexpr std::string_view kBetween = "   ";
  std::vector<std::string> lines;
  for (const BarPart& part : bar.parts) {
    if (!is_shown(part)) continue;
    const std::string text =
        shortened(part.name, kPartName) + " " + shown_number({part.value, bars.decimals});
    const bool fits = !lines.empty() &&
                      text_width(lines.back() + std::string(kBetween) + text) * kPartFont <= width;
    if (fits) {
      lines.back() += std::string(kBetween) + text;
    } else {
      lines.push_back(text);
    }
  }
  return lines;
}

class BarsPainter {
 public:
  BarsPainter(const Bars& bars, double width) : bars_(bars), width_(width) {
    const std::vector<std::string> names = part_names(bars);
    for (std::size_t i = 0; i < names.size(); ++i) colors_[names[i]] = i;
    for (const Bar& bar : bars.bars) greatest_ = std::max(greatest_, sum_of(bar));
  }

  // Adds a bar below the previous ones.
  void add(const Bar& bar) {
    draw_name(bar);
    draw_parts(bar);
    if (colors_.size() > 1) {  // else the sum tells all
      for (const std::string& line : part_lines(bar, bars_, width_)) {
        canvas_.text(0, bottom_ + 12, line, "tick words");
        bottom_ += kLine;
      }
    }
    bottom_ += kBetweenBars;
  }

  std::string finish(const Alternative& alternative) const {
    return canvas_.finish(width_, std::max(bottom_ - kBetweenBars + 4, kLine), alternative);
  }

 private:
  void draw_name(const Bar& bar) {
    const std::string sum = with_unit(sum_of(bar), bars_);
    const double room = std::max(width_ / kFont - text_width(sum) - 2, 4.0);
    canvas_.text(0, bottom_ + 14, shortened(bar.name, room), "bar-name");
    canvas_.text(width_, bottom_ + 14, sum, "bar-sum end");
    bottom_ += kName;
  }

  void draw_parts(const Bar& bar) {
    const double bottom = bottom_ + kHeight;
    canvas_.line(0.5, bottom_ - 2, 0.5, bottom + 2, "axis");
    double left = 1;
    for (const BarPart& part : bar.parts) {
      const double length = is_shown(part) ? length_of(part) : 0;
      if (length <= 0) continue;
      // A thin gap between neighbors, unless a part is too short for it.
      const double gap = length > 3 ? 1 : 0;
      canvas_.box({left, bottom_, left + length - gap, bottom},
                  "part " + series_class(colors_[part.name]), tip(bar, part));
      left += length;
    }
    bottom_ = bottom + 6;
  }

  double length_of(const BarPart& part) const {
    return greatest_ > 0 ? (width_ - 1) * (part.value / greatest_) : 0;
  }

  std::string tip(const Bar& bar, const BarPart& part) const {
    return fmt::format("{}, {}: {}", shortened(bar.name, 40), shortened(part.name, 40),
                       with_unit(part.value, bars_));
  }

  const Bars& bars_;
  double width_;
  double greatest_ = 0;
  double bottom_ = 0;
  std::map<std::string, std::size_t> colors_;  // by the part's name
  Canvas canvas_;
};

}  // namespace

Picture svg_bars(const Bars& bars, double width, const std::string& id) {
  BarsPainter painter(bars, width);
  for (const Bar& bar : bars.bars) painter.add(bar);
  return {painter.finish({id, bars.title, description(bars)}), ""};
}

std::vector<std::string> part_names(const Bars& bars) {
  std::vector<std::string> names;
  for (const Bar& bar : bars.bars) {
    for (const BarPart& part : bar.parts) {
      if (std::find(names.begin(), names.end(), part.name) == names.end())
        names.push_back(part.name);
    }
  }
  return names;
}

double sum_of(const Bar& bar) {
  double sum = 0;
  for (const BarPart& part : bar.parts) sum += is_shown(part) ? part.value : 0;
  return sum;
}

std::size_t n_undrawable(const Bars& bars) {
  std::size_t n = 0;
  for (const Bar& bar : bars.bars) {
    n += static_cast<std::size_t>(std::count_if(
        bar.parts.begin(), bar.parts.end(), [](const BarPart& part) { return !is_shown(part); }));
  }
  return n;
}

}  // namespace tqcache::report
