#pragma once
// tools/cli/migrate_plan.h: which files `tqcache migrate` works on, and where each of them goes.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/outcome.h"

namespace tqcache::cli {

struct MigrateRequest {
  std::vector<std::string> paths;  // files and folders
  std::string output;              // the folder for new files; empty: in place
  bool recursive = false;
};

struct MigrateJob {
  std::filesystem::path from;
  std::filesystem::path to;
  std::uint64_t bytes = 0;         // of the file, as far as is known
  std::optional<Failure> refused;  // why nothing can be done about it
};

struct MigratePlan {
  std::vector<MigrateJob> jobs;  // no file twice, and no output of two files
  std::uint64_t n_skipped = 0;   // in folders: no caches, as far as their first bytes tell
};

// A file that is named is a job in any case; of the files in a folder those are that begin as a
// cache of some version does. Names that begin with a dot, backups (.v1.bak) and links are passed
// over there.
MigratePlan plan_migration(const MigrateRequest& request);

}  // namespace tqcache::cli
