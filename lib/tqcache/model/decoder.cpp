#include "tqcache/decoder.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/error.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/transformer.h"

namespace tqcache::model {

namespace {

using cache::kTokenBlock;
using KeepGoing = std::function<bool()>;

constexpr std::int64_t kLogitRowsAtOnce = 64;  // bounds memory: a vocabulary may have 150,000 ids

// The size of the next chunk: up to the border of the token block; the last token is a chunk of its
// own.
std::int64_t chunk_size(std::int64_t n_tokens, std::int64_t n_left) {
  if (n_left == 1) return 1;
  return std::min(kTokenBlock - n_tokens % kTokenBlock, n_left - 1);
}

// New tokens cannot follow tokens whose ids are unknown.
Result<void> check_tokens_known(const cache::Cache& cache) {
  if (cache::tokens_known(cache)) return {};
  return Error{ErrorCode::kUnsupported,
               "the tokens are hidden: a model goes on from a cache only with their ids"};
}

Result<void> check_ids(std::span<const std::int32_t> ids, const ModelConfig& config) {
  for (const std::int32_t id : ids) {
    if (id < cache::kUnknownToken) {
      return unsupported("a token of an image, a sound or a video: only text can be computed");
    }
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
  const std::int64_t n_free =
      config.context_length - cache::position_of(cache.media, cache.n_tokens());
  if (n_new <= n_free) return {};
  return Error{ErrorCode::kInvalidArgument, "context: " + std::to_string(n_new) +
                                                " tokens to append, room for " +
                                                std::to_string(std::max<std::int64_t>(n_free, 0)) +
                                                " of " + std::to_string(config.context_length)};
}

// What is measured with queries takes K for keys.
Result<void> check_queries(const ModelConfig& config) {
  if (config.latent.rank == 0) return {};
  return unsupported("queries of latent attention, whose keys are not in the cache");
}

// Quantizes full tail blocks before any layer appends, because this step can fail.
Result<void> pack_full_tails(cache::Cache& cache, std::size_t n_threads) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    cache::AttentionLayer* const rows = cache::attention_of(cache.layers[i]);
    if (rows == nullptr) continue;
    const std::int64_t begin = cache::first_token(cache.layers[i], cache.n_tokens());
    for (auto [tensor, name] : {std::pair{&rows->k, " k"}, std::pair{&rows->v, " v"}}) {
      auto packed =
          cache::pack_full_tail(*tensor, cache.n_tokens(), static_cast<unsigned>(n_threads), begin);
      if (!packed) {
        return in_context("layer " + std::to_string(i) + name, std::move(packed).error());
      }
    }
  }
  return {};
}

// Reorders recurrent state to the model's own layout.
Result<void> adopt_states(cache::Cache& cache, const ModelConfig& config) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto* state = std::get_if<cache::StateLayer>(&cache.layers[i]);
    if (state == nullptr || config.layer(static_cast<std::int64_t>(i)).source >= 0) continue;
    if (auto adopted = adopt_delta_state(config, *state); !adopted) {
      return in_context("layer " + std::to_string(i), std::move(adopted).error());
    }
  }
  return {};
}

// Undoes the appends to the layers unless the tokens are counted in the end.
class AppendGuard {
 public:
  // `after`: states after the new tokens, for layers without keys and values.
  AppendGuard(cache::Cache& cache, const ModelConfig& config, std::vector<cache::StateLayer>& after)
      : cache_(cache), config_(config), after_(after) {}
  AppendGuard(const AppendGuard&) = delete;
  AppendGuard& operator=(const AppendGuard&) = delete;
  ~AppendGuard() {
    if (committed_) return;
    for (cache::Layer& layer : cache_.layers) {
      cache::AttentionLayer* rows = cache::attention_of(layer);
      if (rows == nullptr) continue;
      cache::remove_tail(rows->k, cache_.n_tokens());
      cache::remove_tail(rows->v, cache_.n_tokens());
    }
  }

  void commit(std::span<const std::int32_t> ids) {
    cache_.tokens.insert(cache_.tokens.end(), ids.begin(), ids.end());
    for (std::size_t i = 0; i < cache_.layers.size(); ++i) {
      std::visit(Overload{[](cache::AttentionLayer&) {},
                          [&](cache::WindowLayer& window) {
                            // A loaded window may be one token smaller.
                            window.window.size = config_.layer(static_cast<std::int64_t>(i)).window;
                            cache::advance_window(window, cache_.n_tokens());
                          },
                          [&](cache::StateLayer& state) { std::swap(state, after_[i]); }},
                 cache_.layers[i]);
    }
    committed_ = true;
  }

 private:
  cache::Cache& cache_;
  const ModelConfig& config_;
  std::vector<cache::StateLayer>& after_;
  bool committed_ = false;
};

