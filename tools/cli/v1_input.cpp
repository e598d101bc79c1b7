#include "cli/v1_input.h"

#include "cli/console.h"
#include "cli/interrupt.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::cli {
namespace {

void warn_of_age(const std::string& name, const std::vector<std::string>& notes) {
  warn(name,
       "version 1 (class_path) is deprecated and read only; tqcache migrate makes it version 2");
  for (const std::string& note : notes) warn(name, note);
}

V1Summary summary_of(migrations::V1File& file, std::vector<std::string> notes) {
  V1Summary summary;
  for (migrations::V1Entry& entry : file.entries) {
    summary.class_paths.push_back(std::move(entry.class_path));
  }
  summary.metadata = std::move(file.metadata);
  summary.notes = std::move(notes);
  return summary;
}

Result<void> stop_if_interrupted() {
  if (interrupted()) return interrupted_error();
  return {};
}

Result<V1Input> migrate_in_memory(const ByteSource& file, unsigned n_threads, bool compare) {
  TQC_TRY_ASSIGN(migrations::V1File old, migrations::read_v1(file));
  TQC_TRY(stop_if_interrupted());
  TQC_TRY_ASSIGN(migrations::Migration migration, migrations::v1_to_v2(old));
  TQC_TRY(stop_if_interrupted());
  if (compare) TQC_TRY(migrations::check_migrated(old, migration.cache, n_threads));
  V1Input input{summary_of(old, std::move(migration.notes)), nullptr};
  old = {};  // its memory is needed for what comes
  format::WriteOptions options;
  options.compression = format::Compression::kNone;
  options.n_threads = n_threads;
  const auto go_on = [](std::uint64_t, std::uint64_t) { return !interrupted(); };
  TQC_TRY_ASSIGN(Bytes bytes, format::write_cache_bytes(migration.cache, options, go_on));
  input.source = memory_source(std::move(bytes));
  return input;
}

}  // namespace

Error v1_is_read_only() {
  return {ErrorCode::kUnsupported, "version 1 is read only; tqcache migrate makes it version 2"};
}

Outcome<V1Input> read_v1_input(const ByteSource& file, const std::string& name, unsigned n_threads,
                               bool compare) {
  TQC_TRY_ASSIGN(V1Input input, in_file(name, migrate_in_memory(file, n_threads, compare)));
  warn_of_age(name, input.summary.notes);
  return input;
}

}  // namespace tqcache::cli
