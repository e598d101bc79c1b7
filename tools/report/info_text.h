#pragma once
// tools/report/info_text.h: `tqcache info` for people.

#include <string>
#include <vector>

#include "report/info_view.h"

namespace tqcache::cli {

std::string info_text(const InfoView& view);
std::string info_text(const ForeignView& view);

// A line for each group of layers that are alike.
std::string layers_text(const std::vector<cache::LayerDesc>& layers, std::optional<std::int64_t> n_tokens);

}  // namespace tqcache::cli
