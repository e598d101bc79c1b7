// tools/verbs/cmd_compact.cpp: removal of dead space from cache files.

#include <fmt/format.h>

#include <memory>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "migrations/v1_file.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {
namespace {

constexpr const char* kCompactExamples =
    R"(generate --append, and chat --save into its own --cache, leave dead bytes in a file; tqcache info
shows how many. compact writes a new file without them and replaces the old one once the new file is
safely on disk. Sections stay as they are stored; `convert --compress` changes that. Leftovers of an interrupted save are removed too. The
content is compared with its SHA-256 first, also that of a file without dead space.

A bad file is reported, and the others are still compacted. The exit code is 3 when some files
failed, and that of the first failure when all did.

Examples:
  tqcache compact talk.tqkv
  tqcache compact *.tqkv --json
)";

struct CompactFlags {
  std::vector<std::string> files;
  unsigned n_threads = 0;
};

Result<format::CompactReport> compact(const Console& console, const CompactFlags& flags,
                                      const std::string& path) {
  {
    TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, in_file(path, open_file(path)));
    TQC_TRY_ASSIGN(const FileKind kind, in_file(path, own_kind(*source)));
    if (kind == FileKind::kTqkvVersion1) return in_file(path, v1_is_read_only());
    TQC_TRY(check_encrypted(console, path, *source));
  }
  format::WriteOptions options;
  options.n_threads = flags.n_threads;
  ProgressBar bar(console, "compacting", Unit::kBytes);
  return in_file(path, format::compact_file(path, options, bar.callback(), console.access));
}

void tell(const Console& console, const std::string& path, const format::CompactReport& report) {
  if (!report.rewritten) return note(console, fmt::format("{}: no dead space", path));
  note(console, fmt::format("{}: {} -> {} bytes", path, grouped(report.bytes_before),
                            grouped(report.bytes_after)));
}

Json file_json(const std::string& path, const Result<format::CompactReport>& outcome) {
  Json json;
  json["file"] = path;
  json["status"] = !outcome ? "failed" : outcome->rewritten ? "compacted" : "compact";
  if (outcome) {
    json["bytes_before"] = outcome->bytes_before;
    json["bytes_after"] = outcome->bytes_after;
  }
  json["error"] = outcome ? Json(nullptr) : failure_json(outcome.error());
  return json;
}

Result<ExitCode> run(const Console& console, const CompactFlags& flags) {
  Tally tally;
  Json files = Json::array();
  for (const std::string& path : flags.files) {
    if (interrupted()) {
      tally.failed(interrupted_error());
      break;
    }
    const Result<format::CompactReport> outcome = compact(console, flags, path);
    files.push_back(file_json(path, outcome));
    if (outcome) {
      tell(console, path, *outcome);
      tally.done();
    } else {
      tally.failed(outcome.error());
    }
  }
  if (console.json) TQC_TRY(print_json({{"schema", 1}, {"files", files}}));
  return tally.exit_code();
}

}  // namespace

Action define_compact(FlagSet& app) {
  const auto flags = std::make_shared<CompactFlags>();
  app.add("file", flags->files, "Cache files")->type_name("")->file()->required();
  add_resource_flags(app, flags->n_threads);
  app.footer(kCompactExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
