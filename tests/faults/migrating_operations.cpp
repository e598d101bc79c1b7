// Migration of a file of version 1, in place.

#include "migrations/migrate_file.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "operation_parts.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"

namespace tqcache::faults {
namespace {

namespace fs = std::filesystem;
using test::must;

const std::string kBackupName = kTargetName + ".v1.bak";

Files file_of(test::V1Builder builder) { return {{kTargetName, test::write_v1(builder.build())}}; }

Files v1_file() {
  static const Files made = file_of(test::V1Builder(40)
                                        .dense({1, 16}, test::V1Dtype::kF16)
                                        .turbo({1, 32}, {.bits = 3})
                                        .arrays()
                                        .facts());
  return made;
}

Result<void> migrate(const fs::path& folder, bool keep_backup) {
  migrations::MigrateOptions options;
  options.write = write_options();
  options.keep_backup = keep_backup;
  const fs::path path = folder / kTarget;
  TQC_TRY(migrations::migrate_file(path, path, options));
  return {};
}

Result<void> migrate_with_backup(const fs::path& folder) { return migrate(folder, true); }
Result<void> migrate_alone(const fs::path& folder) { return migrate(folder, false); }

cache::Cache migrated(const Bytes& old) {
  const auto source = memory_source(Bytes(old));
  return must(migrations::v1_to_v2(must(migrations::read_v1(*source)))).cache;
}

std::string state_after(const Bytes& old, const fs::path& folder) {
  if (fs::exists(folder / kBackupName) && test::read_all(folder / kBackupName) != old) {
    return "the backup is not the old file";
  }
  if (test::read_all(folder / kTarget) == old) return "old";
  const Result<cache::Cache> found = read_whole(folder / kTarget);
  if (!found) return "the target: " + found.error().message;
  const std::string difference = test::difference(*found, migrated(old));
  return difference.empty() ? "new" : "the target is neither old nor new: " + difference;
}

std::string state_of_migrated(const fs::path& folder) {
  return state_after(v1_file().at(kTargetName), folder);
}

}  // namespace

std::vector<Operation> migrating_operations() {
  return {
      {"migrate",
       v1_file,
       migrate_with_backup,
       state_of_migrated,
       {kTargetName, kBackupName},
       "migrate",
       ""},
      {"migrate_alone",
       v1_file,
       migrate_alone,
       state_of_migrated,
       {kTargetName},
       "migrate_alone",
       ""},
  };
}

}  // namespace tqcache::faults
