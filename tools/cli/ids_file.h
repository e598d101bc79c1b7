#pragma once
// tools/cli/ids_file.h: token ids in a file of their own, for caches that do not hold them.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/outcome.h"

namespace tqcache::cli {

// A JSON array of ids: [1, 2, 3].
// Errors: those of reading; kCorrupt (anything else than an array of numbers from 0 to 2^31 - 1),
//         kTooLarge.
Outcome<std::vector<std::int32_t>> read_ids(const std::string& path);

}  // namespace tqcache::cli
