// tools/verbs/cmd_migrate.cpp: turns files of version 1 into version 2.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/migrate_plan.h"
#include "cli/progress.h"
#include "cli/tally.h"
#include "cli/text.h"
#include "migrations/migrate_file.h"
#include "tqcache/base/threads.h"

namespace tqcache::cli {
namespace {

namespace fs = std::filesystem;
using migrations::FileMigration;
using migrations::MigrateStatus;

constexpr const char* kMigrateExamples =
    R"(Packed codes are carried over as they are: every key and value keeps exactly what
the old file says. A new file is read back from disk and compared with the old one
before anything is done to that one. In place, the old file is kept as FILE.v1.bak.

Of a folder, those files are taken that begin as a cache does, whatever they are
called; with --recursive those of its folders, too. Names that begin with a dot,
backups and links are passed over. With -o a file gets its name's stem and .tqkv,
under the same folder below DIR as it had below the one that was named.

Whatever ends a run, it is simply run again: what is of version 2 already, in place
or under -o, is left alone. A bad file is told and the rest goes on. The exit code
is 3 when some files failed, and the first failure's own when all did.

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
      return fmt::format("{}: of version 2 already", from);
    case MigrateStatus::kDone:
      return fmt::format("{}: migrated to {} already", from, to);
  }
  return from;
}

Json path_json(const fs::path& path) { return path.empty() ? Json(nullptr) : Json(path.string()); }

std::string_view status_word(const Outcome<FileMigration>& outcome) {
  if (outcome) return status_word(outcome->status);
  return outcome.error().error.code == ErrorCode::kInterrupted ? "interrupted" : "failed";
}

Json job_json(const MigrateJob& job, const Outcome<FileMigration>& outcome) {
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

// One bar for all files, by their bytes before. Threads: any number.
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

  // Ends file `i` and makes room for tell(), which one thread at a time calls.
  void end_file(std::size_t i, std::uint64_t bytes, const std::function<void()>& tell) {
    const std::lock_guard lock(mutex_);
    bar_.clear();
    tell();
    show(i, bytes);
  }

 private:
  // A file's share never falls.
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
      : console_(console),
        flags_(flags),
        plan_(plan_migration(flags.request)),
        tally_(console.json) {
    options_.write = write;
    options_.keep_backup = !flags.no_backup;
    options_.dry_run = flags.dry_run;
  }

  Outcome<ExitCode> run();

 private:
  Outcome<FileMigration> migrate(const MigrateJob& job, const Progress& progress) const;
  Outcome<Done> tell(std::size_t i, const Outcome<FileMigration>& outcome);
  Outcome<Done> sum_up() const;

  const Console& console_;
  const MigrateFlags& flags_;
  const MigratePlan plan_;
  migrations::MigrateOptions options_;
  Tally tally_;
  std::vector<Json> entries_;
  std::size_t n_migrated_ = 0;
};

Outcome<FileMigration> Migrator::migrate(const MigrateJob& job, const Progress& progress) const {
  if (job.refused) return *job.refused;
  if (interrupted()) return interrupted_error();
  if (!flags_.dry_run && !flags_.in_place) {
    std::error_code error;
    fs::create_directories(job.to.parent_path(), error);
    if (error) {
      return Failure{Error{ErrorCode::kIo, error.message()}, job.to.parent_path().string(), false};
    }
  }
  return in_file(job.from.string(), migrations::migrate_file(job.from, job.to, options_, progress));
}

// What would happen is the result of a dry run; otherwise the files are.
Outcome<Done> Migrator::tell(std::size_t i, const Outcome<FileMigration>& outcome) {
  const MigrateJob& job = plan_.jobs[i];
  entries_[i] = job_json(job, outcome);
  if (!outcome) {
    tally_.failed(outcome.error());
    return Done{};
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
  return Done{};
}

Outcome<Done> Migrator::sum_up() const {
  const std::size_t n_open = tally_.n_failed() + tally_.n_interrupted();
  const std::size_t n_left = plan_.jobs.size() - n_migrated_ - n_open;
  const std::string not_reached =
      tally_.n_interrupted() == 0 ? "" : fmt::format(", {} not reached", tally_.n_interrupted());
  note(console_, fmt::format("{} {}, {} left as they are, {} failed{}; {} other files", n_migrated_,
                             flags_.dry_run ? "to migrate" : "migrated", n_left, tally_.n_failed(),
                             not_reached, plan_.n_skipped));
  if (!console_.json) return Done{};
  Json json;
  json["schema"] = 1;
  json["dry_run"] = flags_.dry_run;
  json["files"] = entries_;
  json["skipped"] = plan_.n_skipped;
  return print_json(json);
}

Outcome<ExitCode> Migrator::run() {
  if (interrupted()) return interrupted_error();  // the plan may lack files
  const std::vector<MigrateJob>& jobs = plan_.jobs;
  entries_.resize(jobs.size());
  Outcome<Done> told = Done{};
  {
    SharedBar bar(console_, jobs);
    parallel_for(jobs.size(), flags_.n_jobs, [&](std::size_t i) {
      const Outcome<FileMigration> outcome = migrate(jobs[i], bar.of_file(i, jobs[i].bytes));
      bar.end_file(i, jobs[i].bytes, [&] {
        Outcome<Done> now = tell(i, outcome);
        if (told.ok()) told = std::move(now);
      });
    });
  }
  TQC_TRY(sum_up());
  TQC_TRY(std::move(told));
  return tally_.exit_code();
}

Outcome<Done> check_flags(const MigrateFlags& flags) {
  const std::string& output = flags.request.output;
  if (flags.in_place && !output.empty()) {
    return usage_error("only one of -o and --in-place can say where the new files go");
  }
  if (!flags.in_place && output.empty() && !flags.dry_run) {
    return usage_error("where shall the new files go? one of -o DIR and --in-place is needed");
  }
  if (flags.no_backup && !output.empty()) {
    return usage_error("--no-backup: with -o the old files stay where they are");
  }
  for (const std::string& path : flags.request.paths) {
    if (path == "-") return usage_error("standard input is no file that could be migrated");
  }
  std::error_code absent;
  if (fs::exists(output, absent) && !fs::is_directory(output, absent)) {
    return usage_error(fmt::format("-o: {} is not a folder", output));
  }
  return Done{};
}

Outcome<ExitCode> run(const Console& console, const MigrateFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(format::WriteOptions write, write_options(flags.compression, 0, flags.force));
  write.hide_tokens = flags.no_tokens;
  return Migrator(console, flags, write).run();
}

}  // namespace

Action define_migrate(CLI::App& app) {
  const auto flags = std::make_shared<MigrateFlags>();
  app.add_option("path", flags->request.paths, "Files and folders")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_option("-o,--output", flags->request.output, "The folder for the new files")
      ->type_name("DIR")
      ->check(file_name());
  app.add_flag("--in-place", flags->in_place, "Replace each file, which is kept as FILE.v1.bak");
  app.add_flag("--no-backup", flags->no_backup, "With --in-place: do not keep it");
  app.add_flag("--dry-run", flags->dry_run, "Read and convert everything, and write nothing");
  app.add_flag("-r,--recursive", flags->request.recursive, "Take folders in folders, too");
  app.add_option("--jobs", flags->n_jobs, "Files to work on at a time; memory grows with it")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  add_no_tokens_flag(app, flags->no_tokens);
  add_compression_flags(app, flags->compression, "zstd");
  add_force_flag(app, flags->force);
  app.footer(kMigrateExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
