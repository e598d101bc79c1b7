// tools/verbs/cmd_info.cpp: the description of a cache file, without reading its values.

#include <fmt/format.h>

#include <memory>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/foreign_input.h"
#include "cli/model_facts.h"
#include "cli/verb.h"
#include "report/info.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/programs.h"
#include "tqcache/model.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"

namespace tqcache::cli {
namespace {

constexpr const char* kInfoExamples =
    R"(The prompt is shown only with --show-text: its token ids, or with --model its text, since the file
holds no tokenizer. Use tqcache verify to check the file for damage. Dead bytes are space that later
saves no longer use; tqcache compact reclaims it.

Files of mlx-lm, llama.cpp, transformers (tools/tqcache_hf.py), NumPy and TurboMLX are recognized by
their content. A llama.cpp file does not describe its layers; --model shows them. Files of programs
that tqcache does not read are named, with what to do instead: docs/reference/programs.md.

Examples:
  tqcache info book.tqkv
  tqcache info *.tqkv
  tqcache info book.tqkv --sections
  tqcache info book.tqkv --show-text -m model.gguf
  tqcache info book.tqkv --json
  tqcache info slot.bin -m model.gguf
)";

struct InfoFlags {
  std::vector<std::string> files;
  std::string file;      // the current one
  ForeignFlags foreign;  // with the model
  bool show_text = false;
  bool sections = false;
};

// The prompt's text, decoded by the tokenizer of the cache's model.
Result<std::string> prompt_text(const Console& console, const InfoFlags& flags,
                                const format::CacheFileInfo& info) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 load_model(console, flags.foreign.model));
  const Sha256 fingerprint = model->tokenizer.fingerprint();
  if (fingerprint != info.identity.tokenizer_fingerprint) {
    const std::string message =
        fmt::format("tokenizer: the cache was made with {}, the model has {}",
                    to_hex(info.identity.tokenizer_fingerprint), to_hex(fingerprint));
    return Error{ErrorCode::kMismatch, message, flags.file};
  }
  std::vector<std::int32_t> text;  // without media
  for (const std::int32_t id : info.tokens) {
    if (id < cache::kUnknownToken) continue;
    text.push_back(id);
    if (id < 0 || id >= model->tokenizer.vocab_size()) {
      const std::string message = fmt::format("token {}: not in the vocabulary", id);
      return Error{ErrorCode::kCorrupt, message, flags.file};
    }
  }
  return model->tokenizer.decode(text);
}

// The header of a llama.cpp file, because the rest cannot be shown without a model.
Result<ForeignView> envelope_view(const std::string& name, const ByteSource& file) {
  TQC_TRY_ASSIGN(const auto envelope, in_file(name, interop::read_llama_envelope(file)));
  ForeignView view{name, name_of(FileKind::kLlama), file.size(), {}, nullptr, {}, {}, {}};
  const bool is_session = envelope->kind == interop::LlamaFile::kSession;
  view.facts = {{"tqcache", std::string(interop::what_can_be_done(FileKind::kLlama))},
                {"kind", is_session ? "session" : "sequence"},
                {"version", std::to_string(envelope->version)},
                {"token words", std::to_string(envelope->n_u32)}};
  view.notes = {"the file does not describe its layers; --model M.gguf shows them"};
  return view;
}

// Prints a description, or returns it in `json`.
template <class View>
Result<void> show(const Console& console, const View& view, Json& json) {
  if (!console.json) return print(info_text(view));
  json = info_json(view);
  return {};
}

Result<void> show_foreign(const Console& console, const std::string& name,
                          std::shared_ptr<const ByteSource> file, FileKind kind,
                          const InfoFlags& flags, Json& json) {
  if (flags.sections || flags.show_text) {
    return usage_error("--sections and --show-text are for .tqkv files");
  }
  if (kind == FileKind::kLlama && flags.foreign.model.empty()) {
    TQC_TRY_ASSIGN(const ForeignView view, envelope_view(name, *file));
    return show(console, view, json);
  }
  TQC_TRY_ASSIGN(const ModelFacts model, load_model_facts(console, flags.foreign.model));
  TQC_TRY_ASSIGN(ForeignInput input, open_foreign(console, name, std::move(file), kind,
                                                  flags.foreign, model, std::nullopt, 0));
  auto facts = std::move(input.opened.metadata);
  facts.emplace_back("tqcache", interop::what_can_be_done(kind));
  const ForeignView view{name,
                         name_of(kind),
                         input.file_bytes,
                         std::move(facts),
                         &input.opened.cache->description(),
                         checkpoints_of(*input.opened.cache),
                         std::move(input.opened.notes),
                         std::move(input.opened.dropped_fields)};
  return show(console, view, json);
}

