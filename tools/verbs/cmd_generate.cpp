// tools/verbs/cmd_generate.cpp: generation of text from a prompt, a cache, or both.

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/prompt.h"
#include "cli/session_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/speed_fields.h"
#include "tqcache/cache.h"

namespace tqcache::cli {
namespace {

constexpr const char* kGenerateExamples =
    R"(With --cache the prompt is appended to the tokens of the cache; without a prompt, generation
continues after the last cached token. With --reuse the prompt is the whole text: the longest common
prefix of cache and prompt is kept, and only the rest is prefilled.

Generation stops at an end token, before a text of --stop, or after N tokens. --save writes a cache
with all tokens of the prompt and the answer, including the end token, so that it can be resumed
exactly. It is written after Ctrl-C too, with the tokens processed so far. Quantized layers stay
quantized.

--append adds the new tokens to the cache file in place. Readers see the old state or the new one at
any time, even after a power failure. The file is locked from the start; a second writer is refused
(exit code 11).

With --store (or the variable TQCACHE_STORE) the longest stored prefix of the prompt is loaded
instead of computed, and new blocks are added to the store. --store-name saves prompt and answer
under a name. If the store is unreachable or damaged, tqcache warns and computes everything. The
cache takes the quantization found in the store, unless --bits or --config chooses one.

A cache made with --no-tokens needs the whole prompt again. It must begin with the cached tokens;
the rest is prefilled. Saving such a cache keeps its tokens hidden.

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

struct GenerateFlags : SessionFlags {
  PromptFlags prompt;
  std::int64_t n = 512;
  std::string save;
  bool append = false;
  bool reuse = false;
};

struct Run {
  std::int64_t cached_tokens = 0;
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  bool was_hidden = false;  // the cache hid its tokens
  session::Generation generation;
  std::optional<format::AppendReport> appended;

  std::int64_t timed_tokens() const {
    return std::max<std::int64_t>(0, std::ssize(generation.ids) - 1);
  }
};

Json generate_json(const session::Session& session, const GenerateFlags& flags,
                   const session::PromptStore* store, const Run& run, const std::string& text) {
  Json json;
  json["schema"] = 1;
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
  json["stop_reason"] = session::stop_word(run.generation.stop);
  if (store != nullptr) json["store"] = store_json(*store);
  if (run.appended) json["append"] = append_json(flags.options.cache, *run.appended);
  return json;
}

// "60 tokens of prompt (1200/s)"
std::string amount(std::int64_t n_tokens, std::string_view what, std::int64_t n_timed,
                   double seconds) {
  const std::string text = fmt::format("{} {}", counted(n_tokens, "token"), what);
  if (n_timed == 0 || seconds <= 0) return text;
  return text + fmt::format(" ({:.0f}/s)", static_cast<double>(n_timed) / seconds);
}

std::string_view stop_text(session::StopReason reason) {
  switch (reason) {
    case session::StopReason::kEndToken:
      return "ended by the model";
    case session::StopReason::kStopString:
      return "stopped before a text of --stop";
    case session::StopReason::kLength:
      return "stopped by -n";
    case session::StopReason::kContextFull:
      return "stopped because the context is full";
    case session::StopReason::kInterrupted:
      return "interrupted";
    case session::StopReason::kFailed:
      return "failed";
  }
  return "failed";
}

void tell(const Console& console, const session::PromptStore* store, const Run& run) {
  std::string line;
  const char* const from = store != nullptr ? "from the store" : "from the cache";
  if (run.cached_tokens > 0) line += amount(run.cached_tokens, from, 0, 0) + ", ";
  if (run.prompt_tokens > 0) {
    line += amount(run.prompt_tokens, "of prompt", run.prompt_tokens, run.prompt_seconds) + ", ";
  }
  line +=
      amount(std::ssize(run.generation.ids), "written", run.timed_tokens(), run.generation.seconds);
  note(console, fmt::format("{}, {}", line, stop_text(run.generation.stop)));
}

// Reveals the prompt's tokens to a cache with hidden tokens, and returns those that the cache
// lacks.
Result<std::vector<std::int32_t>> rest_of_prompt(cache::Cache& cache, const std::string& name,
                                                 std::vector<std::int32_t> ids) {
  if (ids.empty()) {
    return Error{ErrorCode::kUnsupported,
                 "the tokens are hidden: pass the whole prompt with --prompt, --file "
                 "or --ids",
                 name};
  }
  TQC_TRY(in_file(name, cache::reveal_tokens(cache, ids)));
  ids.erase(ids.begin(), ids.begin() + cache.n_tokens());
  return ids;
}

// Truncates the cache to the common prefix with the whole prompt, and the prompt to the rest.
Result<void> reuse(const Console& console, const GenerateFlags& flags, session::Session& session,
                   std::vector<std::int32_t>& ids) {
  const std::int64_t n_common = session::common_prefix(session.cache().tokens, ids);
  if (flags.append && n_common < session.cache().n_tokens()) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("--append: the prompt differs after {} tokens, and appending cannot "
                             "shorten the file",
                             n_common),
                 flags.options.cache};
  }
  const auto earlier = [&](std::int64_t n_tokens) {
    format::ReadOptions read;
    read.n_threads = flags.options.n_threads;
    read.verify_digests = flags.options.verify_digests;
    return load_state_before(console, flags.options.cache, n_tokens, read);
  };
  TQC_TRY_ASSIGN(const session::PrefixReuse reused, session.keep_common_prefix(ids, earlier));
  if (!reused.obstacle.empty() && reused.n_kept > 0) {
    note(console, fmt::format("{} of {} cached tokens reused, up to the last checkpoint before the "
                              "prompt differs after {} tokens",
                              reused.n_kept, reused.n_before, reused.n_common));
  } else if (!reused.obstacle.empty()) {
    note(console, fmt::format("the prompt differs from the cache after {} tokens, and the cache "
                              "cannot be truncated there ({}): nothing is reused",
                              reused.n_common, reused.obstacle));
  } else if (reused.n_kept < reused.n_before) {
    note(console, fmt::format("{} of {} cached tokens reused; the prompt differs after them",
                              reused.n_kept, reused.n_before));
  }
  ids.erase(ids.begin(), ids.begin() + reused.n_kept);
  return {};
}

