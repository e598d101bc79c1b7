// tools/verbs/store_prompts.cpp: transfer of prompts to and from a store: put, get, find.

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/info.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStorePutExamples =
    R"(Blocks that the store has already, whoever put them, are not sent again: prompts with a common
prefix share it. The prompt is kept under its name until it is removed (tqcache store rm) or expires
(tqcache store gc --max-age). Use tqcache convert first for files of other programs, and with
--model for files of version 1, which lack the fingerprints that prompts are found by. Predicted
archives are stored with their values as decoded, which takes more bytes than the file.

Only holders of the same salt can find the prompt. The salt is read from a file, because command
lines are visible to other users.

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

Result<std::string> name_of(const PutFlags& flags) {
  if (flags.no_name && !flags.name.empty()) {
    return usage_error("--name and --no-name exclude each other");
  }
  if (flags.no_name) return std::string();
  if (!flags.name.empty()) return flags.name;
  if (flags.file == "-") return usage_error("standard input has no name; use --name or --no-name");
  return std::filesystem::path(flags.file).stem().string();
}

Json report_json(const PutFlags& flags, const OpenStore& store, const std::string& name,
                 bool was_predicted, const store::PutReport& report) {
  Json json;
  json["schema"] = 1;
  json["file"] = flags.file;
  json["store"] = store.name();
  json["name"] = name.empty() ? Json(nullptr) : Json(name);
  json["n_tokens"] = report.n_tokens;
  json["blocks"] = report.blocks;
  json["new_blocks"] = report.new_blocks;
  json["other_blocks"] = report.other_blocks;
  json["checkpoints"] = report.checkpoints;
  json["new_checkpoint_bytes"] = report.new_checkpoint_bytes;
  json["bytes"] = report.bytes;
  json["new_bytes"] = report.new_bytes;
  json["was_predicted"] = was_predicted;
  json["content_name"] = name.empty() ? Json(nullptr) : Json(to_hex(report.content_name));
  return json;
}

void tell(const Console& console, const CacheInput& input, bool was_predicted,
          const std::string& name, const store::PutReport& report) {
  const std::string& file = input.name;
  const std::string kept = name.empty() ? "" : fmt::format(", named {}", name);
  note(console, fmt::format("{}: {}{}; {} of {} blocks new, {} of {} bytes", file,
                            counted(report.n_tokens, "token"), kept, report.new_blocks,
                            report.blocks, grouped(report.new_bytes), grouped(report.bytes)));
  if (was_predicted) {
    note(console, fmt::format("{}: a predicted archive of {} bytes; its values were stored as "
                              "decoded, and need no profile when they are read",
                              file, grouped(input.file_bytes)));
  }
  if (report.checkpoints > 0) {
    note(console, fmt::format("{} stored as states that prompts resume from, {} bytes new",
                              counted(report.checkpoints, "checkpoint"),
                              grouped(report.new_checkpoint_bytes)));
  }
  if (report.short_checkpoints > 0) {
    note(console, fmt::format("{} of at most 256 tokens left out: nothing could find {}",
                              counted(report.short_checkpoints, "checkpoint"),
                              report.short_checkpoints == 1 ? "it" : "them"));
  }
  if (report.other_blocks == 0) return;
  warn(file, fmt::format("{} blocks of the same tokens exist with other values and were kept",
                         report.other_blocks));
}

