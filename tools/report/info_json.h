#pragma once
// tools/report/info_json.h: `tqcache info --json`.

#include <vector>

#include "cli/console.h"
#include "report/info_view.h"

namespace tqcache::cli {

Json info_json(const InfoView& view);
Json info_json(const ForeignView& view);

// An object for each group of layers that are alike.
Json layers_json(const std::vector<cache::LayerDesc>& layers, std::optional<std::int64_t> n_tokens);

}  // namespace tqcache::cli
