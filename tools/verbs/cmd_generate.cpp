// tools/verbs/cmd_generate.cpp: writes on from a prompt, a cache, or both.

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/cli.h"
#include "cli/form_flags.h"
#include "cli/growing_file.h"
#include "cli/interrupt.h"
#include "cli/prompt.h"
#include "cli/prompt_store.h"
#include "cli/prompt_store_flags.h"
#include "cli/reuse.h"
#include "cli/session.h"
#include "cli/text_stream.h"
#include "report/speed_fields.h"
#include "tqcache/cache/token_hashes.h"

namespace tqcache::cli {
namespace {

constexpr const char* kGenerateExamples =
    R"(With --cache the prompt is appended to what the cache holds; without a prompt
the text goes on after the cache's last token. With --reuse the prompt is the
whole text instead: what it begins with of the cache is kept, and only the rest
is read. Generation ends at an end token, before a text of --stop, or after N
tokens. A cache saved with --save holds every token of the prompt and of the
answer, the end token included, so it can be gone on from exactly; it is saved
even if the work was interrupted, with the tokens done by then. Turbo layers stay
turbo.

With --append the cache file itself grows by what is new, in place: whoever reads
it at any moment, even after a loss of power, finds the old state or the new one.
It is locked from the beginning; a second writer is refused (exit code 11).

With --store (or the variable TQCACHE_STORE) the prompt is looked up in a store of
prompts: what stands there of it is not read again, and what is new is put there
meanwhile. --store-name keeps prompt and answer as a whole. A store that cannot be
reached, or is damaged, costs time and nothing else. The cache is in the form that
the store has, unless --bits or --config says which one.

Of a cache that hides its tokens (--no-tokens) the whole prompt has to be given,
which must begin with the cached tokens; what comes after them is read. Saved
again it hides them, too.

Examples:
  tqcache generate -m model.gguf -p "Once upon a time" -n 100
  tqcache generate -m model.gguf --cache book.tqkv -n 100
  tqcache generate -m model.gguf --cache book.tqkv -p " Then" -n 50 --save more.tqkv
  tqcache generate -m model.gguf --cache book.tqkv -p " Then" -n 50 --append
  tqcache generate -m model.gguf --cache book.tqkv --tokens 1000 -n 50
  tqcache generate -m model.gguf --cache book.tqkv --reuse --file book2.txt -n 50
  tqcache generate -m model.gguf --store dir:prompts --file book.txt -n 50
  tqcache generate -m model.gguf --store redis://host --bits 4 --file book.txt -n 50
  tqcache generate -m model.gguf -p "Q: Why?" -n 50 --stop "Q:" --repeat-penalty 1.1
  tqcache generate -m model.gguf -p "Hi" -n 20 --temperature 0.8 --top-p 0.95 --seed 7
)";

struct GenerateFlags {
  SessionOptions session;
  PromptFlags prompt;
  FormFlags form;
  PromptStoreFlags store;
  std::int64_t n = 0;
  std::string save;
  bool append = false;
  bool reuse = false;
  bool no_tokens = false;
  CompressionFlags compression;
  bool force = false;
};

struct Run {
  std::int64_t cached_tokens = 0;
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  bool was_hidden = false;  // the cache did not say its tokens
  Generation generation;
  std::optional<format::AppendReport> appended;