std::uint64_t byte_count(const std::vector<cache::StateLayer>& layers) {
  std::uint64_t bytes = 0;
  for (const cache::StateLayer& layer : layers) {
    for (const cache::NamedArray& array : layer.arrays) bytes += array.data.size();
  }
  return bytes;
}

}  // namespace

struct Decoder::State {
  State(const ModelConfig& config_in, const Weights& weights, unsigned n_threads, Scorer scorer,
        ActivationBits activations)
      : config(config_in), transformer(config_in, weights, n_threads, scorer, activations) {}

  Result<void> check(const cache::Cache& cache, std::span<const std::int32_t> ids) const;
  Result<void> append_chunk(cache::Cache& cache, std::span<const std::int32_t> ids,
                            const KvFilter& filter, const QuerySink& queries,
                            const KeepGoing& keep_going);
  Result<void> append_all(cache::Cache& cache, std::span<const std::int32_t> ids,
                          const LogitsSink& sink, const KvFilter& filter, const QuerySink& queries,
                          const Progress& progress);
  Result<void> run_again(const cache::Cache& cache, std::int64_t first, std::int64_t n,
                         const QuerySink& sink);
  Result<void> run_layer(std::size_t index, cache::Layer& layer, const KvFilter& filter);
  Result<void> give_logits(std::int64_t first, std::int64_t n, const LogitsSink& sink);

  const ModelConfig& config;
  Transformer transformer;
  std::vector<cache::StateLayer> after;  // [n_layers], states after a chunk until it is counted
};

Decoder::Decoder(const ModelConfig& config, const Weights& weights, unsigned n_threads,
                 Scorer scorer, ActivationBits activations)
    : state_(std::make_unique<State>(config, weights, n_threads, scorer, activations)) {}

Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

Result<void> Decoder::State::check(const cache::Cache& cache,
                                   std::span<const std::int32_t> ids) const {
  TQC_TRY(check_tokens_known(cache));
  if (!cache.media.empty() && cache.media.back().end() > cache.n_tokens()) {
    return unsupported("the cache ends within an image, a sound or a video");
  }
  TQC_TRY(check_layers(cache, config));
  TQC_TRY(check_ids(ids, config));
  return check_context(cache, static_cast<std::int64_t>(ids.size()), config);
}

// Appends tokens of one token block, to all layers or to none.
Result<void> Decoder::State::append_chunk(cache::Cache& cache, std::span<const std::int32_t> ids,
                                          const KvFilter& filter, const QuerySink& queries,
                                          const KeepGoing& keep_going) {
  after.resize(cache.layers.size());
  AppendGuard guard(cache, config, after);
  TQC_TRY(pack_full_tails(cache, transformer.workers().count()));
  transformer.begin(ids, cache.n_tokens(), cache::position_of(cache.media, cache.n_tokens()));
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    if (!keep_going()) return Error{ErrorCode::kInterrupted, "prefill: stopped"};
    if (const std::int64_t source = config.layer(i).source; source >= 0) {
      TQC_TRY(transformer.rerun_attention(i, *cache::attention_of(cache.layers[to_size(source)])));
      continue;
    }
    TQC_TRY(run_layer(to_size(i), cache.layers[to_size(i)], filter));
    const bool is_full = std::holds_alternative<cache::AttentionLayer>(cache.layers[to_size(i)]);
    if (queries && is_full) TQC_TRY(queries(i, transformer.queries()));
  }
  TQC_TRY(transformer.finish());
  guard.commit(ids);
  return {};
}

Result<void> Decoder::State::run_layer(std::size_t index, cache::Layer& layer,
                                       const KvFilter& filter) {
  const auto number = static_cast<std::int64_t>(index);
  if (cache::AttentionLayer* rows = cache::attention_of(layer)) {
    return transformer.run_attention(number, *rows, filter);
  }
  return transformer.run_delta_net(number, std::get<cache::StateLayer>(layer), after[index]);
}

Result<void> Decoder::State::give_logits(std::int64_t first, std::int64_t n,
                                         const LogitsSink& sink) {
  for (std::int64_t row = 0; row < n; row += kLogitRowsAtOnce) {
    const std::int64_t count = std::min(kLogitRowsAtOnce, n - row);
    TQC_TRY_ASSIGN(const std::span<const float> logits, transformer.logits(row, count));
    sink(first + row, count, logits);
  }
  return {};
}

Result<void> Decoder::State::append_all(cache::Cache& cache, std::span<const std::int32_t> ids,
                                        const LogitsSink& sink, const KvFilter& filter,
                                        const QuerySink& queries, const Progress& progress) {
  TQC_TRY(check(cache, ids));
  if (queries) TQC_TRY(check_queries(config));
  TQC_TRY(adopt_states(cache, config));
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t done = 0, n = 0; done < total; done += n) {
    n = chunk_size(cache.n_tokens(), total - done);
    TQC_TRY(append_chunk(cache, ids.subspan(to_size(done), to_size(n)), filter, queries,
                         [&] { return !progress || progress(to_u64(done), to_u64(total)); }));
    if (sink) TQC_TRY(give_logits(done, n, sink));
  }
  if (progress) progress(to_u64(total), to_u64(total));
  return {};
}

