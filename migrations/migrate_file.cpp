#include "migrations/migrate_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::migrations {
namespace {

namespace fs = std::filesystem;

fs::path backup_path(const fs::path& path) { return fs::path(path).concat(".v1.bak"); }

// PATH.v1.bak, a second name of the old file. It is removed at the end if the old file was not
// replaced.
class Backup {
 public:
  // Makes a hard link to the file, or a copy if the file system has no links, and flushes it. `old`
  // is the file at `path`.
  // Errors: as check_backup().
  static Result<Backup> make(const fs::path& path, const ByteSource& old);

  Backup(Backup&& other) noexcept;
  Backup& operator=(Backup&&) = delete;
  ~Backup();

  const fs::path& path() const { return path_; }

 private:
  explicit Backup(fs::path original)
      : original_(std::move(original)), path_(backup_path(original_)) {}

  fs::path original_, path_;
  bool is_link_ = false;  // made by this run
};

constexpr std::size_t kChunkBytes = 1 << 20;

Error system_failure(std::string_view action, int error_number) {
  std::string message(action);
  message.append(": ").append(std::generic_category().message(error_number));
  return {ErrorCode::kIo, std::move(message)};
}

// Calls take(offset, n) for one chunk of `size` bytes after another.
template <class Take>
Result<void> in_chunks(std::uint64_t size, Take take) {
  for (std::uint64_t at = 0; at < size; at += kChunkBytes) {
    TQC_TRY(take(at, static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, size - at))));
  }
  return {};
}

Result<bool> same_bytes(const ByteSource& a, const ByteSource& b) {
  if (a.size() != b.size()) return false;
  Bytes of_a(kChunkBytes);
  Bytes of_b(kChunkBytes);
  bool same = true;
  const auto compare = [&](std::uint64_t at, std::size_t n) -> Result<void> {
    if (!same) return {};
    TQC_TRY(a.read_at(at, std::span(of_a).first(n)));
    TQC_TRY(b.read_at(at, std::span(of_b).first(n)));
    same = std::ranges::equal(std::span(of_a).first(n), std::span(of_b).first(n));
    return {};
  };
  TQC_TRY(in_chunks(a.size(), compare));
  return same;
}

Result<void> copy_bytes(const ByteSource& source, const fs::path& to) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(to, Overwrite::kRefuse));
  Bytes chunk(kChunkBytes);
  const auto copy = [&](std::uint64_t at, std::size_t n) -> Result<void> {
    TQC_TRY(source.read_at(at, std::span(chunk).first(n)));
    return file.write(std::span(chunk).first(n));
  };
  TQC_TRY(in_chunks(source.size(), copy));
  return file.commit();
}

// Whether this file or file system cannot have hard links.
bool means_no_links(const std::error_code& failed) {
  return failed == std::errc::operation_not_permitted ||
         failed == std::errc::operation_not_supported ||
         failed == std::errc::function_not_supported || failed == std::errc::too_many_links;
}

// Checks that a backup can be made, or was made by an earlier run that did not finish: the name is
// free, or names a file with the same bytes. `old` is the file at `path`.
// Errors: kInvalidArgument (another file exists there), kIo.
Result<void> check_backup(const fs::path& path, const ByteSource& old) {
  const fs::path backup = backup_path(path);
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(backup, absent))) return {};
  if (fs::equivalent(path, backup, absent)) return {};
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> there, open_file(backup));
  TQC_TRY_ASSIGN(const bool same, same_bytes(old, *there));
  if (same) return {};
  std::string message = backup.string();
  return invalid(message.append(": another file exists there"));
}

Result<Backup> Backup::make(const fs::path& path, const ByteSource& old) {
  Backup backup(path);
  std::error_code failed;
  fs::create_hard_link(path, backup.path_, failed);
  if (!failed) {
    backup.is_link_ = true;
  } else if (failed == std::errc::file_exists) {
    TQC_TRY(check_backup(path, old));
  } else if (means_no_links(failed)) {
    TQC_TRY(copy_bytes(old, backup.path_));
  } else {
    return in_context(backup.path_.string(), system_failure("link", failed.value()));
  }
  TQC_TRY(flush_folder(path.has_parent_path() ? path.parent_path() : fs::path(".")));
  return backup;
}

Backup::Backup(Backup&& other) noexcept
    : original_(std::move(other.original_)),
      path_(std::move(other.path_)),
      is_link_(std::exchange(other.is_link_, false)) {}

// A copy is always kept: the next run recognizes it.
Backup::~Backup() {
  std::error_code failed;
  if (is_link_ && fs::equivalent(original_, path_, failed)) fs::remove(path_, failed);
}

namespace fs = std::filesystem;

// Enough to recognize any version.
constexpr std::uint64_t kBeginBytes = 4096;

