#include "tqcache/model/decoder.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "tqcache/cache/token_hashes.h"
#include "tqcache/model/blas.h"
#include "tqcache/model/transformer.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;
using KeepGoing = std::function<bool()>;

constexpr std::int64_t kLogitRowsAtOnce = 64;  // bounds memory: a vocabulary may have 150,000 words

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::uint64_t to_unsigned(std::int64_t n) { return static_cast<std::uint64_t>(n); }

// Tokens of the next chunk: up to the token block's border, and the last token alone.
std::int64_t chunk_size(std::int64_t n_tokens, std::int64_t n_left) {
  if (n_left == 1) return 1;
  return std::min(kTokenBlock - n_tokens % kTokenBlock, n_left - 1);
}

Result<void> check_layer(const cache::Layer& layer, cache::HeadShape shape) {
  const auto* attention = std::get_if<cache::AttentionLayer>(&layer);
  if (attention == nullptr) {
    const bool rotates = std::get<cache::ArraysLayer>(layer).window.has_value();
    return Error{ErrorCode::kInvalidArgument, std::string(rotates ? "a rotating" : "an arrays") +
                                                  " layer, which this model does not have"};
  }
  if (attention->shape != shape) {
    return Error{ErrorCode::kMismatch,
                 std::to_string(attention->shape.n_kv_heads) + " kv heads of " +
                     std::to_string(attention->shape.head_dim) + " components; the model has " +
                     std::to_string(shape.n_kv_heads) + " of " + std::to_string(shape.head_dim)};
  }
  return {};
}

// New tokens would stand beside old ones that nobody can name.
Result<void> check_tokens_known(const cache::Cache& cache) {
  if (cache::tokens_known(cache)) return {};
  return Error{ErrorCode::kUnsupported,
               "the tokens are hidden: a model goes on from a cache only with their ids"};
}

Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config) {
  const auto n_layers = static_cast<std::int64_t>(cache.layers.size());
  if (n_layers != config.n_layers) {
    return Error{ErrorCode::kMismatch, "cache of " + std::to_string(n_layers) +
                                           " layers; the model has " +
                                           std::to_string(config.n_layers)};
  }
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    if (auto checked = check_layer(cache.layers[i], config.head_shape()); !checked) {
      return in_context("layer " + std::to_string(i), std::move(checked).error());
    }
  }
  return {};
}

Result<void> check_ids(std::span<const std::int32_t> ids, const ModelConfig& config) {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      return Error{ErrorCode::kInvalidArgument, "token id " + std::to_string(id) +
                                                    " is not one of the model's " +
                                                    std::to_string(config.vocab_size)};
    }
  }
  return {};
}

Result<void> check_context(const cache::Cache& cache, std::int64_t n_new,
                           const ModelConfig& config) {
  const std::int64_t n_free = config.context_length - cache.n_tokens();
  if (n_new <= n_free) return {};
  return Error{ErrorCode::kInvalidArgument, "context: " + std::to_string(n_new) +
                                                " tokens to append, room for " +
                                                std::to_string(std::max<std::int64_t>(n_free, 0)) +
                                                " of " + std::to_string(config.context_length)};
}

// Packs the blocks that have become full, before any layer appends: packing is what can fail.
Result<void> pack_full_tails(cache::Cache& cache, std::size_t n_threads) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto& layer = std::get<cache::AttentionLayer>(cache.layers[i]);
    for (auto [side, name] : {std::pair{&layer.k, " k"}, std::pair{&layer.v, " v"}}) {
      auto packed = cache::pack_full_tail(*side, layer.shape, cache.n_tokens(),
                                          static_cast<unsigned>(n_threads));
      if (!packed) {
        return in_context("layer " + std::to_string(i) + name, std::move(packed).error());
      }
    }
  }
  return {};
}

// Takes what was appended to the layers away again, unless the tokens are counted in the end.
class AppendGuard {
 public:
  explicit AppendGuard(cache::Cache& cache) : cache_(cache) {}
  AppendGuard(const AppendGuard&) = delete;
  AppendGuard& operator=(const AppendGuard&) = delete;
  ~AppendGuard() {
    if (committed_) return;
    for (cache::Layer& layer : cache_.layers) {
      auto& attention = std::get<cache::AttentionLayer>(layer);
      cache::remove_tail(attention.k, cache_.n_tokens());
      cache::remove_tail(attention.v, cache_.n_tokens());
    }
  }

  void commit(std::span<const std::int32_t> ids) {
    cache_.tokens.insert(cache_.tokens.end(), ids.begin(), ids.end());
    committed_ = true;
  }

 private:
  cache::Cache& cache_;
  bool committed_ = false;
};

}  // namespace

struct Decoder::State {
  State(const ModelConfig& config_in, const Weights& weights, unsigned n_threads, Scorer scorer)
      : config(config_in), transformer(config_in, weights, n_threads, scorer) {}

