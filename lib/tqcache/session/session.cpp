#include "tqcache/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace tqcache::session {

using Clock = std::chrono::steady_clock;

namespace {

StopReason fail(Error failure, Generation& generation) {
  const bool by_user = failure.code == ErrorCode::kInterrupted;
  generation.failure = std::move(failure);
  return by_user ? StopReason::kInterrupted : StopReason::kFailed;
}

// A quantized cache without tokens quantizes its first token block when the block is full.
Result<cache::Cache> empty_cache(const model::Model& model,
                                 const std::optional<cache::ConvertOptions>& wanted,
                                 unsigned n_threads) {
  TQC_TRY_ASSIGN(cache::Cache empty, model::make_cache(model, Dtype::kF16));
  if (!wanted) return empty;
  if (wanted->fit == cache::Fit::kPrompt) {
    return invalid(
        "fit=prompt: a cache that grows is fitted to its first block; only a conversion "
        "sees a whole prompt");
  }
  cache::ConvertOptions quantization = *wanted;
  quantization.n_threads = n_threads;
  return cache::convert(std::move(empty), quantization);
}

Result<void> check_biases(const model::SamplerOptions& sampling, const model::Model& model) {
  for (const model::LogitBias& each : sampling.logit_bias) {
    if (each.id < model.config.vocab_size) continue;
    return invalid(
        fmt::format("logit bias: token id {} is not below {}", each.id, model.config.vocab_size));
  }
  return {};
}

bool is_state(const cache::Layer& layer) {
  return std::holds_alternative<cache::StateLayer>(layer);
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

Result<std::unique_ptr<Session>> Session::open(const SessionOptions& options,
                                               const Progress& reading) {
  TQC_TRY_ASSIGN(std::unique_ptr<model::Model> model,
                 in_file(options.model, model::load_model(options.model, options.n_threads,
                                                          options.access.memory)));
  std::optional<cache::Cache> cache;
  if (!options.cache.empty()) {
    format::ReadOptions read;
    read.n_threads = options.n_threads;
    read.first_tokens = options.first_tokens;
    read.accept = [&](const cache::CacheDesc& description) {
      return model::check_fits(description, *model);
    };
    read.verify_digests = options.verify_digests;
    read.access = options.access;
    if (options.map) {
      TQC_TRY_ASSIGN(cache,
                     in_file(options.cache, format::map_cache(options.cache, read, reading)));
    } else {
      TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> file,
                     in_file(options.cache, open_file(options.cache)));
      TQC_TRY_ASSIGN(cache, in_file(options.cache, format::read_cache(*file, read, reading)));
    }
  }
  return in_file(options.cache, start(std::move(model), std::move(cache), options));
}

Result<std::unique_ptr<Session>> Session::start(std::unique_ptr<model::Model> model,
                                                std::optional<cache::Cache> cache,
                                                const SessionOptions& options) {
  TQC_TRY(check_biases(options.sampling, *model));
  if (cache) {
    TQC_TRY(cache::check_identity(*cache, model->identity));
  } else {
    TQC_TRY_ASSIGN(cache, empty_cache(*model, options.quantization, options.n_threads));
  }
  return std::unique_ptr<Session>(new Session(std::move(model), std::move(*cache), options));
}

Session::Session(std::unique_ptr<model::Model> model, cache::Cache cache,
                 const SessionOptions& options)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      quantization_(options.quantization),
      n_threads_(options.n_threads),
      scorer_(options.scorer),
      decoder_(*model_, options.n_threads, options.scorer, options.activations),
      sampler_(options.sampling),
      end_tokens_(model_->tokenizer.end_tokens()) {}

Result<void> Session::begin_from(PromptStore& store, std::span<const std::int32_t> prompt,
                                 const Progress& progress) {
  empty_ = cache_;
  TQC_TRY(store.begin(*model_, prompt, cache_, progress));
  store_ = &store;
  from_store_ = cache_.n_tokens() > 0;
  return {};
}

Result<PrefixReuse> Session::keep_common_prefix(std::span<const std::int32_t> prompt,
                                                const EarlierState& earlier) {
  PrefixReuse reuse;
  reuse.n_before = cache_.n_tokens();
  reuse.n_common = common_prefix(cache_.tokens, prompt);
  // The last checkpoint that leaves a token of the prompt to be computed.
  const auto find_earlier = [&]() -> Result<std::optional<cache::Cache>> {
    const std::int64_t most = std::min<std::int64_t>(reuse.n_common, std::ssize(prompt) - 1);
    if (!earlier || most <= 0) return std::optional<cache::Cache>();
    TQC_TRY_ASSIGN(std::optional<cache::Cache> state, earlier(most));
    // The file may have been replaced meanwhile.
    const bool fits = state && cache::tokens_known(*state) && state->n_tokens() <= most &&
                      common_prefix(state->tokens, prompt) == state->n_tokens() &&
                      cache::check_identity(*state, model_->identity).ok();
    if (!fits) state.reset();
    return state;
  };
  const bool is_whole = reuse.n_common == reuse.n_before;
  const Result<void> possible = cache::check_truncate(cache::describe(cache_), reuse.n_common);
  if (!is_whole && possible) {
    TQC_TRY_ASSIGN(cache_, cache::truncate(std::move(cache_), reuse.n_common));
  } else if (!is_whole) {
    reuse.obstacle = possible.error().message;
    TQC_TRY_ASSIGN(std::optional<cache::Cache> state, find_earlier());
    if (state) {
      cache_ = std::move(*state);
    } else {
      TQC_TRY_ASSIGN(cache_, model::make_cache(*model_, Dtype::kF16));
    }
  } else if (std::ssize(prompt) == reuse.n_before && std::ranges::any_of(cache_.layers, is_state)) {
    // Recurrent state cannot compute its last token again.
    TQC_TRY_ASSIGN(std::optional<cache::Cache> state, find_earlier());
    if (state) cache_ = std::move(*state);
  }
  reuse.n_kept = cache_.n_tokens();
  return reuse;
}

Result<void> Session::truncate(std::int64_t n_tokens) {
  TQC_TRY(cache::check_truncate(cache::describe(cache_), n_tokens));
  if (store_ != nullptr) store_->stop_adding(cache_);
  TQC_TRY_ASSIGN(cache_, cache::truncate(std::move(cache_), n_tokens));
  return {};
}

Result<void> Session::clear() {
  if (truncate(0)) return {};
  if (store_ != nullptr) store_->stop_adding(cache_);
  TQC_TRY_ASSIGN(cache_, empty_cache(*model_, quantization_, n_threads_));
  return {};
}

Result<void> Session::begin_anew() {
  store_ = nullptr;
  from_store_ = false;
  empty_.reset();
  logits_ = {};
  TQC_TRY_ASSIGN(cache_, empty_cache(*model_, quantization_, n_threads_));
  return {};
}

Result<void> Session::set_sampling(const model::SamplerOptions& sampling) {
  TQC_TRY(model::validate(sampling));
  TQC_TRY(check_biases(sampling, *model_));
  sampler_ = model::Sampler(sampling);
  return {};
}

Result<void> Session::feed(std::span<const std::int32_t> ids, const Progress& progress) {
  const std::int64_t n_before = cache_.n_tokens();
  auto logits = decoder_.prefill(cache_, ids, [&](std::uint64_t done, std::uint64_t total) {
    if (store_ != nullptr) store_->watch(cache_);
    return !progress || progress(done, total);
  });
  if (!logits) return without_store(std::move(logits).error(), n_before, ids, progress);
  logits_ = *logits;
  if (store_ != nullptr) store_->end_prompt(cache_);
  return {};
}

Result<void> Session::without_store(Error error, std::int64_t n_before,
                                    std::span<const std::int32_t> ids, const Progress& progress) {
  if (!from_store_ || error.code != ErrorCode::kCorrupt) return error;
  from_store_ = false;
  store_->reject(error);
  std::vector<std::int32_t> all(cache_.tokens.begin(), cache_.tokens.begin() + n_before);
  all.insert(all.end(), ids.begin(), ids.end());
  cache_ = *empty_;
  TQC_TRY_ASSIGN(logits_, decoder_.prefill(cache_, all, progress));
  return {};
}

Result<void> Session::resume() {
  TQC_TRY_ASSIGN(logits_, decoder_.last_logits(cache_));
  return {};
}

bool Session::is_end_token(std::int32_t id) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end();
}