  std::int64_t timed_tokens() const {
    return std::max<std::int64_t>(0, std::ssize(generation.ids) - 1);
  }
};

Json generate_json(const Session& session, const GenerateFlags& flags, const PromptStore* store,
                   const Run& run, const std::string& text) {
  Json json;
  json["text"] = text;
  json["token_ids"] = run.generation.ids;
  add_speed_fields({.prompt_tokens = run.prompt_tokens,
                    .cached_tokens = run.cached_tokens,
                    .generation_tokens = std::ssize(run.generation.ids),
                    .timed_tokens = run.timed_tokens(),  // the first belongs to the prompt
                    .prompt_seconds = run.prompt_seconds,
                    .generation_seconds = run.generation.seconds,
                    .cache_bytes = cache::byte_count(session.cache()),
                    .working_set_bytes = session.working_set_bytes(),
                    .route = session.kernel_path()},
                   json);
  json["stop_reason"] = stop_word(run.generation.stop);
  if (store != nullptr) json["store"] = store->json();
  if (run.appended) json["append"] = append_json(flags.session.cache, *run.appended);
  return json;
}

// "60 tokens of prompt (1200/s)"
std::string amount(std::int64_t n_tokens, std::string_view what, std::int64_t n_timed,
                   double seconds) {
  const std::string text = fmt::format("{} tokens {}", n_tokens, what);
  if (n_timed == 0 || seconds <= 0) return text;
  return text + fmt::format(" ({:.0f}/s)", static_cast<double>(n_timed) / seconds);
}

void tell(const Console& console, const PromptStore* store, const Run& run) {
  std::string line;
  const char* const from = store != nullptr ? "from the store" : "from the cache";
  if (run.cached_tokens > 0) line += amount(run.cached_tokens, from, 0, 0) + ", ";
  if (run.prompt_tokens > 0) {
    line += amount(run.prompt_tokens, "of prompt", run.prompt_tokens, run.prompt_seconds) + ", ";
  }
  line +=
      amount(std::ssize(run.generation.ids), "written", run.timed_tokens(), run.generation.seconds);
  note(console, fmt::format("{}, stopped by {}", line, stop_word(run.generation.stop)));
}

// Shows the prompt's tokens to a cache that hides its own, and gives those that it does not hold.
Outcome<std::vector<std::int32_t>> rest_of_prompt(cache::Cache& cache, const std::string& name,
                                                  std::vector<std::int32_t> ids) {
  if (ids.empty()) {
    return Failure{Error{ErrorCode::kUnsupported,
                         "the tokens are hidden: the whole prompt is needed, by --prompt, --file "
                         "or --ids"},
                   name, false};
  }
  TQC_TRY(in_file(name, cache::reveal_tokens(cache, ids)));
  ids.erase(ids.begin(), ids.begin() + cache.n_tokens());
  return ids;
}

// Cuts the cache to what the whole prompt begins with, and the prompt to the rest.
Outcome<Done> reuse(const Console& console, const GenerateFlags& flags, Session& session,
                    std::vector<std::int32_t>& ids) {
  const std::int64_t n_common = common_prefix(session.cache().tokens, ids);
  if (flags.append && n_common < session.cache().n_tokens()) {
    return Failure{Error{ErrorCode::kMismatch,
                         fmt::format("--append: the prompt differs after {} tokens, and a file "
                                     "does not get shorter",
                                     n_common)},
                   flags.session.cache, false};
  }
  TQC_TRY(keep_common_prefix(console, session.model(), ids, session.cache()));
  ids.erase(ids.begin(), ids.begin() + session.cache().n_tokens());
  return Done{};
}

// A prompt that repeats what the cache holds was hardly meant to stand there twice.
void point_at_reuse(const Console& console, const cache::Cache& cache,
                    std::span<const std::int32_t> ids) {
  if (cache.n_tokens() == 0 || common_prefix(cache.tokens, ids) < cache.n_tokens()) return;
  note(console,
       "the prompt begins with all tokens of the cache, and is appended to them: --reuse "
       "takes it for the whole text");
}

// Takes what the store has of the prompt, and leaves the rest in `ids`.
Outcome<Done> begin_from(PromptStore& store, Session& session, std::vector<std::int32_t>& ids) {
  TQC_TRY(session.begin_from(store, ids));
  ids.erase(ids.begin(), ids.begin() + session.cache().n_tokens());
  return Done{};
}

Outcome<Done> feed_prompt(const Console& console, Session& session, const GenerateFlags& flags,
                          PromptStore* store, Run& run) {
  run.was_hidden = !cache::tokens_known(session.cache());
  const bool begins = run.was_hidden || flags.reuse || session.cache().n_tokens() == 0;
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids,
                 read_prompt(flags.prompt, session.model().tokenizer,
                             begins ? PromptPlace::kBegins : PromptPlace::kGoesOn));
  if (run.was_hidden) {
    const std::string name = display_name(flags.session.cache, "standard input");
    TQC_TRY_ASSIGN(ids, rest_of_prompt(session.cache(), name, std::move(ids)));
  } else if (store != nullptr) {
    TQC_TRY(begin_from(*store, session, ids));
  } else if (flags.reuse) {
    TQC_TRY(reuse(console, flags, session, ids));
  } else {
    point_at_reuse(console, session.cache(), ids);
  }
  run.cached_tokens = session.cache().n_tokens();
  run.prompt_tokens = std::ssize(ids);
  if (ids.empty() && run.cached_tokens == 0)
    return usage_error("neither a prompt nor cached tokens");
  const auto start = std::chrono::steady_clock::now();
  TQC_TRY(ids.empty() ? session.go_on() : session.feed(ids));
  run.prompt_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Done{};
}

