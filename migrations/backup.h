#pragma once
// migrations/backup.h: the old file's second name, PATH.v1.bak, for when a new one takes the first.

#include <filesystem>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"

namespace tqcache::migrations {

// PATH.v1.bak
std::filesystem::path backup_path(const std::filesystem::path& path);

// Whether a backup can be made, or was made by an earlier run that did not come to its end: the
// name is free, or stands for the same bytes. `old` is what stands at `path`.
//
// Errors: kInvalidArgument (another file stands there), kIo.
Result<void> check_backup(const std::filesystem::path& path, const ByteSource& old);

// A backup, which is taken away again if the old file still stands under its own name at the end.
class Backup {
 public:
  // A second link to the file; a copy of it where the file system has none. On disk, name and all,
  // when this returns. `old` is what stands at `path`.
  //
  // Errors: as check_backup().
  static Result<Backup> make(const std::filesystem::path& path, const ByteSource& old);

  Backup(Backup&& other) noexcept;
  Backup& operator=(Backup&&) = delete;
  ~Backup();

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit Backup(std::filesystem::path original)
      : original_(std::move(original)), path_(backup_path(original_)) {}

  std::filesystem::path original_;
  std::filesystem::path path_;
  bool is_link_ = false;  // made by this run
};

}  // namespace tqcache::migrations
