#include "cli/migrate_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "cli/interrupt.h"
#include "migrations/migrate_file.h"
#include "migrations/v1_file.h"

namespace tqcache::cli {
namespace {

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
  // `below` is the folder's place under the one that was named.
  void add_folder(const fs::path& folder, const fs::path& below);
  void add_entry(const fs::directory_entry& entry, const fs::path& below);
  void add_file(const fs::path& path, const fs::path& below);
  void refuse(const fs::path& path, Error error);
  fs::path target_of(const fs::path& path, const fs::path& below) const;
  std::optional<Error> why_not(const fs::path& path, const fs::path& target);

  const MigrateRequest& request_;
  MigratePlan plan_;
  std::set<fs::path> seen_;               // files, by their one true name
  std::map<fs::path, fs::path> targets_;  // of which file each is
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
    job.refused = Failure{*std::move(error), path.string(), false};
  }
  plan_.jobs.push_back(std::move(job));
}

void Planner::refuse(const fs::path& path, Error error) {
  plan_.jobs.push_back({path, {}, 0, Failure{std::move(error), path.string(), false}});
}

fs::path Planner::target_of(const fs::path& path, const fs::path& below) const {
  if (request_.output.empty()) return path;
  return fs::path(request_.output) / below / path.stem().concat(".tqkv");
}

std::optional<Error> Planner::why_not(const fs::path& path, const fs::path& target) {
  if (request_.output.empty()) return std::nullopt;
  const auto source = open_file(path);
  if (!source || !migrations::looks_like_v1(**source)) return std::nullopt;  // nothing to write
  std::error_code absent;
  if (fs::equivalent(path, target, absent)) {
    return usage_error("the output would be the file itself, which is what --in-place is for");
  }
  const auto [first, is_free] = targets_.emplace(target.lexically_normal(), path);
  if (is_free) return std::nullopt;
  return usage_error(
      fmt::format("{} is the output of {} already", target.string(), first->second.string()));
}

}  // namespace

MigratePlan plan_migration(const MigrateRequest& request) { return Planner(request).make(); }

}  // namespace tqcache::cli
