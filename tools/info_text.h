#pragma once
// tools/info_text.h: `tqcache info` for people.

#include <string>

#include "info_view.h"

namespace tqcache::cli {

std::string info_text(const InfoView& view);
std::string info_text(const ForeignView& view);

}  // namespace tqcache::cli
