// tools/verbs/store_put.cpp: puts a cache file into a store.

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>

#include "cli/cache_io.h"
#include "cli/progress.h"
#include "cli/store_flags.h"
#include "cli/text.h"
#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStorePutExamples =
    R"(What the store has of the prompt already, put by whomever, is not sent again: many
prompts with one beginning keep it once. The prompt is kept under its name until
it is removed (tqcache store rm) or gets too old (tqcache store gc --max-age).
Files of other programs become .tqkv files by tqcache convert, those of version 1
lack what a store finds by: convert them with --model.

Whoever has the salt finds the prompt; who has another one, or none, does not. The
salt is never a flag, since everybody on a machine sees the command lines of all.

Examples:
  tqcache store put book.tqkv --store dir:/var/lib/prompts
  tqcache store put book.tqkv --name alice --replace --store redis://localhost
  TQCACHE_STORE=s3://prompts tqcache store put book.tqkv --salt-file team.salt
)";

struct PutFlags {
  std::string file;
  StoreFlags store;
  std::string name;
  bool no_name = false;
  bool replace = false;
  unsigned n_threads = 0;
};

Outcome<std::string> name_of(const PutFlags& flags) {
  if (flags.no_name && !flags.name.empty()) {
    return usage_error("only one of --name and --no-name can be given");
  }
  if (flags.no_name) return std::string();
  if (!flags.name.empty()) return flags.name;
  if (flags.file == "-") return usage_error("--name or --no-name: standard input has no name");
  return std::filesystem::path(flags.file).stem().string();
}

Json report_json(const PutFlags& flags, const OpenStore& store, const std::string& name,
                 const store::PutReport& report) {
  Json json;
  json["schema"] = 1;
  json["file"] = flags.file;
  json["store"] = store.name();
  json["name"] = name.empty() ? Json(nullptr) : Json(name);
  json["n_tokens"] = report.n_tokens;
  json["blocks"] = report.blocks;
  json["new_blocks"] = report.new_blocks;
  json["other_blocks"] = report.other_blocks;
  json["bytes"] = report.bytes;
  json["new_bytes"] = report.new_bytes;
  json["content_name"] = name.empty() ? Json(nullptr) : Json(to_hex(report.content_name));
  return json;
}

void tell(const Console& console, const std::string& file, const std::string& name,
          const store::PutReport& report) {
  const std::string kept = name.empty() ? "" : fmt::format(", kept as {}", name);
  note(console,
       fmt::format("{}: {} tokens{}; {} of {} blocks new, {} of {} bytes", file,
                   grouped(static_cast<std::uint64_t>(report.n_tokens)), kept, report.new_blocks,
                   report.blocks, grouped(report.new_bytes), grouped(report.bytes)));
  if (report.other_blocks == 0) return;
  warn(file, fmt::format("{} blocks of the same tokens were there with other values, and stay",
                         report.other_blocks));
}

Outcome<ExitCode> run(const Console& console, const PutFlags& flags) {
  TQC_TRY_ASSIGN(const std::string name, name_of(flags));
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(flags.file, flags.n_threads));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags.store, StoreUse::kPut));
  store::Library library = store.library(flags.n_threads);
  ProgressBar bar(console, "storing", Unit::kBlocks);
  const store::PutOptions options{flags.replace, std::time(nullptr)};
  TQC_TRY_ASSIGN(
      const store::PutReport report,
      in_file(input.name, library.put_file(*input.source, name, bar.callback(), options)));
  bar.clear();
  tell(console, input.name, name, report);
  if (console.json) TQC_TRY(print_json(report_json(flags, store, name, report)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_put(CLI::App& app) {
  const auto flags = std::make_shared<PutFlags>();
  app.add_option("file", flags->file, "Cache file; - is standard input")
      ->type_name("")
      ->check(file_name())
      ->required();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add_option("--name", flags->name, "Keep it under this name; the file's own if not given")
      ->type_name("NAME")
      ->check(file_name());
  app.add_flag("--no-name", flags->no_name,
               "Keep it under none: it is found by its tokens until gc needs the room");
  app.add_flag("--replace", flags->replace, "Take the name from another prompt that has it");
  add_threads_flag(app, flags->n_threads);
  app.footer(kStorePutExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
