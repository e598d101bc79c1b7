// tools/verbs/store_upkeep.cpp: upkeep of a store: gc, check, copy, forget, stats.

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/common_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/text_table.h"
#ifdef TQCACHE_SERVE
#include "tqcache/serve/prompt_keeper.h"
#endif
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/upkeep/inventory.h"
#include "tqcache/upkeep.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStoreGcExamples =
    R"(By default, removes only unreachable leftovers of interrupted work. --max-age also removes data that
was not used for that long, including named prompts. --max-bytes removes the least recently used
data until the rest fits. Data that a named prompt needs stays as long as its name; with
--drop-prompts, --max-bytes removes named prompts too, once no other data is left to remove. Removed
tokens are computed again when they are needed.

Data used within the last hour (--grace) always stays, so that puts in progress find what they
rely on. The time of last use comes from the backend: in Redis reading counts as use; in S3 it is
the time since a blob was put or last fetched as the end of a prompt.

The exit code is 3 if more than --max-bytes had to stay. gc works on the whole store, for all salts.

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

Json leftovers_json(const store::Backend::Leftovers& leftovers) {
  return {{"files", leftovers.files}, {"bytes", leftovers.bytes}};
}

// A line, or nothing when there is none.
std::string leftovers_text(const store::Backend::Leftovers& leftovers, std::string_view what) {
  if (leftovers.files == 0) return {};
  return fmt::format("{} temporary files of {} bytes that killed writers left: {}\n",
                     grouped(leftovers.files), grouped(leftovers.bytes), what);
}

Json removed_json(const std::array<store::KindTotal, store::kBlobKinds>& removed) {
  Json json;
  for (const store::BlobKind kind : store::kAllKinds) {
    const store::KindTotal& total = removed[static_cast<std::size_t>(kind)];
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
  json["removed"] = removed_json(report.removed);
  json["leftovers"] = leftovers_json(report.leftovers);
  return json;
}

std::string report_text(const GcFlags& flags, const store::CollectReport& report) {
  return fmt::format("{} -> {} bytes; {} {}, {} of {}\n", grouped(report.bytes_before),
                     grouped(report.bytes_after), counted(blobs_removed(report), "blob"),
                     flags.dry_run ? "would be removed" : "removed", report.prompts_removed,
                     counted(report.prompts, "prompt")) +
         leftovers_text(report.leftovers, flags.dry_run ? "would be removed" : "removed");
}

void report_limit(const OpenStore& store, const store::CollectReport& report) {
  warn(store.name(),
       fmt::format("the store stays above --max-bytes: named prompts need {} bytes, {} bytes were "
                   "used within --grace",
                   grouped(report.bytes_needed), grouped(report.bytes_in_grace)));
}

Result<ExitCode> run(const Console& console, const GcFlags& flags) {
  if (flags.drop_prompts && !flags.max_bytes) {
    return usage_error("--drop-prompts needs --max-bytes");
  }
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  // Named prompts tell by themselves; a store without any would look like one of no prompts.
  TQC_TRY(store.check_key());
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
         fmt::format("{}: lost blocks while it was being put; put it again", printable(name)));
  };
  ProgressBar bar(console, "collecting", Unit::kBlobs);
  TQC_TRY_ASSIGN(const store::CollectReport report,
                 store.in(store::collect(*store.backend, options, bar.callback())));
  bar.clear();
  const char* const verb = flags.dry_run ? "would be removed" : "removed";
  for (const std::string& name : prompts) {
    note(console, fmt::format("{}: {}", printable(name), verb));
  }
  TQC_TRY(console.json ? print_json(report_json(store, flags, report, prompts))
                       : print(report_text(flags, report)));
  if (!report.above_limit) return ExitCode::kDone;
  report_limit(store, report);
  return ExitCode::kDoneInPart;
}

}  // namespace

Action define_store_gc(FlagSet& app) {
  const auto flags = std::make_shared<GcFlags>();
  add_store_flag(app, flags->store);
  add_bytes_flag(app, "--max-bytes", flags->max_bytes,
                 "Remove the least recently used data until the store is this small: 2000000000, "
                 "500MB, 20GiB");
  add_duration_flag(app, "--max-age", flags->max_age,
                    "Remove data that was not used for this long: 12h, 30d, 4w");
  add_duration_flag(app, "--grace", flags->grace,
                    "Keep data that was used within this time; 1h by default");
  app.add("--drop-prompts", flags->drop_prompts, "With --max-bytes: also remove named prompts");
  app.add("--dry-run", flags->dry_run, "Report what would be removed, remove nothing");
  app.footer(kStoreGcExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kStoreCheckExamples =
    R"(Checks that the store has everything that each named prompt needs, for all salts. --read-data also
reads every blob and verifies its key and checksums. Each problem is reported on a line. --repair
removes damaged blobs, and token blocks of which a part is missing, so that the next put restores
them; a prompt that lost data stays listed, and can be put again or removed. In a store that evicts
data, named prompts may lose blocks; that is reported too.

Unreachable data is not damage: tqcache store gc removes it. In Redis, reading counts as use, so
--read-data makes all data look recently used.

Exit codes: 0 undamaged, 20 damaged, even if it was repaired.

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
                     finding.repaired ? "; removed" : "");
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
  json["leftovers"] = leftovers_json(report.leftovers);
  json["findings"] = findings;
  return json;
}

