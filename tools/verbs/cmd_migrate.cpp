// tools/verbs/cmd_migrate.cpp: upgrade of version 1 files to version 2.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "migrations/migrate_file.h"
#include "migrations/v1_file.h"
#include "tqcache/base/threads.h"

namespace tqcache::cli {
namespace {

struct MigrateRequest {
  std::vector<std::string> paths;  // files and folders
  std::string output;              // the folder for new files; empty: in place
  bool recursive = false;
};

struct MigrateJob {
  std::filesystem::path from;
  std::filesystem::path to;
  std::uint64_t bytes = 0;       // of the file, if known
  std::optional<Error> refused;  // why the file cannot be migrated
};

struct MigratePlan {
  std::vector<MigrateJob> jobs;  // no file twice, and no two with the same output
  std::uint64_t n_skipped = 0;   // files in folders that are not caches
};

namespace fs = std::filesystem;

constexpr std::string_view kBackupEnd = ".v1.bak";

class Planner {
 public:
  explicit Planner(const MigrateRequest& request) : request_(request) {}

  MigratePlan make() && {
    for (const std::string& path : request_.paths) {
      std::error_code unknown;
      if (fs::is_directory(path, unknown)) {
        add_folder(path, {});
      } else {
        add_file(path, {});
      }
    }
    return std::move(plan_);
  }

 private:
  // `below` is the folder's path relative to the named folder.
  void add_folder(const fs::path& folder, const fs::path& below);
  void add_entry(const fs::directory_entry& entry, const fs::path& below);
  void add_file(const fs::path& path, const fs::path& below);
  void refuse(const fs::path& path, Error error);
  fs::path target_of(const fs::path& path, const fs::path& below) const;
  std::optional<Error> why_not(const fs::path& path, const fs::path& target);

  const MigrateRequest& request_;
  MigratePlan plan_;
  std::set<fs::path> seen_;               // files, by canonical path
  std::map<fs::path, fs::path> targets_;  // output -> input
};

void Planner::add_folder(const fs::path& folder, const fs::path& below) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(*it);
  if (error) return refuse(folder, {ErrorCode::kIo, error.message()});
  std::ranges::sort(entries);
  for (const fs::directory_entry& entry : entries) {
    if (interrupted()) return;
    add_entry(entry, below);
  }
}

void Planner::add_entry(const fs::directory_entry& entry, const fs::path& below) {
  const std::string name = entry.path().filename().string();
  std::error_code unknown;
  const fs::file_type type = entry.symlink_status(unknown).type();
  if (type == fs::file_type::directory) {
    if (request_.recursive && !name.starts_with(".")) add_folder(entry.path(), below / name);
    return;
  }
  if (type != fs::file_type::regular || name.starts_with(".") || name.ends_with(kBackupEnd)) {
    plan_.n_skipped += 1;
    return;
  }
  const auto source = open_file(entry.path());
  if (!source) return refuse(entry.path(), source.error());
  if (migrations::is_cache_of_any_version(**source)) return add_file(entry.path(), below);
  plan_.n_skipped += 1;
}

void Planner::add_file(const fs::path& path, const fs::path& below) {
  std::error_code unknown;
  const fs::path true_name = fs::canonical(path, unknown);
  if (!unknown && !seen_.insert(true_name).second) return;
  MigrateJob job{path, target_of(path, below), 0, std::nullopt};
  const std::uintmax_t size = fs::file_size(path, unknown);
  if (!unknown) job.bytes = size;
  if (std::optional<Error> error = why_not(path, job.to)) {
    job.refused = in_file(path.string(), *std::move(error));
  }
  plan_.jobs.push_back(std::move(job));
}

void Planner::refuse(const fs::path& path, Error error) {
  plan_.jobs.push_back({path, {}, 0, in_file(path.string(), std::move(error))});
}

fs::path Planner::target_of(const fs::path& path, const fs::path& below) const {
  if (request_.output.empty()) return path;
  return fs::path(request_.output) / below / path.stem().concat(".tqkv");
}

std::optional<Error> Planner::why_not(const fs::path& path, const fs::path& target) {
  if (request_.output.empty()) return std::nullopt;
  const auto source = open_file(path);
  if (!source || !migrations::looks_like_v1(**source)) return std::nullopt;  // no output to check
  std::error_code absent;
  if (fs::equivalent(path, target, absent)) {
    return usage_error("the output is the file itself; use --in-place");
  }
  const auto [first, is_free] = targets_.emplace(target.lexically_normal(), path);
  if (is_free) return std::nullopt;
  return usage_error(
      fmt::format("{} is already the output of {}", target.string(), first->second.string()));
}

MigratePlan plan_migration(const MigrateRequest& request) { return Planner(request).make(); }

namespace fs = std::filesystem;
using migrations::FileMigration;
using migrations::MigrateStatus;

constexpr const char* kMigrateExamples =
    R"(Quantized values are copied unchanged: every key and value keeps exactly the value it has in the old
file. Each new file is read back from disk and compared with the old one before the old one is
touched. With --in-place the old file is kept as FILE.v1.bak.

In a folder, files are selected by their content, not by their name; --recursive includes
subfolders. Names that begin with a dot, backups and links are skipped. With -o, a new file gets the
stem of the old name and .tqkv, in the same subfolder of DIR.

An interrupted run can be repeated: files that are done are skipped. A bad file is reported, and the
others are still migrated. The exit code is 3 when some files failed, and that of the first failure
when all did.

Examples:
  tqcache migrate old.tqcache -o .
  tqcache migrate old-caches/ --recursive --dry-run
  tqcache migrate old-caches/ --recursive -o new-caches --jobs 4
  tqcache migrate old-caches/ --in-place --no-backup
)";