Result<void> check_append(const GenerateFlags& flags) {
  if (flags.session.cache.empty()) return usage_error("--append: no --cache to append to");
  if (flags.session.cache == "-") return usage_error("--append: standard input cannot grow");
  if (!flags.save.empty()) return usage_error("only one of --append and --save can be given");
  if (flags.session.first_tokens) {
    return usage_error("--append: with --tokens the file would lose the other tokens");
  }
  if (flags.no_tokens) {
    return usage_error("--no-tokens: a file that grows shows or hides its tokens as it did before");
  }
  return {};
}

Result<void> check_flags(const GenerateFlags& flags) {
  TQC_TRY(check_prompt_flags(flags.prompt));
  TQC_TRY(check_sampling(flags.session.sampling));
  if (!flags.prompt.given() && flags.session.cache.empty()) {
    return usage_error("nothing to go on from: one of --prompt, --file, --ids, --cache is needed");
  }
  if (flags.session.cache == "-" && flags.prompt.file == "-") {
    return usage_error("--cache and --file cannot both be standard input");
  }
  if (flags.save == "-") return usage_error("--save: standard output is taken by the text");
  if (flags.session.first_tokens && flags.session.cache.empty()) {
    return usage_error("--tokens is of use only with --cache");
  }
  if (flags.reuse && (flags.session.cache.empty() || !flags.prompt.given())) {
    return usage_error("--reuse needs --cache and the whole prompt");
  }
  if (flags.form.given() && !flags.session.cache.empty()) {
    return usage_error("--bits and --config say how a new cache is kept, and --cache names one");
  }
  if (flags.append) return check_append(flags);
  if (flags.no_tokens && flags.save.empty()) {
    return usage_error("--no-tokens is of use only with --save");
  }
  return {};
}

// Why no store can be of use; empty: one can.
std::string_view store_obstacle(const GenerateFlags& flags) {
  if (!flags.session.cache.empty()) return "a session begins from a store or from --cache";
  if (flags.no_tokens) return "a store shows the tokens that --no-tokens hides";
  return {};
}

Outcome<std::unique_ptr<PromptStore>> open_store(const Console& console,
                                                 const GenerateFlags& flags) {
  TQC_TRY_ASSIGN(const std::optional<PromptStoreChoice> choice,
                 choose_prompt_store(flags.store, store_obstacle(flags)));
  if (!choice) return std::unique_ptr<PromptStore>();
  return PromptStore::open(console, {.choice = *choice,
                                     .own_form = flags.form.given(),
                                     .replace_name = flags.force,
                                     .n_threads = flags.session.n_threads});
}

// Keeps what was made, whatever ended it.
Outcome<Done> keep(const Console& console, const GenerateFlags& flags, const Session& session,
                   std::optional<GrowingFile>& growing, PromptStore* store, Run& run) {
  const unsigned n_threads = flags.session.n_threads;
  if (growing) {
    TQC_TRY_ASSIGN(run.appended,
                   growing->append(console, session.cache(), flags.compression, n_threads));
    note(console, append_text(flags.session.cache, *run.appended));
  } else if (!flags.save.empty()) {
    TQC_TRY_ASSIGN(format::WriteOptions write,
                   write_options(flags.compression, n_threads, flags.force));
    write.hide_tokens = flags.no_tokens || run.was_hidden;
    TQC_TRY(save_cache(console, session.cache(), flags.save, write));
  }
  return store != nullptr ? store->finish(session.cache()) : Done{};
}

