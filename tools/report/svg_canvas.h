#pragma once
// tools/report/svg_canvas.h: the elements of an SVG picture. Lengths are CSS pixels at the
// picture's full width; colors are classes of the page's style sheet (html_style.cpp), so that they
// follow the reader's color scheme.

#include <cstddef>
#include <string>
#include <string_view>

namespace tqcache::report {

struct Box {
  double left, top, right, bottom;

  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

// The name of a picture, and its description for screen readers. Plain texts.
struct Alternative {
  std::string id;  // unique on the page; of letters, digits and '-'
  std::string title;
  std::string description;
};

// A drawing of one figure for columns of one width.
struct Picture {
  std::string svg;
  std::string note;  // a sentence about omitted content; may be empty
};

// "12.5": at most two decimals, and 0 for a value that is not finite.
std::string coordinate(double value);

class Canvas {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view classes);
  void box(const Box& box, std::string_view classes, std::string_view tip = {});
  void path(std::string_view data, std::string_view classes, std::string_view tip = {});
  // (x, y) is the start of the base line, or its middle or end with the classes "mid" and "end".
  void text(double x, double y, std::string_view text, std::string_view classes = {});
  void raw(std::string_view markup) { body_ += markup; }

  // The elements so far.
  const std::string& markup() const { return body_; }

  // The whole picture. It shrinks with its column, but not below `least_width`.
  std::string finish(double width, double height, const Alternative& alternative,
                     double least_width = 0) const;

 private:
  std::string body_;
};

// ---- The series of a plot differ in both shape and color; either suffices to distinguish them
// ----

inline constexpr std::size_t kSeriesColors = 8;  // the classes s0..s7

// The outline of a mark around (x, y), as the data of an SVG path. Shapes repeat after 8 series.
std::string mark_outline(std::size_t series, double x, double y);

// The style class of a series. Colors shift by one after every 8 series, so that 64 series have
// different marks.
std::string series_class(std::size_t series);

}  // namespace tqcache::report
