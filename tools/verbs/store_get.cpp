// tools/verbs/store_get.cpp: fetches a prompt from a store, and tells how much of one is there.

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "report/info_json.h"
#include "report/info_text.h"
#include "cli/progress.h"
#include "cli/store_selection.h"
#include "verbs/store_verbs.h"
#include "cli/text.h"

namespace tqcache::cli {
namespace {

constexpr const char* kGetExamples =
    R"(By its name a prompt comes back as it was put, or not at all. By what it says,
the longest beginning that anybody has put comes: whole token blocks of 256, and
more where a stored prompt ends with what the prompt says next. Every byte is
checked on its way; what is damaged is told, and the beginning gets shorter.

The exit code is 10 when nothing is found.

Examples:
  tqcache store get alice -o book.tqkv --store dir:/var/lib/prompts
  tqcache store get -m model.gguf --file question.txt -o beginning.tqkv --store redis://localhost
)";

constexpr const char* kFindExamples =
    R"(Nothing is fetched but what tells where blocks are. The exit code is 10 when
nothing is found.

Examples:
  tqcache store find alice --store dir:/var/lib/prompts
  tqcache store find -m model.gguf --file question.txt --store redis://localhost --json
)";

struct GetFlags {
  StoreFlags store;
  StoreSelection selection;
  std::string output;
  unsigned n_threads = 0;
  bool force = false;
};

struct Got {
  std::unique_ptr<store::StoredPrompt> prompt;
  std::int64_t n_wanted = 0;
};

Outcome<Got> fetch_prefix(const Console& console, const OpenStore& store, store::Library& library,
                          const StoreSelection& selection) {
  TQC_TRY_ASSIGN(FoundPrefix found, find_prefix(store, library, selection));
  ProgressBar bar(console, "fetching", Unit::kBlobs);
  TQC_TRY_ASSIGN(std::unique_ptr<store::StoredPrompt> prompt,
                 store.in(library.fetch(found.prefix, bar.callback())));
  if (prompt) return Got{std::move(prompt), found.n_wanted};
  const Error error{ErrorCode::kNotFound, "what was there of the prompt is gone or damaged"};
  return Failure{error, store.name(), false};
}

Outcome<Got> fetch(const Console& console, const OpenStore& store, const GetFlags& flags) {
  store::Library library = store.library(flags.n_threads);
  if (!flags.selection.by_name()) return fetch_prefix(console, store, library, flags.selection);
  TQC_TRY_ASSIGN(const store::Record record, find_record(store, library, flags.selection.name));
  ProgressBar bar(console, "fetching", Unit::kBlobs);
  TQC_TRY_ASSIGN(std::unique_ptr<store::StoredPrompt> prompt,
                 store.in(library.fetch(record, bar.callback())));
  return Got{std::move(prompt), record.state.n_tokens};
}

Outcome<std::uint64_t> write(const store::StoredPrompt& prompt, const GetFlags& flags) {
  const std::string path = flags.output == "-" ? "/dev/stdout" : flags.output;
  const std::string name = display_name(flags.output, "standard output");
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY_ASSIGN(AtomicFile file, in_file(name, AtomicFile::create(path, overwrite)));
  TQC_TRY(in_file(name, store::write_stored(prompt, file)));
  const std::uint64_t bytes = file.size();
  TQC_TRY(in_file(name, file.commit()));
  return bytes;
}

Json got_json(const GetFlags& flags, const OpenStore& store, const Got& got, std::uint64_t bytes) {
  const format::Manifest& manifest = got.prompt->manifest();
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["file"] = flags.output;
  json["prompt_tokens"] = got.n_wanted;
  json["n_tokens"] = manifest.n_tokens();
  json["bytes_read"] = got.prompt->blob_bytes();
  json["bytes"] = bytes;
  json["content_name"] = to_hex(manifest.content_name);
  return json;
}

Outcome<ExitCode> run_get(const Console& console, const GetFlags& flags) {
  TQC_TRY(check_selection(flags.selection));
  if (console.json && flags.output == "-") {
    return usage_error("--json: standard output is taken by the cache");
  }
  TQC_TRY(check_output(flags.output, flags.force));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags.store, StoreUse::kLook));
  TQC_TRY_ASSIGN(const Got got, fetch(console, store, flags));
  TQC_TRY_ASSIGN(const std::uint64_t bytes, write(*got.prompt, flags));
  const std::int64_t n_tokens = got.prompt->manifest().n_tokens();
  const std::string of_all =
      n_tokens == got.n_wanted
          ? ""
          : fmt::format(" of {}", grouped(static_cast<std::uint64_t>(got.n_wanted)));
  note(console,
       fmt::format("{}: {}{} tokens, {} bytes", display_name(flags.output, "standard output"),
                   grouped(static_cast<std::uint64_t>(n_tokens)), of_all, grouped(bytes)));
  if (console.json) TQC_TRY(print_json(got_json(flags, store, got, bytes)));
  return ExitCode::kDone;
}

struct FindFlags {
  StoreFlags store;
  StoreSelection selection;
};

Outcome<ExitCode> tell_record(const Console& console, const OpenStore& store,
                              const store::Record& record) {
  if (console.json) {
    Json json = {{"schema", 1}, {"store", store.name()}};
    json.update(record_json(record));
    TQC_TRY(print_json(json));
  } else {
    TQC_TRY(print(fmt::format("{} tokens are kept under that name\n",
                              grouped(static_cast<std::uint64_t>(record.state.n_tokens)))));
  }
  return ExitCode::kDone;
}

Outcome<ExitCode> run_find(const Console& console, const FindFlags& flags) {
  TQC_TRY(check_selection(flags.selection));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags.store, StoreUse::kLook));
  store::Library library = store.library();
  if (flags.selection.by_name()) {
    TQC_TRY_ASSIGN(const store::Record record, find_record(store, library, flags.selection.name));
    return tell_record(console, store, record);
  }
  TQC_TRY_ASSIGN(const FoundPrefix found, find_prefix(store, library, flags.selection));
  if (console.json) {
    Json json = {{"schema", 1}, {"store", store.name()}};
    json.update(prefix_json(found));
    TQC_TRY(print_json(json));
    return ExitCode::kDone;
  }
  TQC_TRY(print(fmt::format("{} of {} tokens are there, in {} blocks{}\n{}",
                            grouped(static_cast<std::uint64_t>(found.prefix.n_tokens)),
                            grouped(static_cast<std::uint64_t>(found.n_wanted)),
                            found.prefix.chain.size(),
                            found.prefix.state ? " and the end of a prompt" : "",
                            layers_text(found.prefix.parameters.layers, {}))));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_get(CLI::App& app) {
  const auto flags = std::make_shared<GetFlags>();
  add_selection_flags(app, flags->selection);
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add_option("-o,--output", flags->output, "The cache file; - is standard output")
      ->type_name("FILE")
      ->check(file_name())
      ->required();
  add_force_flag(app, flags->force);
  add_threads_flag(app, flags->n_threads);
  app.footer(kGetExamples);
  return [flags](const Console& console) { return run_get(console, *flags); };
}

Action define_store_find(CLI::App& app) {
  const auto flags = std::make_shared<FindFlags>();
  add_selection_flags(app, flags->selection);
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.footer(kFindExamples);
  return [flags](const Console& console) { return run_find(console, *flags); };
}

}  // namespace tqcache::cli
