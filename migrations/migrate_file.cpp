#include "migrations/migrate_file.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "migrations/backup.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/base/result.h"

namespace tqcache::migrations {
namespace {

namespace fs = std::filesystem;

// More than any version needs to be told by.
constexpr std::uint64_t kBeginBytes = 4096;

// What was written so far, to be read back by several threads.
class WrittenBytes : public ByteSource {
 public:
  explicit WrittenBytes(const AtomicFile& file) : file_(file) {}
  std::uint64_t size() const override { return file_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::lock_guard one_at_a_time(mutex_);
    return file_.read_at(offset, out);
  }

 private:
  const AtomicFile& file_;
  mutable std::mutex mutex_;
};

// The time between two steps is as good a moment to stop as any.
Result<void> go_on(const Progress& progress) {
  if (!progress || progress(0, 1)) return {};
  return interrupted_error();
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code absent;
  return a == b || fs::equivalent(a, b, absent);
}

// Whether `path` is of the current version.
Result<bool> is_current(const fs::path& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  // Looked at in memory, so that a failure to read is not taken for another kind of file.
  Bytes begin(static_cast<std::size_t>(std::min<std::uint64_t>(source->size(), kBeginBytes)));
  TQC_TRY(source->read_at(0, begin));
  const std::unique_ptr<ByteSource> first = memory_source(std::move(begin));
  if (format::looks_like_cache_file(*first)) return true;
  if (looks_like_v1(*first)) return false;
  return Error{ErrorCode::kCorrupt, "not a cache file of any version"};
}

FileMigration current(const fs::path& path) {
  FileMigration report;
  report.status = MigrateStatus::kCurrent;
  std::error_code no_size;
  const std::uintmax_t size = fs::file_size(path, no_size);
  report.bytes_before = no_size ? 0 : size;
  return report;
}

// An old file that is read, and what becomes of it.
struct Work {
  std::unique_ptr<ByteSource> source;
  V1File old;
  cache::Cache cache;
  FileMigration report;
};

Result<Work> read_and_migrate(const fs::path& path, const Progress& progress) {
  Work work;
  TQC_TRY_ASSIGN(work.source, open_file(path));
  TQC_TRY_ASSIGN(work.old, read_v1(*work.source));
  TQC_TRY(go_on(progress));
  TQC_TRY_ASSIGN(Migration migration, v1_to_v2(work.old));
  TQC_TRY(go_on(progress));
  work.report.bytes_before = work.old.file_bytes;
  work.report.n_layers = std::ssize(migration.cache.layers);
  work.report.n_tokens = migration.cache.n_tokens();
  work.report.notes = std::move(migration.notes);
  work.cache = std::move(migration.cache);
  return work;
}

// Whether a cache of the current version with the content of `old` stands at `path`. Whatever is
// wrong with what stands there, it is another file then.
bool holds(const fs::path& path, const V1File& old, unsigned n_threads) {
  const auto source = open_file(path);
  if (!source || !format::looks_like_cache_file(**source)) return false;
  format::ReadOptions read;
  read.n_threads = n_threads;
  const Result<cache::Cache> cache = format::read_cache(**source, read);
  return cache && check_migrated(old, *cache, n_threads);
}

// Whether nothing is left to do, `target` being another file than the old one.
Result<bool> is_done(const fs::path& target, const V1File& old, const MigrateOptions& options) {
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(target, absent))) return false;
  if (holds(target, old, options.write.n_threads)) return true;
  if (options.write.overwrite == Overwrite::kAllow) return false;
  std::string message = target.string();
  return Error{ErrorCode::kInvalidArgument, message.append(": another file stands there")};
}

// Writes the cache to `file`, reads it back from there and holds it against the old file.
Result<void> write_and_compare(Work& work, AtomicFile& file, const MigrateOptions& options,
                               const Progress& progress) {
  TQC_TRY(format::write_cache(work.cache, file, options.write, progress));
  work.cache = {};  // its memory is needed for what is read back
  format::ReadOptions read;
  read.n_threads = options.write.n_threads;
  const WrittenBytes written(file);
  TQC_TRY_ASSIGN(const cache::Cache again, format::read_cache(written, read));
  TQC_TRY(go_on(progress));
  work.report.bytes_after = file.size();
  return check_migrated(work.old, again, options.write.n_threads);
}

// Replaces the old file at `path`, which gets a second name before.
Result<void> commit_with_backup(AtomicFile& file, const fs::path& path, Work& work) {
  TQC_TRY_ASSIGN(const Backup backup, Backup::make(path, *work.source));
  work.report.backup = backup.path();
  return file.commit();
}

Result<FileMigration> migrate_in_place(const fs::path& path, const MigrateOptions& options,
                                       const Progress& progress) {
  std::optional<AtomicFile> file;
  if (!options.dry_run) {
    // From here on the old file is locked, and another run may have been here before.
    TQC_TRY_ASSIGN(file, AtomicFile::create(path, Overwrite::kAllow));
    TQC_TRY_ASSIGN(const bool is_new, is_current(path));
    if (is_new) return current(path);
  }
  TQC_TRY_ASSIGN(Work work, read_and_migrate(path, progress));
  if (options.keep_backup) TQC_TRY(check_backup(path, *work.source));
  if (!file) {
    work.report.status = MigrateStatus::kWouldMigrate;
    return std::move(work.report);
  }
  TQC_TRY(write_and_compare(work, *file, options, progress));
  TQC_TRY(options.keep_backup ? commit_with_backup(*file, path, work) : file->commit());
  work.report.written = path;
  return std::move(work.report);
}

Result<FileMigration> migrate_beside(const fs::path& path, const fs::path& target,
                                     const MigrateOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(Work work, read_and_migrate(path, progress));
  TQC_TRY_ASSIGN(const bool done, is_done(target, work.old, options));
  if (done || options.dry_run) {
    work.report.status = done ? MigrateStatus::kDone : MigrateStatus::kWouldMigrate;
    return std::move(work.report);
  }
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(target, options.write.overwrite));
  TQC_TRY(write_and_compare(work, file, options, progress));
  TQC_TRY(file.commit());
  work.report.written = target;
  return std::move(work.report);
}

}  // namespace

bool is_cache_of_any_version(const ByteSource& source) {
  return format::looks_like_cache_file(source) || looks_like_v1(source);
}

Result<FileMigration> migrate_file(const fs::path& path, const fs::path& target,
                                   const MigrateOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(const bool is_new, is_current(path));
  if (is_new) return current(path);
  if (same_file(path, target)) return migrate_in_place(path, options, progress);
  return migrate_beside(path, target, options, progress);
}

}  // namespace tqcache::migrations