// The bytes written so far, readable from several threads.
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

// Lets the user stop between two steps.
Result<void> check_interrupted(const Progress& progress) { return report_progress(progress, 0, 1); }

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code absent;
  return a == b || fs::equivalent(a, b, absent);
}

// Whether the file has the current version. Errors: kCorrupt if it is not a cache file.
Result<bool> is_current(const fs::path& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  // Read first, so that a read error is not mistaken for another kind of file.
  Bytes begin(static_cast<std::size_t>(std::min<std::uint64_t>(source->size(), kBeginBytes)));
  TQC_TRY(source->read_at(0, begin));
  const std::unique_ptr<ByteSource> first = memory_source(std::move(begin));
  if (format::looks_like_cache_file(*first)) return true;
  if (looks_like_v1(*first)) return false;
  return corrupt("not a cache file of any version");
}

FileMigration current(const fs::path& path) {
  FileMigration report;
  report.status = MigrateStatus::kCurrent;
  std::error_code no_size;
  const std::uintmax_t size = fs::file_size(path, no_size);
  report.bytes_before = no_size ? 0 : size;
  return report;
}

// The old file and its migrated cache.
struct Work {
  std::unique_ptr<ByteSource> source;
  V1File old;
  cache::Cache cache;
  FileMigration report;
};

Result<Work> read_and_migrate(const fs::path& path, const MemoryBudget& memory,
                              const Progress& progress) {
  Work work;
  TQC_TRY_ASSIGN(work.source, open_file(path));
  TQC_TRY_ASSIGN(work.old, read_v1(*work.source, memory));
  TQC_TRY(check_interrupted(progress));
  TQC_TRY_ASSIGN(Migration migration, v1_to_v2(work.old, memory));
  TQC_TRY(check_interrupted(progress));
  work.report.bytes_before = work.old.file_bytes;
  work.report.n_layers = std::ssize(migration.cache.layers);
  work.report.n_tokens = migration.cache.n_tokens();
  work.report.notes = std::move(migration.notes);
  work.cache = std::move(migration.cache);
  return work;
}

// Whether the file at `path` is a cache of the current version with the content of `old`.
bool holds(const fs::path& path, const V1File& old, const MigrateOptions& options) {
  const auto source = open_file(path);
  if (!source || !format::looks_like_cache_file(**source)) return false;
  format::ReadOptions read;
  read.n_threads = options.write.n_threads;
  read.access = {.keys = options.write.keys, .memory = options.memory};
  read.verify_digests = true;
  const Result<cache::Cache> cache = format::read_cache(**source, read);
  return cache && check_migrated(old, *cache, options.write.n_threads);
}

// Whether `target`, which is not the old file, is already the migrated file.
Result<bool> is_done(const fs::path& target, const V1File& old, const MigrateOptions& options) {
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(target, absent))) return false;
  if (holds(target, old, options)) return true;
  if (options.write.overwrite == Overwrite::kAllow) return false;
  std::string message = target.string();
  return invalid(message.append(": another file exists there"));
}

// Writes the cache to `file`, reads it back and compares it with the old file.
Result<void> write_and_compare(Work& work, AtomicFile& file, const MigrateOptions& options,
                               const Progress& progress) {
  TQC_TRY(format::write_cache(work.cache, file, options.write, progress));
  work.cache = {};  // frees memory for the cache that is read back
  format::ReadOptions read;
  read.n_threads = options.write.n_threads;
  read.verify_digests = true;
  read.access = {.keys = options.write.keys, .memory = options.memory};
  const WrittenBytes written(file);
  TQC_TRY_ASSIGN(const cache::Cache again, format::read_cache(written, read));
  TQC_TRY(check_interrupted(progress));
  work.report.bytes_after = file.size();
  return check_migrated(work.old, again, options.write.n_threads);
}

// Makes the backup, then replaces the old file at `path`.
Result<void> commit_with_backup(AtomicFile& file, const fs::path& path, Work& work) {
  TQC_TRY_ASSIGN(const Backup backup, Backup::make(path, *work.source));
  work.report.backup = backup.path();
  return file.commit();
}

Result<FileMigration> migrate_in_place(const fs::path& path, const MigrateOptions& options,
                                       const Progress& progress) {
  std::optional<AtomicFile> file;
  if (!options.dry_run) {
    // Locks the old file. Another run may have migrated it before.
    TQC_TRY_ASSIGN(file, AtomicFile::create(path, Overwrite::kAllow));
    TQC_TRY_ASSIGN(const bool is_new, is_current(path));
    if (is_new) return current(path);
  }
  TQC_TRY_ASSIGN(Work work, read_and_migrate(path, options.memory, progress));
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
  TQC_TRY_ASSIGN(Work work, read_and_migrate(path, options.memory, progress));
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
