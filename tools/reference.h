#pragma once
// tools/reference.h: The pages that are generated from the flags of the verbs.

#include <filesystem>

#include "tqcache/error.h"

namespace tqcache::cli {

// Writes docs/reference/cli.md, man/*.1 and completions/{tqcache.bash,_tqcache,tqcache.fish} below
// `folder`, and replaces those that are there.
// Errors: kIo.
Result<void> write_reference(const std::filesystem::path& folder);

}  // namespace tqcache::cli
