// tools/verbs/cmd_prefill.cpp: a dense cache from a prompt and a model.

#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/prompt.h"
#include "cli/session_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kPrefillExamples =
    R"(The cache is dense: tqcache convert quantizes it. zstd shrinks dense values little (f16 about 1.1
times), so --compress defaults to none here. planes shrinks f16 about 1.18 times and bf16 1.5 times,
without loss.

With --store the longest stored prefix of the text, in the same dense form, is loaded instead of
computed, and new blocks are added to the store.

Examples:
  tqcache prefill -m model.gguf --file book.txt -o book.kv
  tqcache prefill -m model.gguf --file book.txt --tokens 4096 -o book.kv
  echo "Once upon a time" | tqcache prefill -m model.gguf - -o story.kv
  tqcache prefill -m model.gguf --store dir:prompts --file book.txt -o book.kv
  tqcache prefill -m model.gguf -p "Hello" -o - | tqcache info -
)";

struct PrefillOptions {
  std::string model;
  PromptFlags prompt;
  PromptStoreFlags store;
  std::string dash;  // a bare "-"
  std::int64_t max_tokens = 0;
  std::string dtype = "f16";
  unsigned n_threads = 0;
  CompressionFlags compression;
  bool no_tokens = false;
  std::string output;
  bool force = false;
};

struct Work {
  std::int64_t n_tokens = 0;
  std::int64_t n_read = 0;  // by the model; the store had the others
  double seconds = 0;
  std::uint64_t file_bytes = 0;

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(n_read) / seconds : 0;
  }
};

Result<PromptFlags> prompt_flags(const PrefillOptions& options) {
  PromptFlags flags = options.prompt;
  if (!options.dash.empty() && options.dash != "-") {
    return usage_error(
        fmt::format("unexpected argument {}; use --file to name a file", options.dash));
  }
  if (!options.dash.empty()) {
    if (flags.file) return usage_error("- and --file exclude each other");
    flags.file = "-";
  }
  TQC_TRY(check_prompt_flags(flags));
  if (!flags.given()) return usage_error("no prompt: --prompt, --file, --ids or - is required");
  return flags;
}

Result<void> tell(const Console& console, const PrefillOptions& options,
                  const session::PromptStore* store, const Work& work) {
  note(console,
       fmt::format("{}: {} in {:.2f} s ({:.0f} tokens/s), {} bytes",
                   display_name(options.output, "standard output"), counted(work.n_tokens, "token"),
                   work.seconds, work.tokens_per_second(), grouped(work.file_bytes)));
  if (!console.json) return {};
  Json object;
  object["schema"] = 1;
  object["file"] = options.output;
  object["tokens"] = work.n_tokens;
  object["seconds"] = work.seconds;
  object["tokens_per_second"] = work.tokens_per_second();
  object["file_bytes"] = work.file_bytes;
  if (store != nullptr) object["store"] = store_json(*store);
  return print_json(object);
}

// Runs the model over the tokens that the store, if any, does not have.
Result<std::unique_ptr<session::Session>> prefill(const Console& console,
                                                  const PrefillOptions& options,
                                                  const PromptFlags& prompt,
                                                  session::PromptStore* store, Work& work) {
  TQC_TRY_ASSIGN(std::unique_ptr<model::Model> model,
                 load_model(console, options.model, options.n_threads));
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids, read_prompt(prompt, model->tokenizer));
  if (options.max_tokens > 0 && std::ssize(ids) > options.max_tokens) {
    ids.resize(static_cast<std::size_t>(options.max_tokens));
  }
  if (const std::int64_t n_most = model->config.context_length; std::ssize(ids) > n_most) {
    return usage_error(fmt::format(
        "the prompt has {}, the context of the model {}; --tokens {} "
        "takes the first",
        counted(std::ssize(ids), "token"), grouped(static_cast<std::uint64_t>(n_most)), n_most));
  }
  TQC_TRY_ASSIGN(cache::Cache empty, model::make_cache(*model, *dtype_from_name(options.dtype)));
  TQC_TRY_ASSIGN(std::unique_ptr<session::Session> session,
                 session::Session::start(std::move(model), std::move(empty),
                                         {.n_threads = options.n_threads}));
  if (store != nullptr) TQC_TRY(begin_from(console, *store, *session, ids));
  const auto start = std::chrono::steady_clock::now();
  TQC_TRY(feed(console, *session, ids));
  work.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  work.n_read = std::ssize(ids);
  work.n_tokens = session->cache().n_tokens();
  TQC_TRY(finish_store(console, store, session->cache(), interrupted()));
  return session;
}

Result<ExitCode> run(const Console& console, const PrefillOptions& options) {
  TQC_TRY_ASSIGN(const PromptFlags flags, prompt_flags(options));
  if (!dtype_from_name(options.dtype)) {
    return usage_error(fmt::format("--dtype: {} is not one of f16, bf16, f32", options.dtype));
  }
  if (console.json && options.output == "-") {
    return usage_error("--json: standard output is used for the cache");
  }
  TQC_TRY_ASSIGN(format::WriteOptions write,
                 write_options(options.compression, options.n_threads, options.force));
  write.hide_tokens = options.no_tokens;
  TQC_TRY(check_output(options.output, options.force));
  SessionFlags session_flags;
  session_flags.store = options.store;
  session_flags.no_tokens = options.no_tokens;
  session_flags.options.n_threads = options.n_threads;
  TQC_TRY_ASSIGN(const std::unique_ptr<session::PromptStore> store,
                 open_prompt_store(console, session_flags, true));
  Work work;
  TQC_TRY_ASSIGN(const std::unique_ptr<session::Session> session,
                 prefill(console, options, flags, store.get(), work));
  TQC_TRY_ASSIGN(work.file_bytes, save_cache(console, session->cache(), options.output, write));
  TQC_TRY(tell(console, options, store.get(), work));
  return ExitCode::kDone;
}

}  // namespace

Action define_prefill(FlagSet& app) {
  const auto options = std::make_shared<PrefillOptions>();
  add_model_flag(app, options->model, true);
  add_prompt_flags(app, options->prompt);
  add_prompt_store_flags(app, options->store, StoreNames::kWithoutName);
  app.add("input", options->dash, "-: read the prompt from standard input")->type_name("");
  app.add("--tokens,--max-tokens", options->max_tokens, "Use only the first N tokens of the prompt")
      ->formerly("--max-tokens")
      ->type_name("N")
      ->at_least(1);
  app.add("--dtype", options->dtype, "Type of the values in the cache: f16, bf16 or f32")
      ->type_name("TYPE")
      ->show_default();
  add_no_tokens_flag(app, options->no_tokens);
  add_compression_flags(app, options->compression, "none");
  add_resource_flags(app, options->n_threads);
  app.add("-o,--output", options->output, "Cache file to write; - is standard output")
      ->type_name("FILE")
      ->file()
      ->required();
  add_force_flag(app, options->force);
  app.footer(kPrefillExamples);
  return [options](const Console& console) { return run(console, *options); };
}

}  // namespace tqcache::cli
