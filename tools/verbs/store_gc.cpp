// tools/verbs/store_gc.cpp: makes a store smaller.

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "cli/progress.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "tqcache/store/upkeep/collect.h"
#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStoreGcExamples =
    R"(Without flags only what nobody can find goes: leftovers of interrupted work. With
--max-age goes what was not used for so long, prompts that are kept under names
included; with --max-bytes what was not used for longest, until the rest fits. What
a kept prompt needs stays as long as the prompt is kept, and prompts go for
--max-bytes only with --drop-prompts, when all that none needs is gone. The tokens
of a prompt that went are computed again by whoever needs them.

What was used within the last hour (--grace) stays in any case, so that a put in
progress finds what it relies on. Times are the engine's: in Redis reading counts
as use, in S3 the time since a blob was put or last fetched as a prompt's end.

The exit code is 3 when more than --max-bytes had to stay. It works on the whole
store, whatever the salt.

Examples:
  tqcache store gc --store dir:/var/lib/prompts --max-bytes 200GiB
  tqcache store gc --store s3://prompts --max-age 30d --dry-run
  tqcache store gc --store dir:/var/lib/prompts --max-bytes 50GiB --drop-prompts
)";

struct GcFlags {
  StoreFlags store;
  std::optional<std::uint64_t> max_bytes;
  std::optional<std::chrono::seconds> max_age, grace;
  bool drop_prompts = false;
  bool dry_run = false;
};

std::uint64_t blobs_removed(const store::CollectReport& report) {
  std::uint64_t sum = 0;
  for (const store::KindTotal& total : report.removed) sum += total.blobs;
  return sum;
}

Json removed_json(const store::CollectReport& report) {
  Json json;
  for (const store::BlobKind kind : store::kAllKinds) {
    const store::KindTotal& total = report.removed[static_cast<std::size_t>(kind)];
    json[store::name_of(kind)] = {{"blobs", total.blobs}, {"bytes", total.bytes}};
  }
  return json;
}

Json report_json(const OpenStore& store, const GcFlags& flags, const store::CollectReport& report,
                 const std::vector<std::string>& prompts) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["dry_run"] = flags.dry_run;
  json["bytes_before"] = report.bytes_before;
  json["bytes_after"] = report.bytes_after;
  json["bytes_needed"] = report.bytes_needed;
  json["bytes_in_grace"] = report.bytes_in_grace;
  json["max_bytes"] = flags.max_bytes ? Json(*flags.max_bytes) : Json(nullptr);
  json["above_limit"] = report.above_limit;
  json["prompts_before"] = report.prompts;
  json["prompts_removed"] = prompts;
  json["removed"] = removed_json(report);
  return json;
}

std::string report_text(const GcFlags& flags, const store::CollectReport& report) {
  return fmt::format("{} -> {} bytes, {} blobs {}, {} of {} prompts\n",
                     grouped(report.bytes_before), grouped(report.bytes_after),
                     grouped(blobs_removed(report)), flags.dry_run ? "would go" : "removed",
                     report.prompts_removed, report.prompts);
}

void tell_limit(const OpenStore& store, const store::CollectReport& report) {
  warn(store.name(),
       fmt::format("more than --max-bytes is left: {} bytes are needed by kept prompts, {} were "
                   "used within --grace",
                   grouped(report.bytes_needed), grouped(report.bytes_in_grace)));
}

Outcome<ExitCode> run(const Console& console, const GcFlags& flags) {
  if (flags.drop_prompts && !flags.max_bytes) {
    return usage_error("--drop-prompts is of use only with --max-bytes");
  }
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags.store, StoreUse::kLook));
  std::vector<std::string> prompts;
  store::CollectOptions options;
  options.max_bytes = flags.max_bytes;
  options.max_age = flags.max_age;
  if (flags.grace) options.grace = *flags.grace;
  options.drop_prompts = flags.drop_prompts;
  options.dry_run = flags.dry_run;
  options.on_prompt = [&](const std::string& name) { prompts.push_back(name); };
  options.on_loss = [&](const std::string& name) {
    warn(store.name(),
         fmt::format("{}: put meanwhile, and lost blocks; put it again", printable(name)));
  };
  ProgressBar bar(console, "collecting", Unit::kBlobs);
  TQC_TRY_ASSIGN(const store::CollectReport report,
                 store.in(store::collect(*store.backend, options, bar.callback())));
  bar.clear();
  const char* const verb = flags.dry_run ? "would be kept no longer" : "no longer kept";
  for (const std::string& name : prompts) {
    note(console, fmt::format("{}: {}", printable(name), verb));
  }
  TQC_TRY(console.json ? print_json(report_json(store, flags, report, prompts))
                       : print(report_text(flags, report)));
  if (!report.above_limit) return ExitCode::kDone;
  tell_limit(store, report);
  return ExitCode::kDoneInPart;
}

}  // namespace

Action define_store_gc(CLI::App& app) {
  const auto flags = std::make_shared<GcFlags>();
  add_store_flag(app, flags->store);
  add_bytes_flag(app, "--max-bytes", flags->max_bytes,
                 "Remove what was not used for longest until no more than this is left, as the "
                 "engine counts: 2000000000, 500MB, 20GiB");
  add_duration_flag(app, "--max-age", flags->max_age,
                    "Remove what was not used for so long: 12h, 30d, 4w");
  add_duration_flag(app, "--grace", flags->grace,
                    "Leave what was used within this time; 1h unless told otherwise");
  app.add_flag("--drop-prompts", flags->drop_prompts,
               "With --max-bytes: also prompts that are kept under names");
  app.add_flag("--dry-run", flags->dry_run, "Tell what would go, and remove nothing");
  app.footer(kStoreGcExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
