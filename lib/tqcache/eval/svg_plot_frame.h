#pragma once
// eval/svg_plot_frame.h: the axes of a plot, and where its points stand between them.

#include "tqcache/eval/report.h"
#include "tqcache/eval/svg_canvas.h"
#include "tqcache/eval/svg_scale.h"

namespace tqcache::eval {

struct PlotFrame {
  Box area;  // between the axes
  Scale x, y;

  double x_of(double value) const { return area.left + fraction(x, value) * area.width(); }
  double y_of(double value) const { return area.bottom - fraction(y, value) * area.height(); }
};

// Whether both axes can show the point.
bool is_drawable(const Plot& plot, const Point& point);

// Room for what is drawable, in a picture of this size. A plot without such points has axes from 0
// to 1, or 1 to 10 on a logarithmic axis.
PlotFrame plot_frame(const Plot& plot, double width, double height);

// Grid, ticks and names of the axes.
void draw_frame(Canvas& canvas, const Plot& plot, const PlotFrame& frame);

}  // namespace tqcache::eval