struct MigrateFlags {
  MigrateRequest request;
  bool in_place = false;
  bool no_backup = false;
  bool dry_run = false;
  bool no_tokens = false;
  bool force = false;
  unsigned n_jobs = 1;
  CompressionFlags compression;
};

std::string_view status_word(MigrateStatus status) {
  switch (status) {
    case MigrateStatus::kMigrated:
      return "migrated";
    case MigrateStatus::kWouldMigrate:
      return "would_migrate";
    case MigrateStatus::kCurrent:
      return "current";
    case MigrateStatus::kDone:
      return "done";
  }
  return "unknown";
}

std::string sizes_text(const FileMigration& report) {
  return fmt::format("{} layers, {} tokens, {} bytes", report.n_layers, report.n_tokens,
                     grouped(report.bytes_before));
}

std::string result_text(const MigrateJob& job, const FileMigration& report) {
  const std::string from = job.from.string();
  const std::string to = job.to.string();
  switch (report.status) {
    case MigrateStatus::kMigrated:
      return fmt::format("{} -> {}: {} -> {}", from, to, sizes_text(report),
                         grouped(report.bytes_after));
    case MigrateStatus::kWouldMigrate:
      return fmt::format("{} -> {}: would be migrated, {}", from, to, sizes_text(report));
    case MigrateStatus::kCurrent:
      return fmt::format("{}: already version 2", from);
    case MigrateStatus::kDone:
      return fmt::format("{}: already migrated to {}", from, to);
  }
  return from;
}

Json path_json(const fs::path& path) { return path.empty() ? Json(nullptr) : Json(path.string()); }

std::string_view status_word(const Result<FileMigration>& outcome) {
  if (outcome) return status_word(outcome->status);
  return outcome.error().code == ErrorCode::kInterrupted ? "interrupted" : "failed";
}

