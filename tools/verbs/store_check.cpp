// tools/verbs/store_check.cpp: is all there that prompts need, and is each blob whole?

#include <fmt/format.h>

#include <memory>

#include "cli/progress.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "tqcache/store/upkeep/check.h"
#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStoreCheckExamples =
    R"(Every kept prompt, whatever the salt: is all there that it needs? With --read-data
every blob is read, and held against its key and its checksums. Each damage is a
line. With --repair what is damaged is taken away, and a block that lacks a part
altogether, so that the next put brings them again; a prompt that lost something
stays known, and can be put again or removed. Where an engine evicts, a kept prompt
may lose blocks: that is told, too.

What nobody can find is no damage: tqcache store gc takes it. In Redis reading
counts as use, and --read-data makes everything look used.

Exit codes: 0 whole, 20 damaged, even if it was repaired.

Examples:
  tqcache store check --store dir:/var/lib/prompts
  tqcache store check --store dir:/var/lib/prompts --read-data --repair
)";

struct CheckFlags {
  StoreFlags store;
  bool read_data = false;
  bool repair = false;
};

std::string finding_text(const store::Finding& finding) {
  const std::string prompt =
      finding.prompt.empty() ? "" : fmt::format("prompt {}: ", printable(finding.prompt));
  return fmt::format("{}{}: {}{}", prompt, printable(finding.key), printable(finding.error.message),
                     finding.repaired ? "; taken away" : "");
}

Json finding_json(const store::Finding& finding) {
  Json json;
  json["prompt"] = finding.prompt.empty() ? Json(nullptr) : Json(finding.prompt);
  json["key"] = finding.key;
  json["code"] = error_word(finding.error.code);
  json["message"] = finding.error.message;
  json["repaired"] = finding.repaired;
  return json;
}

Json total_json(const store::KindTotal& total) {
  return {{"blobs", total.blobs}, {"bytes", total.bytes}};
}

Json report_json(const OpenStore& store, const CheckFlags& flags, const store::CheckReport& report,
                 const Json& findings) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["read_data"] = flags.read_data;
  json["whole"] = report.is_whole();
  json["stored"] = total_json(report.blobs);
  json["read"] = total_json(report.read);
  json["prompts"] = report.prompts;
  json["prompts_damaged"] = report.prompts_damaged;
  json["missing"] = report.missing;
  json["damaged"] = report.damaged;
  json["repaired"] = report.repaired;
  json["of_later_versions"] = report.later;
  json["unfindable"] = total_json(report.unfindable);
  json["others"] = total_json(report.others);
  json["findings"] = findings;
  return json;
}

std::string report_text(const store::CheckReport& report) {
  std::string text =
      fmt::format("whole: {} prompts, {} blobs of {} bytes, {} of them read ({} bytes)\n",
                  grouped(report.prompts), grouped(report.blobs.blobs), grouped(report.blobs.bytes),
                  grouped(report.read.blobs), grouped(report.read.bytes));
  if (report.unfindable.blobs > 0) {
    text += fmt::format("{} blobs of {} bytes are found by nobody: gc takes them\n",
                        grouped(report.unfindable.blobs), grouped(report.unfindable.bytes));
  }
  if (report.later > 0) {
    text += fmt::format("{} blobs are of a later version and were not checked\n",
                        grouped(report.later));
  }
  return text;
}

Error damage(const store::CheckReport& report) {
  return {ErrorCode::kCorrupt,
          fmt::format("{} blobs damaged, {} missing, {} taken away; {} of {} prompts are affected",
                      report.damaged, report.missing, report.repaired, report.prompts_damaged,
                      report.prompts)};
}

Outcome<ExitCode> run(const Console& console, const CheckFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags.store, StoreUse::kLook));
  Json findings = Json::array();
  ProgressBar bar(console, "checking", Unit::kBlobs);
  store::CheckOptions options{flags.read_data, flags.repair};
  options.on_finding = [&](const store::Finding& finding) {
    bar.clear();
    complain(store.name(), finding_text(finding));
    if (console.json) findings.push_back(finding_json(finding));
  };
  TQC_TRY_ASSIGN(const store::CheckReport report,
                 store.in(store::check(*store.backend, options, bar.callback())));
  bar.clear();
  if (console.json) TQC_TRY(print_json(report_json(store, flags, report, findings)));
  if (!report.is_whole()) return Failure{damage(report), store.name(), false};
  if (!console.json) TQC_TRY(print(report_text(report)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_check(CLI::App& app) {
  const auto flags = std::make_shared<CheckFlags>();
  add_store_flag(app, flags->store);
  app.add_flag("--read-data", flags->read_data, "Read every blob");
  app.add_flag("--repair", flags->repair, "Take away what is damaged");
  app.footer(kStoreCheckExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
