#include "verbs/serve_embedded.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string_view>
#include <utility>

#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/terminal.h"
#include "tqcache/store.h"
#include "tqcache/tokenizer.h"
#include "tqcache/upkeep.h"

namespace tqcache::cli {

void add_embedded_flags(FlagSet& app, EmbeddedFlags& flags) {
  const std::string group = "Model of its own";
  app.add("--model-id", flags.model_id,
          "Name of the model for clients (default: that of the file, without .gguf)")
      ->type_name("NAME")
      ->not_empty()
      ->group(group);
  add_template_flags(app, flags.templates, group);
  app.add("--queue", flags.max_waiting,
          "Requests that may wait while one is answered; more get status 429")
      ->type_name("N")
      ->range(0, 4096)
      ->show_default()
      ->group(group);
  app.add("--show-prompts", flags.shows_text,
          "The page shows how each kept prompt begins; with --upstream, words where prompts part")
      ->group(group);
  add_scorer_flag(app, flags.scorer);
  add_activations_flag(app, flags.activations);
  add_verify_digest_flag(app, flags.verify_digests);
}

#ifdef TQCACHE_SERVE

namespace {

// Errors: kInvalidArgument.
Result<std::optional<cache::ConvertOptions>> quantization_of(const std::string& config) {
  auto parsed = cache::parse_configuration(config);
  if (!parsed) return in_context("--config", std::move(parsed).error());
  if (parsed->options.keep_all) return std::optional<cache::ConvertOptions>();
  if (parsed->is_archive) {
    return usage_error("--config: a model cannot extend an archive; turbo2 is the smallest");
  }
  return std::optional(std::move(parsed->options));
}

}  // namespace

Result<std::unique_ptr<serve::Engine>> open_engine(const Console& console,
                                                   const EmbeddedFlags& flags,
                                                   const std::string& model,
                                                   const EmbeddedStore& store, serve::Log& log,
                                                   serve::PromptLedger& ledger,
                                                   serve::HitScores& scores) {
  serve::EngineOptions options;
  options.model = model;
  options.model_id = flags.model_id;
  TQC_TRY_ASSIGN(options.chat_template, read_template(flags.templates));
  TQC_TRY_ASSIGN(options.date, read_date(flags.templates));
  TQC_TRY_ASSIGN(options.quantization, quantization_of(store.config));
  options.n_threads = flags.n_threads;
  options.scorer = flags.scorer;
  options.activations = flags.activations;
  options.store_url = store.url;
  options.keys = console.access.keys;
  options.credentials = store::credentials_of_environment();
  options.memory = console.access.memory;
  options.same_quantization = store.config_is_given;
  options.verify_digests = flags.verify_digests;
  options.max_waiting = static_cast<std::size_t>(flags.max_waiting);
  options.shows_text = flags.shows_text;
  options.ledger = &ledger;
  options.scores = &scores;
  options.on_warning = [&log](const std::string& where, const std::string& message) {
    log.warning("store", {{"where", where}, {"message", message}});
  };
  const EndsAtFirstSignal scope;
  return serve::Engine::open(std::move(options));
}

// In JSON, a token id has at most 8 bytes, a token of English text 4, and one of escaped characters
// (\u4e2d) 6 to 12. What else a request has fits into the first MiB.
std::uint64_t default_max_body(const serve::Engine& engine) {
  constexpr std::int64_t kLeast = std::int64_t{1} << 20;
  constexpr std::int64_t kMost = std::int64_t{64} << 20;
  const std::int64_t n_tokens = std::min(engine.context_length(), kMost / 32);
  return static_cast<std::uint64_t>(std::min(kLeast + 32 * n_tokens, kMost));
}

StoreUpkeep::StoreUpkeep(const Console& console, const EmbeddedStore& store, serve::Engine& engine,
                         const serve::HitScores& scores, serve::Log& log)
    : console_(console), store_(store), engine_(engine), scores_(scores), log_(log) {
  if (!store_.url.empty() && store_.max_bytes) thread_ = std::thread([this] { work(); });
}

StoreUpkeep::~StoreUpkeep() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    stopped_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Looks each time a twentieth of the limit has been added, and once at the beginning.
void StoreUpkeep::work() {
  constexpr std::chrono::seconds kLook{5};
  std::optional<std::uint64_t> collected_at;
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    engine_.refresh_ledger();
    const std::uint64_t n_bytes = engine_.added_bytes();
    if (!collected_at || n_bytes - *collected_at >= *store_.max_bytes / 20) {
      collected_at = n_bytes;
      lock.unlock();
      if (const Result<void> done = collect(); !done) {
        log_.warning("evict", {{"message", done.error().message}});
      }
      lock.lock();
    }
    stopped_.wait_for(lock, kLook, [this] { return is_stopping_; });
  }
}

Result<void> StoreUpkeep::collect() {
  store::BackendOptions options;
  options.keys = console_.access.keys;
  options.credentials = store::credentials_of_environment();
  TQC_TRY_ASSIGN(const auto backend, store::open_backend(store_.url, options));
  store::CollectOptions limits{.max_bytes = store_.max_bytes, .grace = std::chrono::minutes(5)};
  const auto now = static_cast<double>(std::time(nullptr));
  limits.order_by = [&](std::string_view name, std::chrono::seconds idle) {
    return scores_.idle(name, idle, now);
  };
  TQC_TRY_ASSIGN(const store::CollectReport report, store::collect(*backend, limits));
  if (report.bytes_after < report.bytes_before) {
    log_.info("evict", {{"bytes", std::to_string(report.bytes_before - report.bytes_after)}});
  }
  return {};
}

#endif

}  // namespace tqcache::cli