Json job_json(const MigrateJob& job, const Result<FileMigration>& outcome) {
  Json json;
  json["file"] = job.from.string();
  json["status"] = status_word(outcome);
  const FileMigration report = outcome ? *outcome : FileMigration{};
  json["written"] = path_json(report.written);
  json["backup"] = path_json(report.backup);
  json["bytes_before"] = outcome ? report.bytes_before : job.bytes;
  json["bytes_after"] = report.bytes_after;
  json["layers"] = report.n_layers;
  json["tokens"] = report.n_tokens;
  json["notes"] = report.notes;
  json["error"] = outcome ? Json(nullptr) : failure_json(outcome.error());
  return json;
}

// One bar for all files, by their bytes before migration. Threads: any number.
class SharedBar {
 public:
  SharedBar(const Console& console, const std::vector<MigrateJob>& jobs)
      : bar_(console, "migrating", Unit::kBytes), draw_(bar_.callback()), done_(jobs.size()) {
    for (const MigrateJob& job : jobs) total_ += job.bytes;
  }

  // For a library function that works on file `i`.
  Progress of_file(std::size_t i, std::uint64_t bytes) {
    return [this, i, bytes](std::uint64_t done, std::uint64_t total) {
      const double share = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
      const std::lock_guard lock(mutex_);
      return show(i, static_cast<std::uint64_t>(share * static_cast<double>(bytes)));
    };
  }

  // Finishes file `i`, clears the bar and calls report(), one thread at a time.
  void end_file(std::size_t i, std::uint64_t bytes, const std::function<void()>& report) {
    const std::lock_guard lock(mutex_);
    bar_.clear();
    report();
    show(i, bytes);
  }

 private:
  // The progress of a file never decreases.
  bool show(std::size_t i, std::uint64_t done) {
    done = std::max(done, done_[i]);
    sum_ += done - done_[i];
    done_[i] = done;
    return draw_(sum_, total_);
  }

  std::mutex mutex_;
  ProgressBar bar_;
  Progress draw_;
  std::vector<std::uint64_t> done_;  // bytes of each file
  std::uint64_t sum_ = 0;
  std::uint64_t total_ = 0;
};

class Migrator {
 public:
  Migrator(const Console& console, const MigrateFlags& flags, const format::WriteOptions& write)
      : console_(console), flags_(flags), plan_(plan_migration(flags.request)) {
    options_.write = write;
    options_.memory = console.access.memory;
    options_.keep_backup = !flags.no_backup;
    options_.dry_run = flags.dry_run;
  }

  Result<ExitCode> run();

 private:
  Result<FileMigration> migrate(const MigrateJob& job, const Progress& progress) const;
  Result<void> tell(std::size_t i, const Result<FileMigration>& outcome);
  Result<void> sum_up() const;

  const Console& console_;
  const MigrateFlags& flags_;
  const MigratePlan plan_;
  migrations::MigrateOptions options_;
  Tally tally_;
  std::vector<Json> entries_;
  std::size_t n_migrated_ = 0;
};

Result<FileMigration> Migrator::migrate(const MigrateJob& job, const Progress& progress) const {
  if (job.refused) return *job.refused;
  if (interrupted()) return interrupted_error();
  if (!flags_.dry_run && !flags_.in_place) {
    std::error_code error;
    fs::create_directories(job.to.parent_path(), error);
    if (error) {
      return Error{ErrorCode::kIo, error.message(), job.to.parent_path().string()};
    }
  }
  return in_file(job.from.string(), migrations::migrate_file(job.from, job.to, options_, progress));
}

// Reports the result of a file: on standard output in a dry run, otherwise as a note.
Result<void> Migrator::tell(std::size_t i, const Result<FileMigration>& outcome) {
  const MigrateJob& job = plan_.jobs[i];
  entries_[i] = job_json(job, outcome);
  if (!outcome) {
    tally_.failed(outcome.error());
    return {};
  }
  tally_.done();
  const MigrateStatus status = outcome->status;
  const bool migrates =
      status == MigrateStatus::kMigrated || status == MigrateStatus::kWouldMigrate;
  n_migrated_ += migrates ? 1 : 0;
  for (const std::string& line : outcome->notes) warn(job.from.string(), line);
  const std::string text = result_text(job, *outcome);
  if (flags_.dry_run && !console_.json) return print(text + "\n");
  note(console_, text);
  return {};
}