// The user ended the reading of the prompt: what is read is kept.
Outcome<ExitCode> keep_part(const Console& console, const GenerateFlags& flags,
                            const Session& session, std::optional<GrowingFile>& growing,
                            PromptStore* store, Run& run, Failure interrupted) {
  acknowledge_interrupt();
  if (session.cache().n_tokens() == run.cached_tokens) return interrupted;
  TQC_TRY(keep(console, flags, session, growing, store, run));
  if (flags.save.empty() && !growing) return interrupted;
  note(console, fmt::format("interrupted: the cache kept has the first {} of {} tokens",
                            session.cache().n_tokens(), run.cached_tokens + run.prompt_tokens));
  return interrupted;
}

Outcome<ExitCode> run(const Console& console, GenerateFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY(write_options(flags.compression, flags.session.n_threads, flags.force));
  TQC_TRY_ASSIGN(flags.session.form, form_of(flags.form));
  if (!flags.save.empty()) TQC_TRY(check_output(flags.save, flags.force));
  TQC_TRY_ASSIGN(const std::unique_ptr<PromptStore> store, open_store(console, flags));
  std::optional<GrowingFile> growing;
  if (flags.append) {
    TQC_TRY_ASSIGN(growing, GrowingFile::open(flags.session.cache));
  }

  TQC_TRY_ASSIGN(const std::unique_ptr<Session> session,
                 Session::open(console, flags.session, growing ? &*growing : nullptr));
  Run run;
  const bool keeps = growing || !flags.save.empty() || !flags.store.name.empty();
  if (Outcome<Done> fed = feed_prompt(console, *session, flags, store.get(), run); !fed) {
    const bool by_user = fed.error().error.code == ErrorCode::kInterrupted;
    if (!by_user || (!keeps && !store)) return std::move(fed).error();
    return keep_part(console, flags, *session, growing, store.get(), run, std::move(fed).error());
  }
  TextStream stream(session->model().tokenizer, flags.session.sampling.stops, !console.json);
  run.generation =
      session->generate(flags.n, keeps, [&](std::int32_t id) { return stream.add(id); });

  acknowledge_interrupt();  // or it would end the saving too
  const bool failed = run.generation.stop == StopReason::kFailed;
  const Outcome<Done> shown = console.json || failed ? Done{} : stream.end();
  TQC_TRY(keep(console, flags, *session, growing, store.get(), run));
  if (failed) return std::move(*run.generation.failure);
  if (!shown) return shown.error();
  if (console.json) {
    TQC_TRY(print_json(generate_json(*session, flags, store.get(), run, stream.text())));
  }
  tell(console, store.get(), run);
  if (run.generation.failure) return std::move(*run.generation.failure);
  return ExitCode::kDone;
}

}  // namespace

Action define_generate(CLI::App& app) {
  const auto flags = std::make_shared<GenerateFlags>();
  add_model_flag(app, flags->session.model, true);
  app.add_option("-c,--cache", flags->session.cache,
                 "Cache file to go on from; - is standard input")
      ->type_name("FILE")
      ->check(file_name());
  add_prompt_flags(app, flags->prompt);
  add_form_flags(app, flags->form);
  add_prompt_store_flags(app, flags->store, StoreNames::kWithName);
  app.add_option("-n,--max-new-tokens", flags->n, "Tokens to write at most")
      ->type_name("N")
      ->check(at_least(1))
      ->required();
  add_sampling_flags(app, flags->session.sampling);
  app.add_option("--save", flags->save, "Keep the longer cache in this file")
      ->type_name("FILE")
      ->check(file_name());
  app.add_flag(
      "--reuse", flags->reuse,
      "The prompt is the whole text: keep what it begins with of the cache, read the rest");
  app.add_flag("--append", flags->append, "Let the cache file itself grow by what is new");
  add_first_tokens_flag(app, flags->session.first_tokens);
  add_no_tokens_flag(app, flags->no_tokens);
  add_compression_flags(app, flags->compression, "zstd");
  add_threads_flag(app, flags->session.n_threads);
  add_scorer_flag(app, flags->session.scorer);
  add_map_flag(app, flags->session.map);
  add_force_flag(app, flags->force);
  app.footer(kGenerateExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
