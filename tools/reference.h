#pragma once
// tools/reference.h: pages and completions that are generated from the flags of the verbs.

#include <filesystem>
#include <string>

#include "tqcache/error.h"

namespace tqcache::cli {

// Writes docs/reference/cli.md, man/*.1 and completions/{tqcache.bash,_tqcache,tqcache.fish} below
// `folder`, and replaces existing ones.
// Errors: kIo.
Result<void> write_reference(const std::filesystem::path& folder);

// The completions for "bash", "zsh" or "fish", which completions/ has, too.
// Errors: kInvalidArgument for another shell.
Result<std::string> completion_script(const std::string& shell);

}  // namespace tqcache::cli
