// tools/cmd_generate.cpp: writes on from a prompt, a cache, or both.

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>

#include "cache_io.h"
#include "cli.h"
#include "interrupt.h"
#include "prompt.h"
#include "session.h"
#include "text_stream.h"

namespace tqcache::cli {
namespace {

constexpr const char* kExamples =
    R"(With --cache the prompt is appended to what the cache holds; without a prompt
the text goes on after the cache's last token. Generation ends at an end token
or after N tokens. A cache saved with --save holds every token of the prompt and
of the answer, the end token included, so it can be gone on from exactly; it is
saved even if generation was interrupted. Turbo layers stay turbo.

Examples:
  tqcache generate -m model.gguf -p "Once upon a time" -n 100
  tqcache generate -m model.gguf --cache book.tqkv -n 100
  tqcache generate -m model.gguf --cache book.tqkv -p " Then" -n 50 --save more.tqkv
  tqcache generate -m model.gguf -p "Hi" -n 20 --temperature 0.8 --top-p 0.95 --seed 7
)";

struct GenerateFlags {
  SessionOptions session;
  PromptFlags prompt;
  std::int64_t n = 0;
  std::string save;
  CompressionFlags compression;
  bool force = false;
};

struct Run {
  std::int64_t cached_tokens = 0;
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  Generation generation;

  std::int64_t timed_tokens() const {
    return std::max<std::int64_t>(0, std::ssize(generation.ids) - 1);
  }
};

Json rate(std::int64_t n_tokens, double seconds) {
  if (n_tokens == 0 || seconds <= 0) return nullptr;
  return static_cast<double>(n_tokens) / seconds;
}

std::uint64_t peak_memory_bytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

Json generate_json(const Session& session, const Run& run, const std::string& text) {
  const cache::ByteCount bytes = cache::byte_count(session.cache());
  Json json;
  json["text"] = text;
  json["token_ids"] = run.generation.ids;
  json["prompt_tokens"] = run.prompt_tokens;
  json["cached_tokens"] = run.cached_tokens;
  json["generation_tokens"] = run.generation.ids.size();
  json["timed_generation_tokens"] = run.timed_tokens();  // the first belongs to the prompt
  json["prompt_tps"] = rate(run.prompt_tokens, run.prompt_seconds);
  json["generation_tps"] = rate(run.timed_tokens(), run.generation.seconds);
  json["generation_wall_time_s"] = run.generation.seconds;
  json["peak_memory_bytes"] = peak_memory_bytes();
  json["cache_bytes"] = {{"allocated", bytes.allocated}, {"used", bytes.used}};
  json["native_working_set_bytes"] = session.working_set_bytes();
  const model::ScorerRoute route = session.scorer_route();
  json["scorer_route"] = route.step;
  json["prompt_route"] = route.prompt;
  json["scorer_fallback"] = route.fallback.empty() ? Json(nullptr) : Json(route.fallback);
  json["stop_reason"] = stop_word(run.generation.stop);
  return json;
}

// "60 tokens of prompt (1200/s)"
std::string amount(std::int64_t n_tokens, std::string_view what, std::int64_t n_timed,
                   double seconds) {
  const std::string text = fmt::format("{} tokens {}", n_tokens, what);
  if (n_timed == 0 || seconds <= 0) return text;
  return text + fmt::format(" ({:.0f}/s)", static_cast<double>(n_timed) / seconds);
}

void tell(const Console& console, const Run& run) {
  std::string line;
  if (run.cached_tokens > 0) line += amount(run.cached_tokens, "from the cache", 0, 0) + ", ";
  if (run.prompt_tokens > 0) {
    line += amount(run.prompt_tokens, "of prompt", run.prompt_tokens, run.prompt_seconds) + ", ";
  }
  line +=
      amount(std::ssize(run.generation.ids), "written", run.timed_tokens(), run.generation.seconds);
  note(console, fmt::format("{}, stopped by {}", line, stop_word(run.generation.stop)));
}

Outcome<Done> feed_prompt(Session& session, const PromptFlags& flags, Run& run) {
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                 read_prompt(flags, session.model().tokenizer));
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
  return {};
}

Outcome<ExitCode> run(const Console& console, const GenerateFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(const format::WriteOptions write,
                 write_options(flags.compression, flags.session.n_threads, flags.force));
  const bool saves = !flags.save.empty();
  if (saves) TQC_TRY(check_output(flags.save, flags.force));

  TQC_TRY_ASSIGN(const std::unique_ptr<Session> session, Session::open(console, flags.session));
  Run run;
  TQC_TRY(feed_prompt(*session, flags.prompt, run));
  TextStream stream(session->model().tokenizer, !console.json);
  run.generation =
      session->generate(flags.n, saves, [&](std::int32_t id) { return stream.add(id); });

  // What was made is kept whatever ended it.
  acknowledge_interrupt();
  if (saves) TQC_TRY(save_cache(console, session->cache(), flags.save, write));
  if (run.generation.stop == StopReason::kFailed) return std::move(*run.generation.failure);
  TQC_TRY(console.json ? print_json(generate_json(*session, run, stream.text())) : stream.end());
  tell(console, run);
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
  app.add_option("-n,--max-new-tokens", flags->n, "Tokens to write at most")
      ->type_name("N")
      ->check(at_least(1))
      ->required();
  add_sampling_flags(app, flags->session.sampling);
  app.add_option("--save", flags->save, "Keep the longer cache in this file")
      ->type_name("FILE")
      ->check(file_name());
  add_compression_flags(app, flags->compression, "zstd");
  add_threads_flag(app, flags->session.n_threads);
  add_scorer_flag(app, flags->session.scorer);
  add_map_flag(app, flags->session.map);
  add_force_flag(app, flags->force);
  app.footer(kExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