Result<std::span<const float>> Decoder::prefill(cache::Cache& cache,
                                                std::span<const std::int32_t> ids,
                                                const Progress& progress) {
  assert(!ids.empty());
  TQC_TRY(state_->append_all(cache, ids, {}, {}, {}, progress));
  return state_->transformer.logits(0, 1);
}

Result<void> Decoder::prefill_all_logits(cache::Cache& cache, std::span<const std::int32_t> ids,
                                         const LogitsSink& sink, const Progress& progress,
                                         const KvFilter& filter, const QuerySink& queries) {
  assert(!ids.empty());
  return state_->append_all(cache, ids, sink, filter, queries, progress);
}

Result<std::span<const float>> Decoder::decode_step(cache::Cache& cache, std::int32_t id) {
  return prefill(cache, {&id, 1});
}

// Reruns tokens that the cache holds over its contents up to them.
Result<void> Decoder::State::run_again(const cache::Cache& cache, std::int64_t first,
                                       std::int64_t n, const QuerySink& sink) {
  TQC_TRY(check_tokens_known(cache));
  if (sink) TQC_TRY(check_queries(config));
  const auto ids = std::span(cache.tokens).subspan(to_size(first), to_size(n));
  TQC_TRY(check_layers(cache, config));
  TQC_TRY(check_can_run_again(cache, first, config));
  TQC_TRY(check_ids(ids, config));
  transformer.begin(ids, first, cache::position_of(cache.media, first));
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    // check_can_run_again() has refused recurrent state.
    const std::int64_t source = config.layer(i).source;
    const cache::Layer& layer = cache.layers[to_size(source < 0 ? i : source)];
    TQC_TRY(transformer.rerun_attention(i, *cache::attention_of(layer)));
    const bool is_full = std::holds_alternative<cache::AttentionLayer>(layer);
    if (sink && is_full && source < 0) TQC_TRY(sink(i, transformer.queries()));
  }
  return transformer.finish();
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

std::uint64_t Decoder::scratch_bytes() const {
  return state_->transformer.scratch_bytes() + byte_count(state_->after);
}

