#pragma once
// tools/verbs/store_verbs.h: what `tqcache store` does: verbs of their own behind the word store.

#include <span>

#include "cli/cli.h"

namespace tqcache::cli {

// Each stands in its own store_*.cpp.
Action define_store_put(CLI::App& app);
Action define_store_get(CLI::App& app);
Action define_store_find(CLI::App& app);
Action define_store_ls(CLI::App& app);
Action define_store_info(CLI::App& app);
Action define_store_rm(CLI::App& app);
Action define_store_gc(CLI::App& app);
Action define_store_stats(CLI::App& app);
Action define_store_check(CLI::App& app);
Action define_store_copy(CLI::App& app);

// In the order of `tqcache store --help`.
std::span<const Verb> store_verbs();

}  // namespace tqcache::cli
