#pragma once
// tools/info_text.h: `tqcache info` for people.

#include <string>

#include "info_view.h"

namespace tqcache::cli {

std::string info_text(const InfoView& view);

}  // namespace tqcache::cli