// A file that tqcache does not read: which program wrote it, and what to do instead. The refusal
// may say more: what a pickle would run, and in which layer a class is.
Result<void> show_named(const Console& console, const std::string& name, const ByteSource& file,
                        const interop::NamedFile& named, const Error& refusal, Json& json) {
  const std::string version = named.version.empty() ? "" : ", version " + named.version;
  ForeignView view{name,
                   "file of another program",
                   file.size(),
                   {{"written by", named.program + version},
                    {"holds", named.holds},
                    {"tqcache", "does not read it"}},
                   nullptr,
                   {},
                   {named.advice},
                   {}};
  if (refusal.message != named.words()) view.notes.push_back(refusal.message);
  return show(console, view, json);
}

Result<void> describe_any(const Console& console, const InfoFlags& flags, const std::string& name,
                          const std::shared_ptr<const ByteSource>& source, Json& json) {
  TQC_TRY_ASSIGN(const FileKind kind, in_file(name, kind_of_cache(*source)));
  if (kind != FileKind::kTqkv && kind != FileKind::kTqkvVersion1) {
    TQC_TRY(check_encrypted(console, name, *source));
    return show_foreign(console, name, source, kind, flags, json);
  }
  if (!flags.foreign.model.empty() && !flags.show_text) {
    return usage_error("--model needs --show-text");
  }
  TQC_TRY_ASSIGN(const CacheInput input, cache_input(console, name, kind, source, 0));
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(input.name, format::read_cache_info(*input.source, console.access.keys)));
  if (flags.show_text && info.hidden_tokens) {
    return Error{ErrorCode::kUnsupported, "--show-text: the file holds no token ids", input.name};
  }
  InfoView view{info, input, flags.sections, flags.show_text, std::nullopt};
  if (!flags.foreign.model.empty()) {
    TQC_TRY_ASSIGN(view.text, prompt_text(console, flags, info));
  }
  if (info.prediction) {
    const auto found = console.access.profiles.find(info.prediction->profile);
    if (found) {
      view.expected_kld =
          predict::expected_divergence((*found)->profile(), double{info.prediction->step});
    }
  }
  return show(console, view, json);
}

Result<void> describe(const Console& console, const InfoFlags& flags, Json& json) {
  const std::string name = display_name(flags.file, "standard input");
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> opened, open_source(flags.file));
  const std::shared_ptr<const ByteSource> source = std::move(opened);
  Result<void> shown = describe_any(console, flags, name, source, json);
  if (shown || shown.error().code != ErrorCode::kUnsupported) return shown;
  TQC_TRY_ASSIGN(const auto named, in_file(name, interop::name_file(*source)));
  return named ? show_named(console, name, *source, *named, shown.error(), json) : shown;
}

Result<ExitCode> run(const Console& console, InfoFlags& flags) {
  if (flags.files.size() == 1) {
    Json json;
    flags.file = flags.files.front();
    TQC_TRY(describe(console, flags, json));
    if (console.json) TQC_TRY(print_json(json));
    return ExitCode::kDone;
  }
  Tally tally;
  Json files = Json::array();
  for (const std::string& file : flags.files) {
    if (!console.json && file != flags.files.front()) TQC_TRY(print("\n"));
    Json json = {{"file", file}};
    flags.file = file;
    if (const Result<void> outcome = describe(console, flags, json); outcome) {
      tally.done();
    } else {
      json["error"] = failure_json(outcome.error());
      tally.failed(outcome.error());
    }
    files.push_back(std::move(json));
  }
  if (console.json) TQC_TRY(print_json({{"schema", 1}, {"files", files}}));
  return tally.exit_code();
}

}  // namespace

Action define_info(FlagSet& app) {
  const auto flags = std::make_shared<InfoFlags>();
  // Rows are not read here, so it does not matter whether they are rotated.
  flags->foreign.rotation = "off";
  flags->foreign.n_probe = 0;
  app.add("file", flags->files, "Cache files; - is standard input")
      ->type_name("")
      ->file()
      ->required();
  app.add("--sections", flags->sections, "List all sections with their checksums");
  app.add("--show-text", flags->show_text, "Show the prompt");
  add_model_flag(app, flags->foreign.model, false);
  add_reading_flags(app, flags->foreign);
  app.footer(kInfoExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
