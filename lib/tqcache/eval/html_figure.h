#pragma once
// eval/html_figure.h: one figure of the page: title, caption, legend, picture and table.

#include <cstddef>
#include <string>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// As a section with the id "figure-<number>". A picture is there twice, drawn for a wide and for a
// narrow column; the style sheet shows one of them.
std::string html_figure(const Figure& figure, std::size_t number);

const std::string& title_of(const Figure& figure);

}  // namespace tqcache::eval