Result<void> Migrator::sum_up() const {
  const std::size_t n_open = tally_.n_failed() + tally_.n_interrupted();
  const std::size_t n_left = plan_.jobs.size() - n_migrated_ - n_open;
  const std::string not_reached =
      tally_.n_interrupted() == 0 ? "" : fmt::format(", {} not reached", tally_.n_interrupted());
  note(console_, fmt::format("{} {}, {} left as they are, {} failed{}; {} other files", n_migrated_,
                             flags_.dry_run ? "to migrate" : "migrated", n_left, tally_.n_failed(),
                             not_reached, plan_.n_skipped));
  if (!console_.json) return {};
  Json json;
  json["schema"] = 1;
  json["dry_run"] = flags_.dry_run;
  json["files"] = entries_;
  json["skipped"] = plan_.n_skipped;
  return print_json(json);
}

Result<ExitCode> Migrator::run() {
  if (interrupted()) return interrupted_error();  // the plan may be incomplete
  const std::vector<MigrateJob>& jobs = plan_.jobs;
  entries_.resize(jobs.size());
  Result<void> told = {};
  {
    SharedBar bar(console_, jobs);
    parallel_for(jobs.size(), flags_.n_jobs, [&](std::size_t i) {
      const Result<FileMigration> outcome = migrate(jobs[i], bar.of_file(i, jobs[i].bytes));
      bar.end_file(i, jobs[i].bytes, [&] {
        Result<void> now = tell(i, outcome);
        if (told.ok()) told = std::move(now);
      });
    });
  }
  TQC_TRY(sum_up());
  TQC_TRY(std::move(told));
  return tally_.exit_code();
}

Result<void> check_flags(const MigrateFlags& flags) {
  const std::string& output = flags.request.output;
  if (flags.in_place && !output.empty()) {
    return usage_error("-o and --in-place exclude each other");
  }
  if (!flags.in_place && output.empty() && !flags.dry_run) {
    return usage_error("-o DIR or --in-place is required");
  }
  if (flags.no_backup && !output.empty()) {
    return usage_error("--no-backup goes only with --in-place");
  }
  for (const std::string& path : flags.request.paths) {
    if (path == "-") return usage_error("standard input cannot be migrated");
  }
  std::error_code absent;
  if (fs::exists(output, absent) && !fs::is_directory(output, absent)) {
    return usage_error(fmt::format("-o: {} is not a folder", output));
  }
  return {};
}

Result<ExitCode> run(const Console& console, const MigrateFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(format::WriteOptions write, write_options(flags.compression, 0, flags.force));
  write.hide_tokens = flags.no_tokens;
  write.keys = console.access.keys;
  return Migrator(console, flags, write).run();
}

}  // namespace

Action define_migrate(FlagSet& app) {
  const auto flags = std::make_shared<MigrateFlags>();
  app.add("path", flags->request.paths, "Files and folders")->type_name("")->file()->required();
  app.add("-o,--output", flags->request.output, "Folder for the new files")
      ->type_name("DIR")
      ->file();
  app.add("--in-place", flags->in_place, "Replace each file; the old one is kept as FILE.v1.bak");
  app.add("--no-backup", flags->no_backup, "With --in-place: do not keep the old file");
  app.add("--dry-run", flags->dry_run, "Read and convert everything, write nothing");
  app.add("-r,--recursive", flags->request.recursive, "Include subfolders");
  app.add("--jobs", flags->n_jobs, "Number of files to work on at a time; memory grows with it")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  add_no_tokens_flag(app, flags->no_tokens);
  add_compression_flags(app, flags->compression, "zstd");
  add_force_flag(app, flags->force);
  app.footer(kMigrateExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
