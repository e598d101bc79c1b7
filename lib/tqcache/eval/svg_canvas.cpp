#include "tqcache/eval/svg_canvas.h"

#include <fmt/format.h>

#include <cmath>

#include "tqcache/eval/html_text.h"

namespace tqcache::eval {
namespace {

// A title inside an element is what a browser shows beside the pointer.
std::string closed(std::string_view element, std::string_view tip) {
  if (tip.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escaped(tip), element);
}

}  // namespace

std::string coordinate(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

void Canvas::line(double x1, double y1, double x2, double y2, std::string_view classes) {
  body_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", classes,
                       coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2));
}

void Canvas::box(const Box& box, std::string_view classes, std::string_view tip) {
  body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}", classes,
                       coordinate(box.left), coordinate(box.top), coordinate(box.width()),
                       coordinate(box.height()), closed("rect", tip));
}

void Canvas::path(std::string_view data, std::string_view classes, std::string_view tip) {
  body_ += fmt::format("<path class=\"{}\" d=\"{}\"{}", classes, data, closed("path", tip));
}

void Canvas::text(double x, double y, std::string_view text, std::string_view classes) {
  if (text.empty()) return;
  const std::string attribute = classes.empty() ? "" : fmt::format(" class=\"{}\"", classes);
  body_ += fmt::format("<text{} x=\"{}\" y=\"{}\">{}</text>\n", attribute, coordinate(x),
                       coordinate(y), escaped(text));
}

std::string Canvas::finish(double width, double height, const Alternative& alternative,
                           double least_width) const {
  const std::string id = escaped(alternative.id);
  const std::string style =
      least_width > 0 ? fmt::format(";min-width:{}px", coordinate(least_width)) : "";
  return fmt::format(
      "<svg role=\"img\" aria-labelledby=\"{0}-title {0}-desc\" viewBox=\"0 0 {1} {2}\" "
      "style=\"max-width:{1}px{3}\">\n"
      "<title id=\"{0}-title\">{4}</title>\n<desc id=\"{0}-desc\">{5}</desc>\n{6}</svg>\n",
      id, coordinate(width), coordinate(height), style, escaped(alternative.title),
      escaped(alternative.description), body_);
}

}  // namespace tqcache::eval
