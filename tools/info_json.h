#pragma once
// tools/info_json.h: `tqcache info --json`.

#include "console.h"
#include "info_view.h"

namespace tqcache::cli {

Json info_json(const InfoView& view);
Json info_json(const ForeignView& view);

}  // namespace tqcache::cli
