#pragma once
// migrations/migrate_file.h: turns one file of an older version into one of the current version.

#include <filesystem>
#include <string>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::migrations {

struct MigrateOptions {
  // Compression, threads and hide_tokens of the new file; overwrite says whether another file that
  // stands at the target may be replaced.
  format::WriteOptions write;
  bool keep_backup = true;  // in place: the old file stays, as PATH.v1.bak
  bool dry_run = false;     // reads and converts, and writes nothing
};

enum class MigrateStatus {
  kMigrated,
  kWouldMigrate,  // a dry run
  kCurrent,       // the file is of the current version already
  kDone,          // the target holds this file's content already: an earlier run did it
};

struct FileMigration {
  MigrateStatus status = MigrateStatus::kMigrated;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;  // 0 when nothing was written
  std::int64_t n_layers = 0;
  std::int64_t n_tokens = 0;
  std::vector<std::string> notes;  // Migration::notes
  std::filesystem::path written;   // empty when nothing was
  std::filesystem::path backup;    // empty when there is none
};

// Whether a file is one that migrate_file() takes: of any version, by its first bytes.
bool is_cache_of_any_version(const ByteSource& source);

// Writes the new file to `target`, which may be `path` itself. It is on disk, whole, and compared
// with the old file's content, before anything is done to the old one or to what stands at
// `target`. Killed at any moment, it leaves the old file or the new one under `path`; to be run
// again is all that it needs.
//
// Progress: bytes of sections before compression.
// Errors:   of read_v1() and v1_to_v2(); kCorrupt when the new file does not say what the old one
//           does; kInvalidArgument (something else stands at the target or the backup's name);
//           kBusy, kIo, kInterrupted. The old file then stands untouched.
Result<FileMigration> migrate_file(const std::filesystem::path& path,
                                   const std::filesystem::path& target,
                                   const MigrateOptions& options, const Progress& progress = {});

}  // namespace tqcache::migrations
