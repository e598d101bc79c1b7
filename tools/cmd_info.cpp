// tools/cmd_info.cpp: what a cache file says of itself, without reading its sections.

#include <fmt/format.h>

#include <memory>

#include "cache_io.h"
#include "cli.h"
#include "info_json.h"
#include "info_text.h"
#include "tqcache/model/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kExamples =
    R"(The prompt is shown only with --show-text: its token ids, or with --model its
text, because the file holds no tokenizer. Whether the file is whole is told by
tqcache verify. Dead bytes are what later saves took the place of: tqcache compact
drops them.

Examples:
  tqcache info book.tqkv
  tqcache info book.tqkv --sections
  tqcache info book.tqkv --show-text -m model.gguf
  tqcache info book.tqkv --json
)";

struct InfoFlags {
  std::string file;
  std::string model;
  bool show_text = false;
  bool sections = false;
};

// The prompt's text, by the tokenizer that the cache was made with.
Outcome<std::string> prompt_text(const InfoFlags& flags, const format::CacheFileInfo& info) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 in_file(flags.model, model::load_model(flags.model)));
  const Sha256 fingerprint = model->tokenizer.fingerprint();
  if (fingerprint != info.identity.tokenizer_fingerprint) {
    const std::string message =
        fmt::format("tokenizer: the cache was made with {}, the model has {}",
                    to_hex(info.identity.tokenizer_fingerprint), to_hex(fingerprint));
    return Failure{Error{ErrorCode::kMismatch, message}, flags.file, false};
  }
  for (const std::int32_t id : info.tokens) {
    if (id < 0 || id >= model->tokenizer.vocab_size()) {
      const std::string message = fmt::format("token {}: not in the vocabulary", id);
      return Failure{Error{ErrorCode::kCorrupt, message}, flags.file, false};
    }
  }
  return model->tokenizer.decode(info.tokens);
}

Outcome<ExitCode> run(const Console& console, const InfoFlags& flags) {
  if (!flags.model.empty() && !flags.show_text) {
    return usage_error("--model is of use only with --show-text");
  }
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(flags.file, 0));
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(input.name, format::read_cache_info(*input.source)));
  if (flags.show_text && info.hidden_tokens) {
    return Failure{Error{ErrorCode::kUnsupported, "--show-text: the file does not say its tokens"},
                   input.name, false};
  }
  InfoView view{info, input, flags.sections, flags.show_text, std::nullopt};
  if (!flags.model.empty()) {
    TQC_TRY_ASSIGN(view.text, prompt_text(flags, info));
  }
  TQC_TRY(console.json ? print_json(info_json(view)) : print(info_text(view)));
  return ExitCode::kDone;
}

}  // namespace

Action define_info(CLI::App& app) {
  const auto flags = std::make_shared<InfoFlags>();
  app.add_option("file", flags->file, "Cache file; - is standard input")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_flag("--sections", flags->sections, "List every section with its checksum");
  app.add_flag("--show-text", flags->show_text, "Show the prompt");
  add_model_flag(app, flags->model, false);
  app.footer(kExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
