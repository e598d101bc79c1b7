#pragma once
// migrations/migrate_file.h: migration of one file to the current version.

#include <filesystem>
#include <string>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/progress.h"
#include "tqcache/tqkv.h"

namespace tqcache::migrations {

struct MigrateOptions {
  // Compression, threads and hide_tokens of the new file; `overwrite` says whether another file at
  // the target may be replaced.
  format::WriteOptions write;
  MemoryBudget memory = {};
  bool keep_backup = true;  // in place: the old file is kept as PATH.v1.bak
  bool dry_run = false;     // reads and converts, but writes nothing
};

enum class MigrateStatus {
  kMigrated,
  kWouldMigrate,  // a dry run
  kCurrent,       // the file has the current version already
  kDone,          // the target holds this file's content already: an earlier run did it
};

struct FileMigration {
  MigrateStatus status = MigrateStatus::kMigrated;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;  // 0 when nothing was written
  std::int64_t n_layers = 0;
  std::int64_t n_tokens = 0;
  std::vector<std::string> notes;  // Migration::notes
  std::filesystem::path written;   // empty if nothing was
  std::filesystem::path backup;    // empty if there is none
};

// Whether the file is a cache file of any version, judged by its first bytes.
bool is_cache_of_any_version(const ByteSource& source);

// Writes the new file to `target`, which may be `path` itself. The new file is complete on disk and
// compared with the content of the old file before the old file or an existing target is changed.
// If the process is killed, `path` is the old or the new file, and the migration can be run again.
//
// Progress: bytes of sections before compression.
// Errors:   of read_v1() and v1_to_v2(); kCorrupt if the new file does not have the content of the
//           old one; kInvalidArgument (another file exists at the target or under the name of the
//           backup); kBusy, kIo, kInterrupted. After an error the old file is unchanged.
Result<FileMigration> migrate_file(const std::filesystem::path& path,
                                   const std::filesystem::path& target,
                                   const MigrateOptions& options, const Progress& progress = {});

}  // namespace tqcache::migrations
