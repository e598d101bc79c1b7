#pragma once
// tools/reference.h: the pages that are generated from the flags of the verbs.

#include <filesystem>

#include "tqcache/error.h"

namespace tqcache::cli {

// Writes docs/reference/cli.md, man/*.1 and completions/{tqcache.bash,_tqcache,tqcache.fish} below
// `folder`, and replaces existing ones.
// Errors: kIo.
Result<void> write_reference(const std::filesystem::path& folder);

}  // namespace tqcache::cli