// A prompt that repeats the cached tokens was probably meant as the whole text.
void suggest_reuse(const Console& console, const cache::Cache& cache,
                   std::span<const std::int32_t> ids) {
  if (cache.n_tokens() == 0 || session::common_prefix(cache.tokens, ids) < cache.n_tokens()) return;
  note(console,
       "the prompt repeats all tokens of the cache and is appended to them; --reuse "
       "treats it as the whole text");
}

Result<void> feed_prompt(const Console& console, session::Session& session,
                         const GenerateFlags& flags, session::PromptStore* store, Run& run) {
  run.was_hidden = !cache::tokens_known(session.cache());
  const bool begins = run.was_hidden || flags.reuse || session.cache().n_tokens() == 0;
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids,
                 read_prompt(flags.prompt, session.model().tokenizer,
                             begins ? PromptPlace::kBegins : PromptPlace::kGoesOn));
  if (run.was_hidden) {
    const std::string name = display_name(flags.options.cache, "standard input");
    TQC_TRY_ASSIGN(ids, rest_of_prompt(session.cache(), name, std::move(ids)));
  } else if (store != nullptr) {
    TQC_TRY(begin_from(console, *store, session, ids));
  } else if (flags.reuse) {
    TQC_TRY(reuse(console, flags, session, ids));
  } else {
    suggest_reuse(console, session.cache(), ids);
  }
  run.cached_tokens = session.cache().n_tokens();
  run.prompt_tokens = std::ssize(ids);
  if (ids.empty() && run.cached_tokens == 0)
    return usage_error("the cache is empty and no prompt is given");
  const auto start = std::chrono::steady_clock::now();
  TQC_TRY(ids.empty() ? session.resume() : feed(console, session, ids));
  run.prompt_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

Result<void> check_append(const GenerateFlags& flags) {
  if (flags.options.cache.empty()) return usage_error("--append needs --cache");
  if (flags.options.cache == "-")
    return usage_error("--append: standard input cannot be appended to");
  if (!flags.save.empty()) return usage_error("--append and --save exclude each other");
  if (flags.options.first_tokens) {
    return usage_error("--append and --tokens exclude each other: the file would lose tokens");
  }
  if (flags.no_tokens) {
    return usage_error("--no-tokens: appending cannot hide the tokens of an existing file");
  }
  return {};
}

Result<void> check_flags(const GenerateFlags& flags) {
  TQC_TRY(check_prompt_flags(flags.prompt));
  if (!flags.prompt.given() && flags.options.cache.empty()) {
    return usage_error("no input: --prompt, --file, --ids or --cache is required");
  }
  if (flags.options.cache == "-" && flags.prompt.file == "-") {
    return usage_error("--cache and --file cannot both be standard input");
  }
  if (flags.save == "-") return usage_error("--save: standard output is used for the text");
  if (flags.options.first_tokens && flags.options.cache.empty()) {
    return usage_error("--tokens needs --cache");
  }
  if (flags.reuse && (flags.options.cache.empty() || !flags.prompt.given())) {
    return usage_error("--reuse needs --cache and the whole prompt");
  }
  if (flags.append) return check_append(flags);
  if (flags.no_tokens && flags.save.empty()) {
    return usage_error("--no-tokens needs --save");
  }
  return {};
}