namespace {

Result<void> check_shape(cache::HeadShape own, std::int64_t value_dim, cache::HeadShape model,
                         const ModelConfig& config) {
  if (value_dim != config.value_dim()) {
    const auto of_values = [](std::int64_t k, std::int64_t v) {
      return "keys of " + std::to_string(k) + " components and values of " +
             std::to_string(v == 0 ? k : v);
    };
    return mismatch(of_values(own.head_dim, value_dim) + "; the model has " +
                    of_values(model.head_dim, config.value_dim()));
  }
  if (own == model) return {};
  return mismatch(std::to_string(own.n_kv_heads) + " kv heads of " + std::to_string(own.head_dim) +
                  " components; the model has " + std::to_string(model.n_kv_heads) + " of " +
                  std::to_string(model.head_dim));
}

// The properties of a layer, loaded or described, that have to agree with the model.
struct LayerShape {
  enum class Kind { kFull, kWindow, kState } kind = Kind::kState;
  cache::HeadShape shape = {};
  std::int64_t value_dim = 0;  // cache::AttentionDesc::value_dim
  cache::Window window = {};
};

template <class Attention, class Window, class State, class Layer>
LayerShape shape_of_any(const Layer& layer) {
  using Kind = LayerShape::Kind;
  return std::visit(Overload{[](const Attention& full) {
                               return LayerShape{Kind::kFull, full.shape, full.value_dim, {}};
                             },
                             [](const Window& window) {
                               return LayerShape{Kind::kWindow, window.attention.shape,
                                                 window.attention.value_dim, window.window};
                             },
                             [](const State&) { return LayerShape{}; }},
                    layer);
}

LayerShape shape_of(const cache::Layer& layer) {
  return shape_of_any<cache::AttentionLayer, cache::WindowLayer, cache::StateLayer>(layer);
}
LayerShape shape_of(const cache::LayerDesc& layer) {
  return shape_of_any<cache::AttentionDesc, cache::WindowDesc, cache::StateDesc>(layer);
}

Result<void> check_full(const LayerShape& layer, cache::HeadShape heads,
                        const ModelConfig& config) {
  if (layer.kind == LayerShape::Kind::kFull) {
    return check_shape(layer.shape, layer.value_dim, heads, config);
  }
  const bool is_window = layer.kind == LayerShape::Kind::kWindow;
  return invalid(std::string(is_window ? "a rotating" : "an arrays") +
                 " layer, which this model does not have");
}

// Accepts a window of the model's size, or of one token less: other programs do not count the token
// that is being computed.
Result<void> check_window(const LayerShape& layer, const LayerConfig& wanted,
                          const ModelConfig& config) {
  const std::int64_t size = wanted.window;
  if (layer.kind != LayerShape::Kind::kWindow) {
    const bool is_full = layer.kind == LayerShape::Kind::kFull;
    return mismatch(std::string(is_full ? "full attention" : "an arrays layer") +
                    "; the model has a window of " + std::to_string(size) + " tokens");
  }
  const cache::Window& window = layer.window;
  TQC_TRY(check_shape(layer.shape, layer.value_dim, wanted.heads, config));
  if (window.keep == 0 && (window.size == size || window.size + 1 == size)) return {};
  return mismatch("a window of " + std::to_string(window.size) + " tokens, " +
                  std::to_string(window.keep) + " of them the first ones; the model has one of " +
                  std::to_string(size));
}

Result<void> check_delta_net(const LayerShape& layer) {
  if (layer.kind == LayerShape::Kind::kState) return {};
  const bool is_full = layer.kind == LayerShape::Kind::kFull;
  return mismatch(std::string(is_full ? "full attention" : "a rotating layer") +
                  "; the model has a gated delta net");
}

Result<void> check_layer(const LayerShape& layer, const LayerConfig& wanted,
                         const ModelConfig& config) {
  if (wanted.kind == LayerKind::kDeltaNet) return check_delta_net(layer);
  if (wanted.window > 0) return check_window(layer, wanted, config);
  return check_full(layer, wanted.heads, config);
}

Result<void> check_again(const cache::Layer& layer, const LayerConfig& wanted, std::int64_t first,
                         std::int64_t n_tokens) {
  if (wanted.kind == LayerKind::kDeltaNet) {
    return unsupported(
        "keeps the state behind the last token alone, which cannot be computed"
        " again; give a token to go on with");
  }
  if (wanted.window == 0) return {};
  const cache::Window& window = std::get<cache::WindowLayer>(layer).window;
  const std::int64_t oldest = std::max<std::int64_t>(first + 1 - wanted.window, 0);
  if (oldest >= cache::window_begin(window, n_tokens)) return {};
  return unsupported("keeps a window that has left what token " + std::to_string(first) +
                     " has seen; give a token to go on with");
}

template <class Layer, class Check>
Result<void> for_layers(std::span<const Layer> layers, const ModelConfig& config,
                        const Check& check) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto checked = check(layers[i], config.layer(static_cast<std::int64_t>(i)));
    if (!checked) return in_context("layer " + std::to_string(i), std::move(checked).error());
  }
  return {};
}

// A cache of transformers has a layer without anything for each that reads an earlier one's keys.
template <class State, class Layer>
std::span<const Layer> without_empty(std::span<const Layer> layers, const ModelConfig& config) {
  while (std::ssize(layers) > config.n_cache_layers() && std::ssize(layers) <= config.n_layers) {
    const State* const state = std::get_if<State>(&layers.back());
    if (state == nullptr || !state->arrays.empty()) break;
    layers = layers.first(layers.size() - 1);
  }
  return layers;
}

template <class State, class Layer>
Result<void> check_all(std::span<const Layer> all, const ModelConfig& config) {
  const std::span<const Layer> layers = without_empty<State>(all, config);
  if (std::ssize(layers) != config.n_cache_layers()) {
    return mismatch("cache of " + std::to_string(layers.size()) + " layers; the model has " +
                    std::to_string(config.n_cache_layers()));
  }
  return for_layers(layers, config, [&](const Layer& layer, const LayerConfig& wanted) {
    return check_layer(shape_of(layer), wanted, config);
  });
}

}  // namespace

Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config) {
  return check_all<cache::StateLayer>(std::span<const cache::Layer>(cache.layers), config);
}

Result<void> check_layers(std::span<const cache::LayerDesc> layers, const ModelConfig& config) {
  return check_all<cache::StateDesc>(layers, config);
}

Result<void> check_fits(const cache::CacheDesc& cache, const Model& model) {
  TQC_TRY(cache::check_identity(cache.identity, model.identity));
  return check_layers(cache.layers, model.config);
}

Result<void> check_can_run_again(const cache::Cache& cache, std::int64_t first,
                                 const ModelConfig& config) {
  const std::span<const cache::Layer> all = cache.layers;
  const auto layers = without_empty<cache::StateLayer>(all, config);
  return for_layers(layers, config, [&](const cache::Layer& layer, const LayerConfig& wanted) {
    return check_again(layer, wanted, first, cache.n_tokens());
  });
}

}  // namespace tqcache::model
