#include "cli/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/cache_io.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "report/speed_fields.h"
#include "tqcache/cache/convert.h"

namespace tqcache::cli {

using Clock = std::chrono::steady_clock;

namespace {

StopReason fail(Failure failure, Generation& generation) {
  const bool by_user = failure.error.code == ErrorCode::kInterrupted;
  generation.failure = std::move(failure);
  return by_user ? StopReason::kInterrupted : StopReason::kFailed;
}

Outcome<cache::Cache> load(const Console& console, const SessionOptions& options,
                           GrowingFile* growing) {
  if (growing != nullptr) {
    if (options.map) note(console, "--map: the file is about to grow, so it is read instead");
    return growing->read(console, options.n_threads);
  }
  format::ReadOptions read;
  read.n_threads = options.n_threads;
  read.first_tokens = options.first_tokens;
  return options.map ? map_cache(console, options.cache, read)
                     : load_cache(console, options.cache, read);
}

// A turbo cache without tokens packs its first token block when that is full.
Result<cache::Cache> empty_cache(const model::Model& model, const SessionOptions& options) {
  TQC_TRY_ASSIGN(cache::Cache empty, model::make_cache(model, Dtype::kF16));
  if (!options.form) return empty;
  cache::ConvertOptions form = *options.form;
  form.n_threads = options.n_threads;
  return cache::convert(std::move(empty), form);
}

Result<void> check_biases(const SamplingFlags& sampling, const model::Model& model) {
  for (const model::LogitBias& each : sampling.options.logit_bias) {
    if (each.id < model.config.vocab_size) continue;
    return usage_error(fmt::format("--logit-bias: token id {} is not one of the model's {}",
                                   each.id, model.config.vocab_size));
  }
  return {};
}

}  // namespace

std::string_view stop_word(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "end_token";
    case StopReason::kStopString:
      return "stop_string";
    case StopReason::kLength:
      return "length";
    case StopReason::kContextFull:
      return "context_full";
    case StopReason::kInterrupted:
      return "interrupted";
    case StopReason::kFailed:
      return "failed";
  }
  return "failed";
}

Outcome<std::unique_ptr<Session>> Session::open(const Console& console,
                                                const SessionOptions& options,
                                                GrowingFile* growing) {
  TQC_TRY_ASSIGN(std::unique_ptr<model::Model> model,
                 in_file(options.model, model::load_model(options.model)));
  TQC_TRY(check_biases(options.sampling, *model));
  if (options.cache.empty()) {
    TQC_TRY_ASSIGN(cache::Cache empty, empty_cache(*model, options));
    return std::unique_ptr<Session>(
        new Session(console, std::move(model), std::move(empty), options));
  }
  TQC_TRY_ASSIGN(cache::Cache cache, load(console, options, growing));
  TQC_TRY(in_file(display_name(options.cache, "standard input"),
                  cache::check_identity(cache, model->identity)));
  std::unique_ptr<Session> session(
      new Session(console, std::move(model), std::move(cache), options));
  session->tell_route();
  return session;
}

void Session::tell_route() const {
  if (const std::string reason = kernel_path().fallback; !reason.empty()) {
    note(console_, "scoring packed codes in f32: " + reason);
  }
}

Session::Session(const Console& console, std::unique_ptr<model::Model> model, cache::Cache cache,
                 const SessionOptions& options)
    : console_(console),
      model_(std::move(model)),
      cache_(std::move(cache)),
      scorer_(options.scorer),
      decoder_(*model_, options.n_threads, options.scorer),
      sampler_(options.sampling.options),
      end_tokens_(model_->tokenizer.end_tokens()) {}

Outcome<Done> Session::begin_from(PromptStore& store, std::span<const std::int32_t> prompt) {
  TQC_TRY(store.begin(*model_, prompt, cache_));
  store_ = &store;
  tell_route();
  return Done{};
}

Outcome<Done> Session::feed(std::span<const std::int32_t> ids) {
  ProgressBar bar(console_, "prefill", Unit::kTokens);
  const Progress show = bar.callback();
  TQC_TRY_ASSIGN(logits_,
                 decoder_.prefill(cache_, ids, [&](std::uint64_t done, std::uint64_t total) {
                   if (store_ != nullptr) store_->watch(cache_);
                   return show(done, total);
                 }));
  if (store_ != nullptr) store_->end_prompt(cache_);
  return Done{};
}

Outcome<Done> Session::go_on() {
  TQC_TRY_ASSIGN(logits_, decoder_.last_logits(cache_));
  return Done{};
}

bool Session::is_end_token(std::int32_t id) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end();
}

Outcome<Done> Session::append(std::int32_t id) {
  TQC_TRY_ASSIGN(logits_, decoder_.decode_step(cache_, id));
  if (store_ != nullptr) store_->watch(cache_);
  sampler_.saw({&id, 1});
  return Done{};
}

std::optional<StopReason> Session::choose(std::int64_t n, const TokenSink& sink,
                                          Generation& generation) {
  const std::int32_t id = sampler_.next(logits_);
  generation.ids.push_back(id);
  if (is_end_token(id)) return StopReason::kEndToken;
  const Outcome<bool> goes_on = sink(id);
  if (!goes_on) return fail(goes_on.error(), generation);
  if (!*goes_on) return StopReason::kStopString;
  if (interrupted()) return fail(Failure{interrupted_error(), {}, false}, generation);
  if (std::ssize(generation.ids) >= n) return StopReason::kLength;
  return std::nullopt;
}

Generation Session::generate(std::int64_t n, bool append_last, const TokenSink& sink) {
  Generation generation;
  sampler_.forget();
  sampler_.saw(cache_.tokens);
  Clock::time_point first;
  for (;;) {
    std::optional<StopReason> stop = choose(n, sink, generation);
    if (generation.ids.size() == 1) first = Clock::now();
    generation.seconds = std::chrono::duration<double>(Clock::now() - first).count();
    const bool full = cache_.n_tokens() >= model_->config.context_length;
    if (full && !stop) stop = StopReason::kContextFull;
    if (!full && (!stop || append_last)) {
      if (Outcome<Done> appended = append(generation.ids.back()); !appended) {
        stop = fail(std::move(appended).error(), generation);
      }
    }
    if (!stop) continue;
    generation.stop = *stop;
    return generation;
  }
}

std::uint64_t Session::working_set_bytes() const {
  return cli::working_set_bytes(*model_, cache::byte_count(cache_), decoder_.scratch_bytes());
}

}  // namespace tqcache::cli