std::string report_text(const CheckFlags& flags, const store::CheckReport& report) {
  std::string text =
      fmt::format("OK: {}, {}, {} bytes; {} read ({} bytes)\n", counted(report.prompts, "prompt"),
                  counted(report.blobs.blobs, "blob"), grouped(report.blobs.bytes),
                  counted(report.read.blobs, "blob"), grouped(report.read.bytes));
  if (report.unfindable.blobs > 0) {
    text += fmt::format("{} of {} bytes; tqcache store gc removes them\n",
                        counted(report.unfindable.blobs, "unreachable blob"),
                        grouped(report.unfindable.bytes));
  }
  if (report.later > 0) {
    text +=
        fmt::format("not checked, because of a later version: {}\n", counted(report.later, "blob"));
  }
  return text + leftovers_text(report.leftovers, flags.repair ? "removed" : "gc removes them");
}

Error damage(const store::CheckReport& report) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}, {} missing, {} removed; {} of {} affected",
                      counted(report.damaged, "damaged blob"), report.missing, report.repaired,
                      report.prompts_damaged, counted(report.prompts, "prompt"))};
}

Result<ExitCode> run(const Console& console, const CheckFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  TQC_TRY(store.check_key());
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
  if (!report.is_whole()) return in_file(store.name(), damage(report));
  if (!console.json) TQC_TRY(print(report_text(flags, report)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_check(FlagSet& app) {
  const auto flags = std::make_shared<CheckFlags>();
  add_store_flag(app, flags->store);
  app.add("--read-data", flags->read_data, "Read every blob");
  app.add("--repair", flags->repair, "Remove damaged data");
  add_memory_flag(app);
  app.footer(kStoreCheckExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kStoreCopyExamples =
    R"(Copies the prompts with these names and everything they need; without names, everything in the
store, for all salts, except hit statistics. Data that exists already is not sent again, so an
interrupted copy can simply be repeated. Every blob is verified on the way: a damaged one is
reported and skipped, and the exit code is 3.

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

// Errors: kNotFound if no prompt has one of the names.
Result<std::vector<std::string>> record_keys(const OpenStore& from,
                                             const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) keys.push_back(store::record_key(from.salt, name));
  TQC_TRY_ASSIGN(const std::vector<bool> there, from.in(from.backend->exists(keys)));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (there[i]) continue;
    const std::string message = fmt::format("no prompt has the name {}", printable(names[i]));
    return Error{ErrorCode::kNotFound, message, from.name()};
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

Result<ExitCode> run(const Console& console, const CopyFlags& flags) {
  if (flags.from == flags.to) return usage_error("the source and the target are the same store");
  TQC_TRY_ASSIGN(const OpenStore from,
                 open_store(console, flags.from, flags.salt_file, StoreUse::kLook));
  TQC_TRY_ASSIGN(const std::vector<std::string> keys, record_keys(from, flags.names));
  TQC_TRY_ASSIGN(const OpenStore to,
                 open_store(console, flags.to, flags.salt_file, StoreUse::kPut));
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
  note(console, fmt::format("{}: {} copied, {} existed; {}, {} bytes", both,
                            counted(report.prompts, "prompt"), report.prompts_existed,
                            counted(report.blobs, "blob"), grouped(report.bytes)));
  if (console.json) TQC_TRY(print_json(report_json(from, to, report)));
  return report.is_whole() ? ExitCode::kDone : ExitCode::kDoneInPart;
}

}  // namespace

Action define_store_copy(FlagSet& app) {
  const auto flags = std::make_shared<CopyFlags>();
  app.add("from", flags->from, "URL of the store to copy from")
      ->type_name("")
      ->not_empty()
      ->required();
  app.add("to", flags->to, "URL of the store to copy to")->type_name("")->not_empty()->required();
  app.add("name", flags->names, "Names of prompts; without names, everything is copied")
      ->type_name("")
      ->file();
  app.add("--salt-file", flags->salt_file,
          "File with the salt of the tenant that the names belong to (or the variable "
          "TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->file();
  app.add("--replace", flags->replace,
          "Overwrite names that other prompts have in the target store");
  add_memory_flag(app);
  app.footer(kStoreCopyExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kStoreForgetExamples =
    R"(A tenant is a salt: that of --salt-file, or with --api-key-file the clients of tqcache serve with
these keys (one per line), below that salt. Everything that they have stored goes: named prompts, and
what serve, generate and chat kept without a name. Other tenants keep theirs. Nothing can be
undone; --dry-run shows what would go.

Reads a blob of everything in the store, since nobody can tell whose a blob is without the salt. End
what still writes for the tenant first: a prompt that is put meanwhile may stay. The keys of
clients of the proxy (serve --upstream) also depend on LoRA adapters, and on a context beyond the
trained one, of the server behind it: what was kept from such servers is not found.

Examples:
  tqcache store forget --store dir:/var/lib/prompts --salt-file alice.salt --dry-run
  tqcache store forget --store dir:/var/lib/prompts --api-key-file alice.keys
)";

struct ForgetFlags {
  StoreFlags store;
  std::string api_key_file;
  bool dry_run = false;
};

#ifdef TQCACHE_SERVE

// The salts of a client of tqcache serve, with and without a llama-server behind it.
Result<std::vector<std::string>> client_salts(const KeyRing& keys, const std::string& salt,
                                              const std::string& api_key) {
  std::vector<std::string> salts{store::secret_salt(keys, serve::client_salt(salt, "", api_key))};
  const std::string of_store = store::secret_salt(keys, salt);
  for (const std::string& binding : serve::bindings_by_types()) {
    salts.push_back(serve::client_salt(of_store, binding, api_key));
  }
  return salts;
}

#else

Result<std::vector<std::string>> client_salts(const KeyRing&, const std::string&,
                                              const std::string&) {
  return Error{ErrorCode::kUnsupported,
               "--api-key-file: clients of tqcache serve, which is not built into this tqcache"};
}

#endif

Result<std::vector<std::string>> salts_of(const Console& console, const OpenStore& store,
                                          const ForgetFlags& flags) {
  if (flags.api_key_file.empty()) return std::vector<std::string>{store.salt};
  TQC_TRY_ASSIGN(const std::string salt, tenant_salt(flags.store.salt_file));
  TQC_TRY_ASSIGN(const std::vector<std::string> keys, read_api_keys(flags.api_key_file));
  std::vector<std::string> salts;
  for (const std::string& key : keys) {
    TQC_TRY_ASSIGN(const auto of_key, client_salts(console.access.keys, salt, key));
    salts.insert(salts.end(), of_key.begin(), of_key.end());
  }
  return salts;
}

Result<ExitCode> run(const Console& console, const ForgetFlags& flags) {
  const char* const variable = std::getenv("TQCACHE_STORE_SALT");
  const bool has_salt = !flags.store.salt_file.empty() || (variable != nullptr && *variable != 0);
  if (!has_salt && flags.api_key_file.empty()) {
    return usage_error("no tenant: --salt-file or --api-key-file is required");
  }
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  TQC_TRY_ASSIGN(const std::vector<std::string> salts, salts_of(console, store, flags));
  ProgressBar bar(console, "reading", Unit::kBlobs);
  TQC_TRY_ASSIGN(const store::ForgetReport report,
                 store.in(store::forget(*store.backend, salts, flags.dry_run, bar.callback())));
  bar.clear();
  store::KindTotal sum;
  for (const store::KindTotal& total : report.removed) {
    sum.blobs += total.blobs;
    sum.bytes += total.bytes;
  }
  if (sum.blobs == 0) TQC_TRY(store.check_key());
  if (report.unread > 0) {
    warn(store.name(), fmt::format("{} damaged: nobody can tell whose they are; tqcache store "
                                   "check --read-data --repair removes them",
                                   counted(report.unread, "blob")));
  }
  if (console.json) {
    Json json{{"schema", 1},
              {"store", store.name()},
              {"dry_run", flags.dry_run},
              {"prompts_removed", report.prompts},
              {"unread", report.unread}};
    json["removed"] = removed_json(report.removed);
    TQC_TRY(print_json(json));
  } else {
    TQC_TRY(print(fmt::format("{} of {} bytes {}, {} with a name\n", counted(sum.blobs, "blob"),
                              grouped(sum.bytes), flags.dry_run ? "would be removed" : "removed",
                              counted(report.prompts, "prompt"))));
  }
  if (sum.blobs == 0) return ExitCode::kNotFound;
  return report.unread > 0 ? ExitCode::kDoneInPart : ExitCode::kDone;
}

}  // namespace

Action define_store_forget(FlagSet& app) {
  const auto flags = std::make_shared<ForgetFlags>();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add("--api-key-file", flags->api_key_file,
          "File with keys of clients of tqcache serve, one per line")
      ->type_name("FILE")
      ->file();
  app.add("--dry-run", flags->dry_run, "Only show what would be removed");
  app.footer(kStoreForgetExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kStoreStatsExamples =
    R"(Covers the whole store, for all salts. Sharing saves the difference between the size of the named
prompts stored separately and their actual size. Runs are those of generate, chat and prefill, and
requests to serve, that looked up their prompt in this store; gc removes their statistics like other
data.

Examples:
  tqcache store stats --store dir:/var/lib/prompts
  tqcache store stats --store redis://localhost --json
)";

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

eval::Cell total_cell(std::uint64_t value) { return eval::Number{static_cast<double>(value), 0}; }

eval::Table kinds_table(const store::StoreStats& stats) {
  eval::Table table{"", {"kind", "blobs", "bytes"}, {}};
  const auto add = [&](std::string_view name, const store::KindTotal& total) {
    table.rows.push_back({std::string(name), total_cell(total.blobs), total_cell(total.bytes)});
  };
  for (const store::BlobKind kind : store::kAllKinds) {
    add(store::name_of(kind), stats.kinds[static_cast<std::size_t>(kind)]);
  }
  if (stats.others.blobs > 0) add("other files", stats.others);
  if (stats.leftovers.files > 0) add("leftovers", {stats.leftovers.files, stats.leftovers.bytes});
  return table;
}

std::string line(std::string_view label, const std::string& value) {
  return fmt::format("{:<16}{}\n", label, value);
}

std::string stats_text(const store::StoreStats& stats) {
  std::string text = report::text_table(kinds_table(stats)) + "\n";
  text += line("named prompts", fmt::format("{}, of {} tokens", grouped(stats.prompts),
                                            grouped(stats.prompt_tokens)));
  text += line("their size", fmt::format("{} bytes; {} without sharing",
                                         grouped(stats.bytes_needed), grouped(stats.bytes_alone)));
  text += line("sharing saves", fmt::format("{} bytes, {:.1f}%", grouped(stats.bytes_saved()),
                                            100 * share(stats.bytes_saved(), stats.bytes_alone)));
  text += line("not needed",
               fmt::format("{} bytes, which gc may remove", grouped(stats.bytes_unneeded)));
  if (stats.runs == 0 && stats.read_bytes == 0 && stats.stored_bytes == 0) return text;
  text += line("runs", fmt::format("{}, {:.1f}% with a hit", grouped(stats.runs),
                                   100 * share(stats.runs_that_found, stats.runs)));
  text +=
      line("their tokens", fmt::format("{} of {} found here, {:.1f}%", grouped(stats.found_tokens),
                                       grouped(stats.wanted_tokens),
                                       100 * share(stats.found_tokens, stats.wanted_tokens)));
  return text + line("their bytes", fmt::format("{} read, {} stored", grouped(stats.read_bytes),
                                                grouped(stats.stored_bytes)));
}

Json stats_json(const OpenStore& store, const store::StoreStats& stats) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  for (const store::BlobKind kind : store::kAllKinds) {
    json["kinds"][store::name_of(kind)] = total_json(stats.kinds[static_cast<std::size_t>(kind)]);
  }
  json["others"] = total_json(stats.others);
  json["leftovers"] = leftovers_json(stats.leftovers);
  json["prompts"] = stats.prompts;
  json["prompt_tokens"] = stats.prompt_tokens;
  json["bytes_needed"] = stats.bytes_needed;
  json["bytes_alone"] = stats.bytes_alone;
  json["bytes_saved"] = stats.bytes_saved();
  json["bytes_unneeded"] = stats.bytes_unneeded;
  json["runs"] = {{"count", stats.runs},
                  {"that_found", stats.runs_that_found},
                  {"wanted_tokens", stats.wanted_tokens},
                  {"found_tokens", stats.found_tokens},
                  {"hit_rate", share(stats.found_tokens, stats.wanted_tokens)},
                  {"read_bytes", stats.read_bytes},
                  {"stored_bytes", stats.stored_bytes}};
  return json;
}

Result<ExitCode> run(const Console& console, const StoreFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags, StoreUse::kLook));
  TQC_TRY(store.check_key());
  ProgressBar bar(console, "reading", Unit::kBlobs);
  TQC_TRY_ASSIGN(const store::StoreStats stats,
                 store.in(store::read_stats(*store.backend, bar.callback())));
  bar.clear();
  TQC_TRY(console.json ? print_json(stats_json(store, stats)) : print(stats_text(stats)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_stats(FlagSet& app) {
  const auto flags = std::make_shared<StoreFlags>();
  add_store_flag(app, *flags);
  app.footer(kStoreStatsExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
