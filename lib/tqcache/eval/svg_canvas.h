#pragma once
// eval/svg_canvas.h: writes the elements of a picture. Lengths are CSS pixels at the picture's own
// width; colors are classes of the page's style sheet (html_style.h), so that they follow the
// reader's scheme.

#include <string>
#include <string_view>

namespace tqcache::eval {

struct Box {
  double left, top, right, bottom;

  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

// What a picture is called and how it is told to who cannot see it. Plain texts.
struct Alternative {
  std::string id;  // unique on the page; of letters, digits and '-'
  std::string title;
  std::string description;
};

// A drawing of one figure for columns of one width.
struct Picture {
  std::string svg;
  std::string note;  // what this drawing left out, as a sentence; may be empty
};

// "12.5": at most two decimals, and 0 for what is not finite.
std::string coordinate(double value);

class Canvas {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view classes);
  void box(const Box& box, std::string_view classes, std::string_view tip = {});
  void path(std::string_view data, std::string_view classes, std::string_view tip = {});
  // (x, y) is the start, middle or end of the base line, by a class: "start" needs none.
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

}  // namespace tqcache::eval