Result<void> Session::append(std::int32_t id) {
  const std::int64_t n_before = cache_.n_tokens();
  auto logits = decoder_.decode_step(cache_, id);
  if (logits) {
    logits_ = *logits;
    if (store_ != nullptr) store_->watch(cache_);
  } else {
    TQC_TRY(without_store(std::move(logits).error(), n_before, {&id, 1}, {}));
  }
  sampler_.saw({&id, 1});
  return {};
}

std::optional<StopReason> Session::choose(std::int64_t n, const TokenSink& sink,
                                          Generation& generation) {
  const std::int32_t id = sampler_.next(logits_);
  generation.ids.push_back(id);
  if (is_end_token(id)) return StopReason::kEndToken;
  const Result<bool> goes_on = sink(id);
  if (!goes_on) return fail(goes_on.error(), generation);
  if (!*goes_on) return StopReason::kStopString;
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
      if (Result<void> appended = append(generation.ids.back()); !appended) {
        stop = fail(std::move(appended).error(), generation);
      }
    }
    if (!stop) continue;
    generation.stop = *stop;
    return generation;
  }
}

std::uint64_t Session::working_set_bytes() const {
  return session::working_set_bytes(*model_, cache::byte_count(cache_), decoder_.scratch_bytes());
}

std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::uint64_t working_set_bytes(const model::Model& model, const cache::ByteCount& cache,
                                std::uint64_t scratch_bytes) {
  std::uint64_t bytes = cache.allocated + scratch_bytes;
  for (const MappedFile& file : model.files) bytes += file.bytes().size();
  return bytes;
}

}  // namespace tqcache::session
