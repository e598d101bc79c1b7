#pragma once
// eval/html_style.h: how the page looks.

#include <string_view>

namespace tqcache::eval {

// The style sheet. Holds no '&' and no '<', so that it can stand in XML as it is.
std::string_view html_style();

}  // namespace tqcache::eval
