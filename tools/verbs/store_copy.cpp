// tools/verbs/store_copy.cpp: prompts from one store to another, or everything.

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "cli/progress.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "tqcache/store/blobs/keys.h"
#include "tqcache/store/upkeep/copy.h"
#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStoreCopyExamples =
    R"(With names, these prompts and all that they need; without, everything that is in
the store, of all salts, but for the notes of runs. What is there already is not
sent again, so a copy that was interrupted is simply made again. Every blob is
checked on its way: a damaged one is told and left out, and the exit code is 3.

Examples:
  tqcache store copy dir:/var/lib/prompts redis://localhost alice
  tqcache store copy redis://localhost s3://prompts
  tqcache store copy dir:old dir:new
)";

struct CopyFlags {
  std::string from, to;
  std::vector<std::string> names;
  std::string salt_file;
  bool replace = false;
};

// Errors: kNotFound when no prompt has one of the names.
Outcome<std::vector<std::string>> record_keys(const OpenStore& from,
                                              const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) keys.push_back(store::record_key(from.salt, name));
  TQC_TRY_ASSIGN(const std::vector<bool> there, from.in(from.backend->exists(keys)));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (there[i]) continue;
    const std::string message = fmt::format("no prompt is kept as {}", printable(names[i]));
    return Failure{{ErrorCode::kNotFound, message}, from.name(), false};
  }
  return keys;
}

Json report_json(const OpenStore& from, const OpenStore& to, const store::CopyReport& report) {
  Json json;
  json["schema"] = 1;
  json["from"] = from.name();
  json["to"] = to.name();
  json["prompts"] = report.prompts;
  json["prompts_existed"] = report.prompts_existed;
  json["prompts_failed"] = report.prompts_failed;
  json["blobs"] = report.blobs;
  json["bytes"] = report.bytes;
  json["blobs_existed"] = report.blobs_existed;
  json["blobs_failed"] = report.blobs_failed;
  return json;
}

Outcome<ExitCode> run(const Console& console, const CopyFlags& flags) {
  if (flags.from == flags.to) return usage_error("both stores are the same");
  TQC_TRY_ASSIGN(const OpenStore from, open_store(flags.from, flags.salt_file, StoreUse::kLook));
  TQC_TRY_ASSIGN(const std::vector<std::string> keys, record_keys(from, flags.names));
  TQC_TRY_ASSIGN(const OpenStore to, open_store(flags.to, flags.salt_file, StoreUse::kPut));
  ProgressBar bar(console, "copying", Unit::kBytes);
  store::CopyOptions options;
  options.replace = flags.replace;
  options.on_warning = [&](const std::string& message) {
    bar.clear();
    complain(from.name(), printable(message));
  };
  const std::string both = fmt::format("{} -> {}", from.name(), to.name());
  TQC_TRY_ASSIGN(const store::CopyReport report,
                 in_file(both, keys.empty() ? store::copy_store(*from.backend, *to.backend, options,
                                                                bar.callback())
                                            : store::copy_prompts(*from.backend, *to.backend, keys,
                                                                  options, bar.callback())));
  bar.clear();
  note(console,
       fmt::format("{}: {} prompts copied, {} were there; {} blobs, {} bytes", both, report.prompts,
                   report.prompts_existed, grouped(report.blobs), grouped(report.bytes)));
  if (console.json) TQC_TRY(print_json(report_json(from, to, report)));
  return report.is_whole() ? ExitCode::kDone : ExitCode::kDoneInPart;
}

}  // namespace

Action define_store_copy(CLI::App& app) {
  const auto flags = std::make_shared<CopyFlags>();
  app.add_option("from", flags->from, "The store to copy from, a URL")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_option("to", flags->to, "The store to copy to, a URL")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_option("name", flags->names,
                 "Names of prompts; all and everything else if there are none")
      ->type_name("")
      ->check(file_name());
  app.add_option("--salt-file", flags->salt_file,
                 "Names are those of this file's text as the salt (or the variable "
                 "TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->check(file_name());
  app.add_flag("--replace", flags->replace, "Take names from other prompts that have them there");
  app.footer(kStoreCopyExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