  Result<void> check(const cache::Cache& cache, std::span<const std::int32_t> ids) const;
  Result<void> append_chunk(cache::Cache& cache, std::span<const std::int32_t> ids,
                            const KvFilter& filter, const KeepGoing& keep_going);
  Result<void> append_all(cache::Cache& cache, std::span<const std::int32_t> ids,
                          const LogitsSink& sink, const KvFilter& filter, const Progress& progress);
  Result<void> run_again(const cache::Cache& cache, std::int64_t first, std::int64_t n,
                         const QuerySink& sink);
  void give_logits(std::int64_t first, std::int64_t n, const LogitsSink& sink);

  const ModelConfig& config;
  Transformer transformer;
};

Decoder::Decoder(const ModelConfig& config, const Weights& weights, unsigned n_threads,
                 Scorer scorer)
    : state_(std::make_unique<State>(config, weights, n_threads, scorer)) {
  use_blas_in_one_thread();
}

Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

Result<void> Decoder::State::check(const cache::Cache& cache,
                                   std::span<const std::int32_t> ids) const {
  TQC_TRY(check_tokens_known(cache));
  TQC_TRY(check_layers(cache, config));
  TQC_TRY(check_ids(ids, config));
  return check_context(cache, static_cast<std::int64_t>(ids.size()), config);
}

// Appends tokens of one token block, to all layers or none.
Result<void> Decoder::State::append_chunk(cache::Cache& cache, std::span<const std::int32_t> ids,
                                          const KvFilter& filter, const KeepGoing& keep_going) {
  AppendGuard guard(cache);
  TQC_TRY(pack_full_tails(cache, transformer.workers().count()));
  transformer.begin(ids, cache.n_tokens());
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    if (!keep_going()) return Error{ErrorCode::kInterrupted, "prefill: stopped"};
    TQC_TRY(transformer.run_layer(static_cast<std::int64_t>(i),
                                  std::get<cache::AttentionLayer>(cache.layers[i]), filter));
  }
  guard.commit(ids);
  return {};
}

void Decoder::State::give_logits(std::int64_t first, std::int64_t n, const LogitsSink& sink) {
  for (std::int64_t row = 0; row < n; row += kLogitRowsAtOnce) {
    const std::int64_t count = std::min(kLogitRowsAtOnce, n - row);
    sink(first + row, count, transformer.logits(row, count));
  }
}

Result<void> Decoder::State::append_all(cache::Cache& cache, std::span<const std::int32_t> ids,
                                        const LogitsSink& sink, const KvFilter& filter,
                                        const Progress& progress) {
  TQC_TRY(check(cache, ids));
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t done = 0, n = 0; done < total; done += n) {
    n = chunk_size(cache.n_tokens(), total - done);
    TQC_TRY(append_chunk(cache, ids.subspan(to_size(done), to_size(n)), filter, [&] {
      return !progress || progress(to_unsigned(done), to_unsigned(total));
    }));
    if (sink) give_logits(done, n, sink);
  }
  if (progress) progress(to_unsigned(total), to_unsigned(total));
  return {};
}

Result<std::span<const float>> Decoder::prefill(cache::Cache& cache,
                                                std::span<const std::int32_t> ids,
                                                const Progress& progress) {
  assert(!ids.empty());
  TQC_TRY(state_->append_all(cache, ids, {}, {}, progress));
  return state_->transformer.logits(0, 1);
}

Result<void> Decoder::prefill_all_logits(cache::Cache& cache, std::span<const std::int32_t> ids,
                                         const LogitsSink& sink, const Progress& progress,
                                         const KvFilter& filter) {
  assert(!ids.empty());
  return state_->append_all(cache, ids, sink, filter, progress);
}

Result<std::span<const float>> Decoder::decode_step(cache::Cache& cache, std::int32_t id) {
  return prefill(cache, {&id, 1});
}

// Runs tokens that the cache holds over what stands up to them.
Result<void> Decoder::State::run_again(const cache::Cache& cache, std::int64_t first,
                                       std::int64_t n, const QuerySink& sink) {
  TQC_TRY(check_tokens_known(cache));
  const auto ids = std::span(cache.tokens).subspan(to_size(first), to_size(n));
  TQC_TRY(check_layers(cache, config));
  TQC_TRY(check_ids(ids, config));
  transformer.begin(ids, first);
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    transformer.rerun_layer(index, std::get<cache::AttentionLayer>(cache.layers[i]));
    if (sink) TQC_TRY(sink(index, transformer.queries()));
  }
  return {};
}

Result<std::span<const float>> Decoder::last_logits(const cache::Cache& cache) {
  assert(cache.n_tokens() > 0);
  TQC_TRY(state_->run_again(cache, cache.n_tokens() - 1, 1, {}));
  return state_->transformer.logits(0, 1);
}

Result<void> Decoder::queries(const cache::Cache& cache, std::int64_t first, std::int64_t n,
                              const QuerySink& sink) {
  assert(first >= 0 && n >= 1 && first + n <= cache.n_tokens());
  return state_->run_again(cache, first, n, sink);
}

std::uint64_t Decoder::scratch_bytes() const { return state_->transformer.scratch_bytes(); }

}  // namespace tqcache::model