// Saves the result, whatever ended it. `hurry`: it was Ctrl-C.
Result<void> keep(const Console& console, const GenerateFlags& flags,
                  const session::Session& session, std::optional<GrowingFile>& growing,
                  session::PromptStore* store, Run& run, bool hurry) {
  const unsigned n_threads = flags.options.n_threads;
  if (growing) {
    TQC_TRY_ASSIGN(run.appended,
                   growing->append(console, session.cache(), flags.compression, n_threads));
    note(console, append_text(flags.options.cache, *run.appended));
  } else if (!flags.save.empty()) {
    TQC_TRY_ASSIGN(format::WriteOptions write,
                   write_options(flags.compression, n_threads, flags.force));
    write.hide_tokens = flags.no_tokens || run.was_hidden;
    TQC_TRY(save_cache(console, session.cache(), flags.save, write));
  }
  return finish_store(console, store, session.cache(), hurry);
}

// The user interrupted the reading of the prompt: the part that was read is saved.
Result<ExitCode> keep_part(const Console& console, const GenerateFlags& flags,
                           const session::Session& session, std::optional<GrowingFile>& growing,
                           session::PromptStore* store, Run& run, Error interrupted) {
  acknowledge_interrupt();
  if (session.cache().n_tokens() == run.cached_tokens) return interrupted;
  TQC_TRY(keep(console, flags, session, growing, store, run, true));
  if (flags.save.empty() && !growing) return interrupted;
  note(console, fmt::format("interrupted: the first {} of {} tokens were saved",
                            session.cache().n_tokens(), run.cached_tokens + run.prompt_tokens));
  return interrupted;
}

Result<ExitCode> run(const Console& console, GenerateFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY(finish_session_flags(console, flags));
  if (!flags.save.empty()) TQC_TRY(check_output(flags.save, flags.force));
  TQC_TRY_ASSIGN(const std::unique_ptr<session::PromptStore> store,
                 open_prompt_store(console, flags, flags.codec.given()));
  std::optional<GrowingFile> growing;
  if (flags.append) {
    TQC_TRY_ASSIGN(growing, GrowingFile::open(console, flags.options.cache));
  }

  TQC_TRY_ASSIGN(const std::unique_ptr<session::Session> session,
                 open_session(console, flags, growing ? &*growing : nullptr));
  Run run;
  const bool keeps = growing || !flags.save.empty() || !flags.store.name.empty();
  if (keeps || store) note_activations(console, flags);
  if (Result<void> fed = feed_prompt(console, *session, flags, store.get(), run); !fed) {
    const bool by_user = fed.error().code == ErrorCode::kInterrupted;
    if (!by_user || (!keeps && !store)) return std::move(fed).error();
    return keep_part(console, flags, *session, growing, store.get(), run, std::move(fed).error());
  }
  TextStream stream(session->model().tokenizer, flags.sampling.stops, !console.json);
  run.generation = session->generate(
      flags.n, keeps, until_interrupted([&](std::int32_t id) { return stream.add(id); }));

  const bool hurry = interrupted();
  acknowledge_interrupt();  // otherwise it would end the saving, too
  const bool failed = run.generation.stop == session::StopReason::kFailed;
  const Result<void> shown = console.json || failed ? Result<void>() : stream.end();
  TQC_TRY(keep(console, flags, *session, growing, store.get(), run, hurry));
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

Action define_generate(FlagSet& app) {
  const auto flags = std::make_shared<GenerateFlags>();
  add_model_flag(app, flags->options.model, true);
  app.add("-c,--cache", flags->options.cache, "Cache file to resume; - is standard input")
      ->type_name("FILE")
      ->file();
  add_prompt_flags(app, flags->prompt);
  app.add("-n,--max-new-tokens", flags->n, "Maximum number of tokens to generate")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--save", flags->save, "Save the extended cache to this file")->type_name("FILE")->file();
  app.add(
      "--reuse", flags->reuse,
      "Treat the prompt as the whole text: keep the common prefix of the cache, prefill the rest");
  app.add("--append", flags->append, "Append the new tokens to the cache file in place");
  add_first_tokens_flag(app, flags->options.first_tokens);
  add_session_flags(app, *flags);
  app.usual({"--model", "--cache", "--max-new-tokens", "--save", "--append", "--prompt", "--file",
             "--temperature", "--top-p", "--seed", "--stop", "--bits", "--config", "--store",
             "--threads", "--force", "--json"});
  app.footer(kGenerateExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