Result<ExitCode> run(const Console& console, const PutFlags& flags) {
  TQC_TRY_ASSIGN(const std::string name, name_of(flags));
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(console, flags.file, flags.n_threads));
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(input.name, format::read_cache_info(*input.source, console.access.keys)));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kPut));
  store::Library library = store.library(flags.n_threads);
  ProgressBar bar(console, "storing", Unit::kBlocks);
  const store::PutOptions options{flags.replace, std::time(nullptr), console.access};
  auto put = library.put_file(*input.source, name, bar.callback(), options);
  if (!put) {
    Error error = std::move(put).error();
    if (error.message.starts_with("another prompt has the name")) {
      error.message += "; --replace gives it to this one";
    }
    return in_file(input.name, std::move(error));
  }
  const store::PutReport report = std::move(put).value();
  bar.clear();
  const bool was_predicted = info.prediction.has_value();
  tell(console, input, was_predicted, name, report);
  if (!info.checkpoints.empty() && cache::opaque_layer(info.checkpoints.front().layers)) {
    warn(input.name,
         "what llama-server keeps of a draft model is left out: a store has no place "
         "for it");
  }
  if (console.json) TQC_TRY(print_json(report_json(flags, store, name, was_predicted, report)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_put(FlagSet& app) {
  const auto flags = std::make_shared<PutFlags>();
  app.add("file", flags->file, "Cache file; - is standard input")
      ->type_name("")
      ->file()
      ->required();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add("--name", flags->name, "Name of the prompt; by default the stem of the file name")
      ->type_name("NAME")
      ->file();
  app.add("--no-name", flags->no_name,
          "Store without a name: the data is found by its tokens until gc removes it");
  app.add("--replace", flags->replace, "Overwrite the name if another prompt has it");
  add_resource_flags(app, flags->n_threads);
  app.footer(kStorePutExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kGetExamples =
    R"(By name, the prompt comes back as it was put, or not at all. By text, the longest stored prefix
comes back: whole token blocks of 256, and more if a stored prompt ends within the given text. Every
byte is verified on the way; damaged data is reported, and the prefix gets shorter.

The exit code is 10 if nothing is found.

Examples:
  tqcache store get alice -o book.tqkv --store dir:/var/lib/prompts
  tqcache store get -m model.gguf --file question.txt -o prefix.tqkv --store redis://localhost
)";

constexpr const char* kFindExamples =
    R"(Reads only the index data that locates blocks. The exit code is 10 if nothing is found.

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

struct Output {
  std::string name;
  AtomicFile file;
};

Result<Output> create_output(const GetFlags& flags) {
  const std::string path = flags.output == "-" ? "/dev/stdout" : flags.output;
  const std::string name = display_name(flags.output, "standard output");
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY_ASSIGN(AtomicFile file, in_file(name, AtomicFile::create(path, overwrite)));
  return Output{name, std::move(file)};
}

// The error of a fetch, with the name of what failed: a failed file gives its error again.
Error in_context_of(const OpenStore& store, Output& output, Error error) {
  const Result<void> file = output.file.write({});
  return file ? in_file(store.name(), std::move(error)) : in_file(output.name, file.error());
}

struct Got {
  store::WrittenPrompt prompt;
  std::int64_t n_wanted = 0;
  std::uint64_t bytes = 0;  // of the file
};

Result<Got> commit(Output& output, store::WrittenPrompt prompt, std::int64_t n_wanted) {
  const std::uint64_t bytes = output.file.size();
  TQC_TRY(in_file(output.name, output.file.commit()));
  return Got{std::move(prompt), n_wanted, bytes};
}

Result<Got> get_prefix(const Console& console, const OpenStore& store, store::Library& library,
                       const GetFlags& flags) {
  TQC_TRY_ASSIGN(FoundPrefix found, find_prefix(console, store, library, flags.selection));
  TQC_TRY_ASSIGN(Output output, create_output(flags));
  ProgressBar bar(console, "fetching", Unit::kBlobs);
  auto prompt = library.fetch_to(output.file, found.prefix, console.access.keys, bar.callback());
  if (!prompt) return in_context_of(store, output, std::move(prompt).error());
  if (*prompt) return commit(output, **std::move(prompt), found.n_wanted);
  const Error error{ErrorCode::kNotFound, "the stored prefix was removed or is damaged"};
  return in_file(store.name(), error);
}

Result<Got> get(const Console& console, const OpenStore& store, const GetFlags& flags) {
  store::Library library = store.library(flags.n_threads);
  if (!flags.selection.by_name()) return get_prefix(console, store, library, flags);
  TQC_TRY_ASSIGN(const store::PromptRecord record,
                 find_record(store, library, flags.selection.name));
  TQC_TRY_ASSIGN(Output output, create_output(flags));
  ProgressBar bar(console, "fetching", Unit::kBlobs);
  auto prompt = library.fetch_to(output.file, record, console.access.keys, bar.callback());
  if (!prompt) return in_context_of(store, output, std::move(prompt).error());
  return commit(output, *std::move(prompt), record.snapshot.n_tokens);
}

Json got_json(const GetFlags& flags, const OpenStore& store, const Got& got) {
  const format::Manifest& manifest = got.prompt.manifest;
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["file"] = flags.output;
  json["prompt_tokens"] = got.n_wanted;
  json["n_tokens"] = manifest.n_tokens();
  json["bytes_read"] = got.prompt.blob_bytes;
  json["bytes"] = got.bytes;
  json["content_name"] = to_hex(manifest.content_name);
  return json;
}

Result<ExitCode> run_get(const Console& console, const GetFlags& flags) {
  TQC_TRY(check_selection(flags.selection));
  if (console.json && flags.output == "-") {
    return usage_error("--json: standard output is used for the cache");
  }
  TQC_TRY(check_output(flags.output, flags.force));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  TQC_TRY_ASSIGN(const Got got, get(console, store, flags));
  const format::Manifest& manifest = got.prompt.manifest;
  const std::int64_t n_tokens = manifest.n_tokens();
  const std::string of_all =
      n_tokens == got.n_wanted
          ? ""
          : fmt::format(" of {}", grouped(static_cast<std::uint64_t>(got.n_wanted)));
  note(console,
       fmt::format("{}: {}{} tokens, {} bytes", display_name(flags.output, "standard output"),
                   grouped(static_cast<std::uint64_t>(n_tokens)), of_all, grouped(got.bytes)));
  if (!cache::checkpoint_layers(manifest.layers).empty()) {
    note(
        console,
        "without context checkpoints: in a store each is a prompt of its own, found by its tokens");
  }
  if (console.json) TQC_TRY(print_json(got_json(flags, store, got)));
  return ExitCode::kDone;
}

struct FindFlags {
  StoreFlags store;
  StoreSelection selection;
};

Result<ExitCode> report_record(const Console& console, const OpenStore& store,
                               const store::PromptRecord& record) {
  if (console.json) {
    Json json = {{"schema", 1}, {"store", store.name()}};
    json.update(record_json(record));
    TQC_TRY(print_json(json));
  } else {
    TQC_TRY(print(
        fmt::format("{} tokens\n", grouped(static_cast<std::uint64_t>(record.snapshot.n_tokens)))));
  }
  return ExitCode::kDone;
}

Result<ExitCode> run_find(const Console& console, const FindFlags& flags) {
  TQC_TRY(check_selection(flags.selection));
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  store::Library library = store.library();
  if (flags.selection.by_name()) {
    TQC_TRY_ASSIGN(const store::PromptRecord record,
                   find_record(store, library, flags.selection.name));
    return report_record(console, store, record);
  }
  TQC_TRY_ASSIGN(const FoundPrefix found, find_prefix(console, store, library, flags.selection));
  if (console.json) {
    Json json = {{"schema", 1}, {"store", store.name()}};
    json.update(prefix_json(found));
    TQC_TRY(print_json(json));
    return ExitCode::kDone;
  }
  TQC_TRY(print(fmt::format("{} of {} tokens found, in {} blocks{}\n{}",
                            grouped(static_cast<std::uint64_t>(found.prefix.n_tokens)),
                            grouped(static_cast<std::uint64_t>(found.n_wanted)),
                            found.prefix.chain.size(),
                            found.prefix.snapshot ? " and the end of a stored prompt" : "",
                            layers_text(found.prefix.parameters.layers, {}))));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_get(FlagSet& app) {
  const auto flags = std::make_shared<GetFlags>();
  add_selection_flags(app, flags->selection);
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add("-o,--output", flags->output, "Cache file to write; - is standard output")
      ->type_name("FILE")
      ->file()
      ->required();
  add_force_flag(app, flags->force);
  add_resource_flags(app, flags->n_threads);
  app.footer(kGetExamples);
  return [flags](const Console& console) { return run_get(console, *flags); };
}

Action define_store_find(FlagSet& app) {
  const auto flags = std::make_shared<FindFlags>();
  add_selection_flags(app, flags->selection);
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.footer(kFindExamples);
  return [flags](const Console& console) { return run_find(console, *flags); };
}

}  // namespace tqcache::cli
