#include "cli/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>

#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::cli {
namespace {

constexpr double kPackedLimit =
    3.3;  // twice the bound sqrt(sqrt(3) pi / 2) 2^-b of arXiv 2504.19874

// The valid head vectors of the last block from its token `first` on, head by head.
std::vector<float> last_rows(const cache::Tensor& tensor, cache::HeadShape shape,
                             std::int64_t n_tokens, std::int64_t first) {
  const std::int64_t block = cache::block_count(n_tokens) - 1;
  const std::int64_t n_valid = cache::tokens_in_block(n_tokens, block);
  std::vector<float> head(static_cast<std::size_t>(n_valid * shape.head_dim));
  std::vector<float> rows;
  for (std::int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
    cache::read_block(tensor, shape, n_tokens, block, kv_head, head);
    rows.insert(rows.end(), head.begin() + first * shape.head_dim, head.end());
  }
  return rows;
}

struct LayerRows {
  std::vector<float> k;
  std::vector<float> v;
};

// Of recurrent state, which is to be in our layout, all values.
std::vector<LayerRows> last_rows(const cache::Cache& cache, std::int64_t first) {
  std::vector<LayerRows> rows;
  for (const cache::Layer& any : cache.layers) {
    if (const auto* state = std::get_if<cache::StateLayer>(&any)) {
      const auto inputs = model::convolution_inputs(*state);
      const auto matrices = model::head_matrices(*state);
      rows.push_back({{inputs.begin(), inputs.end()}, {matrices.begin(), matrices.end()}});
      continue;
    }
    const cache::AttentionLayer* const layer = cache::attention_of(any);
    rows.push_back({last_rows(layer->k, layer->shape, cache.n_tokens(), first),
                    last_rows(layer->v, layer->value_shape(), cache.n_tokens(), first)});
  }
  return rows;
}

double relative_error(std::span<const float> old_rows, std::span<const float> new_rows) {
  double error = 0;
  double length = 0;
  for (std::size_t i = 0; i < old_rows.size(); ++i) {
    const double difference = double{new_rows[i]} - double{old_rows[i]};
    error += difference * difference;
    length += double{old_rows[i]} * double{old_rows[i]};
  }
  return error == 0 ? 0 : std::sqrt(error / length);
}

// Codes of mode trellis have an error of at most .55 steps; the bound of mode mse is 1.65 * 2^-b.
int bits_of_step(double step) { return static_cast<int>(std::floor(std::log2(3 / step))); }

// The number of bits of mode mse with at least the error of this codec. The residual's bit does not
// count, and evenly spaced centroids count as one bit less.
int least_bits(const cache::KvCodec& codec) {
  int bits = codec::kMaxBits;
  for (const codec::PartSpec& part : codec.parts()) {
    if (part.of_residual) continue;
    bits =
        std::min(bits, part.scale == codec::ScaleRule::kStep ? bits_of_step(double{part.step})
                                                             : part.bits - (part.has_bias ? 1 : 0));
  }
  return bits;
}

// Fewest bits of any quantized block; nullopt if everything is dense.
std::optional<int> fewest_bits(const cache::Cache& cache) {
  std::optional<int> fewest;
  const auto look = [&](const cache::Tensor& tensor) {
    const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
    if (turbo == nullptr || turbo->packed.empty()) return;
    fewest = std::min(fewest.value_or(codec::kMaxBits), least_bits(turbo->codec));
  };
  for (const cache::Layer& layer : cache.layers) {
    if (const cache::AttentionLayer* rows = cache::attention_of(layer)) {
      look(rows->k);
      look(rows->v);
    }
  }
  return fewest;
}

bool last_block_is_dense(const cache::Tensor& tensor, std::int64_t n_tokens) {
  return cache::packed_block_count(tensor) < cache::block_count(n_tokens);
}

double limit_of(double dense, std::optional<int> bits, double packed = kPackedLimit) {
  return std::min(1.0, dense + (bits ? std::ldexp(packed, -*bits) : 0));
}

// Layers with their limits, before the comparison. Errors of keys and of values are independent,
// but of latent attention, where both follow from one latent: there they add up to 2 and not
// sqrt(2) of one of them in what a layer adds.
std::vector<ProbeLayer> layer_limits(const cache::Cache& cache, const model::ModelConfig& config,
                                     double dense) {
  const std::optional<int> bits = fewest_bits(cache);
  const double of_both = config.latent.rank > 0 ? std::numbers::sqrt2 : 1.0;
  const double packed = limit_of(dense, bits, of_both * kPackedLimit);
  std::vector<ProbeLayer> layers;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const cache::AttentionLayer* const layer = cache::attention_of(cache.layers[i]);
    if (layer == nullptr) {
      layers.push_back({static_cast<std::int64_t>(i), 0, 0, true, packed, packed});
      continue;
    }
    const auto limit = [&](const cache::Tensor& tensor) {
      return i == 0 && last_block_is_dense(tensor, cache.n_tokens()) ? dense : packed;
    };
    layers.push_back({static_cast<std::int64_t>(i), 0, 0, false, limit(layer->k), limit(layer->v)});
  }
  return layers;
}

// Unrelated values differ by 1.4.
constexpr double kWrongTokenLimit = 1.2;

// Keys and values of layer 0 for one token block, as of a prompt that begins with it, in f32.
class FirstLayer {
 public:
  FirstLayer(const model::Model& model, unsigned n_threads)
      : config_(first_layer_of(model.config)), decoder_(config_, *model.weights, n_threads) {}

  Result<cache::Cache> compute(std::span<const std::int32_t> ids) {
    TQC_TRY_ASSIGN(cache::Cache made, model::make_cache(config_, {}, Dtype::kF32));
    TQC_TRY(decoder_.prefill_all_logits(made, ids, {}));
    return made;
  }

 private:
  static model::ModelConfig first_layer_of(model::ModelConfig config) {
    config.n_layers = 1;
    if (!config.layers.empty()) {
      config.layers.resize(1);
      config.layers[0].window = 0;  // keys and values do not depend on it, and none shall be lost
    }
    config.context_length = std::max(config.context_length, cache::kTokenBlock);
    return config;
  }

  model::ModelConfig config_;
  model::Decoder decoder_;
};

// Turns a row that the model made for a position by `by` tokens. In latent attention V turns, with
// components that rotate together as neighbors, and K does not.
void turn_row(const model::ModelConfig& config, bool is_keys, std::int64_t by,
              std::span<float> row) {
  const cache::Rope rope = config.layer(0).rope;
  if (config.latent.rank == 0) {
    if (is_keys) cache::rotate(rope, by, row);
    return;
  }
  if (is_keys) return;
  const auto bytes = std::as_writable_bytes(row);
  interop::neighbors_to_halves(row.size(), sizeof(float), bytes);
  cache::rotate(rope, by, row);
  interop::halves_to_neighbors(row.size(), sizeof(float), bytes);
}

// The first token of a block, from `first_token` on, whose rows differ. The keys that the model
// made are for positions from 0 on and are turned to those of the cache.
std::optional<std::int64_t> find_different(const cache::AttentionLayer& own,
                                           const cache::AttentionLayer& made, std::int64_t block,
                                           std::int64_t n_tokens, std::int64_t first_token,
                                           const model::ModelConfig& config, double dense_limit) {
  const std::int64_t n = cache::tokens_in_block(n_tokens, block);
  std::vector<double> errors(static_cast<std::size_t>(n));
  std::vector<double> lengths(errors.size());
  for (const bool is_keys : {true, false}) {
    const cache::Tensor& tensor = is_keys ? own.k : own.v;
    const cache::HeadShape shape = is_keys ? own.shape : own.value_shape();
    const auto head_dim = static_cast<std::size_t>(shape.head_dim);
    std::vector<float> own_head(static_cast<std::size_t>(n) * head_dim);
    std::vector<float> made_head(own_head.size());
    const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
    const bool is_packed = block < cache::packed_block_count(tensor);
    const double expected =
        limit_of(dense_limit, is_packed ? std::optional(least_bits(turbo->codec)) : std::nullopt);
    const double limit = std::min(4 * expected, kWrongTokenLimit);
    std::ranges::fill(errors, 0);
    std::ranges::fill(lengths, 0);
    for (std::int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      cache::read_block(tensor, shape, n_tokens, block, kv_head, own_head);
      cache::read_block(is_keys ? made.k : made.v, shape, n, 0, kv_head, made_head);
      for (std::size_t token = 0; token < errors.size(); ++token) {
        const auto row = std::span(made_head).subspan(token * head_dim, head_dim);
        turn_row(config, is_keys, block * cache::kTokenBlock, row);
        for (std::size_t i = 0; i < head_dim; ++i) {
          const double was = own_head[token * head_dim + i];
          errors[token] += (row[i] - was) * (row[i] - was);
          lengths[token] += was * was;
        }
      }
    }
    for (std::size_t token = 0; token < errors.size(); ++token) {
      // Zeros were not computed: complaint() has words for it.
      const bool is_left = block * cache::kTokenBlock + std::int64_t(token) < first_token;
      if (is_left || lengths[token] == 0 || errors[token] <= limit * limit * lengths[token])
        continue;
      return block * cache::kTokenBlock + static_cast<std::int64_t>(token);
    }
  }
  return std::nullopt;
}

Result<std::optional<std::int64_t>> find_wrong_token(const cache::Cache& cache,
                                                     const model::Model& model, double dense_limit,
                                                     unsigned n_threads) {
  const cache::AttentionLayer* const own = cache::attention_of(cache.layers[0]);
  std::optional<std::int64_t> wrong;
  if (own == nullptr || model.config.layer(0).kind != model::LayerKind::kAttention) return wrong;
  const cache::Rope rope = model.config.layer(0).rope;
  const bool turns = rope.style != cache::RopeStyle::kNone && model.config.latent.rank == 0;
  if (turns && !cache::can_rotate(rope, own->shape.head_dim)) return wrong;  // pairs that stay
  FirstLayer first(model, n_threads);
  const std::span<const std::int32_t> ids = cache.tokens;
  const std::int64_t first_token = cache::first_token(cache.layers[0], cache.n_tokens());
  for (std::int64_t block = first_token / cache::kTokenBlock;
       block < cache::block_count(cache.n_tokens()) && !wrong; ++block) {
    TQC_TRY_ASSIGN(const cache::Cache made,
                   first.compute(ids.subspan(
                       static_cast<std::size_t>(block * cache::kTokenBlock),
                       static_cast<std::size_t>(cache::tokens_in_block(cache.n_tokens(), block)))));
    wrong = find_different(*own, std::get<cache::AttentionLayer>(made.layers[0]), block,
                           cache.n_tokens(), first_token, model.config, dense_limit);
  }
  return wrong;
}

// The error of the inputs of the convolution in layer 0, which are those of the last tokens alone.
// nullopt: layer 0 has none, or fewer tokens than that are there.
Result<std::optional<double>> error_of_first_inputs(const cache::Cache& cache,
                                                    const model::Model& model, unsigned n_threads) {
  const auto* own = std::get_if<cache::StateLayer>(&cache.layers[0]);
  const std::int64_t n_inputs = model.config.delta_net.kernel - 1;
  if (own == nullptr || n_inputs < 1 || cache.n_tokens() < n_inputs) return std::optional<double>();
  FirstLayer first(model, n_threads);
  TQC_TRY_ASSIGN(const cache::Cache made,
                 first.compute(std::span(cache.tokens).last(static_cast<std::size_t>(n_inputs))));
  const auto& again = std::get<cache::StateLayer>(made.layers[0]);
  return std::optional(
      relative_error(model::convolution_inputs(*own), model::convolution_inputs(again)));
}

// Appends those of `tokens` that the cache does not have, also beyond the context of the model.
Result<void> compute_rest(cache::Cache& cache, std::span<const std::int32_t> tokens,
                          const model::Model& model, unsigned n_threads, const Progress& progress) {
  model::ModelConfig config = model.config;
  config.context_length = std::max<std::int64_t>(config.context_length, std::ssize(tokens));
  model::Decoder decoder(config, *model.weights, n_threads);
  const auto rest = tokens.subspan(static_cast<std::size_t>(cache.n_tokens()));
  TQC_TRY(decoder.prefill(cache, rest, progress));
  return {};
}

void compare(const std::vector<LayerRows>& old_rows, const std::vector<LayerRows>& new_rows,
             ProbeReport& report) {
  for (std::size_t i = 0; i < old_rows.size(); ++i) {
    report.layers[i].k_error = relative_error(old_rows[i].k, new_rows[i].k);
    report.layers[i].v_error = relative_error(old_rows[i].v, new_rows[i].v);
  }
}

// Caches of transformers have empty layers for those that read an earlier one's keys.
// Requires: model::check_layers().
void drop_empty_layers(cache::Cache& cache, const model::ModelConfig& config) {
  const auto n = std::min<std::int64_t>(config.n_cache_layers(), std::ssize(cache.layers));
  cache.layers.erase(cache.layers.begin() + n, cache.layers.end());
}

// Of a cache whose last tokens cannot be computed again: those of media.
ProbeReport nothing_compared(const cache::Cache& cache) {
  ProbeReport report;
  report.scope = ProbeScope::kNothing;
  report.first_token = cache.n_tokens();
  return report;
}

bool is_in_blocks(const model::Matrix& matrix) {
  using tensors::TensorType;
  return matrix.n_rows > 0 && matrix.type != TensorType::kF32 && matrix.type != TensorType::kF16 &&
         matrix.type != TensorType::kBF16;
}

}  // namespace

double foreign_limit(const model::Model& model, bool is_quantized) {
  if (is_quantized) return kForeignQuantizedLimit;
  const bool has_blocks =
      std::ranges::any_of(model.weights->layers, [](const model::LayerWeights& layer) {
        return is_in_blocks(layer.attention.v) || is_in_blocks(layer.latent.kv_a) ||
               is_in_blocks(layer.ffn.down);
      });
  return has_blocks ? kForeignBlocksLimit : kForeignLimit;
}

Result<void> check_token_ids(const cache::CacheDesc& cache, const model::ModelConfig& config) {
  if (cache.hidden_tokens) return {};
  // Tokens of media have no ids of the vocabulary.
  const auto is_beyond = [&](std::int32_t id) {
    return id >= config.vocab_size || id == cache::kUnknownToken;
  };
  const auto found = std::ranges::find_if(cache.tokens, is_beyond);
  if (found == cache.tokens.end()) return {};
  return Error{ErrorCode::kMismatch,
               fmt::format("token {}: id {}; the model has {} tokens", found - cache.tokens.begin(),
                           *found, config.vocab_size)};
}

std::string_view name_of(ProbeScope scope) {
  switch (scope) {
    case ProbeScope::kLastTokens:
      return "last_tokens";
    case ProbeScope::kWhole:
      return "whole";
    case ProbeScope::kFirstLayer:
      return "first_layer";
    case ProbeScope::kNothing:
      break;
  }
  return "nothing";
}

double largest_error(const ProbeReport& report) {
  double largest = 0;
  for (const ProbeLayer& layer : report.layers) {
    // This form of the comparison also catches NaN.
    if (!(layer.k_error <= largest)) largest = layer.k_error;
    if (!(layer.v_error <= largest)) largest = layer.v_error;
  }
  return largest;
}

std::optional<std::string> ProbeReport::complaint() const {
  const auto tell = [&](std::int64_t layer, std::string_view tensor, double error, double limit) {
    if (std::isinf(error)) {
      return fmt::format(
          "layer {} {}: all values of the last {} tokens are zero: they were not computed "
          "(llama.cpp saves a sequence like this if it was only copied, with llama_memory_seq_cp)",
          layer, tensor, n_tokens);
    }
    return fmt::format(
        "layer {} {}: the last {} tokens, recomputed, differ by {:.2g} (relative; limit {:.2g})",
        layer, tensor, n_tokens, error, limit);
  };
  for (const ProbeLayer& layer : layers) {
    // This form of the comparison also catches NaN.
    if (!(layer.k_error <= layer.k_limit)) {
      return tell(layer.layer, layer.is_state ? "convolution" : "k", layer.k_error, layer.k_limit);
    }
    if (!(layer.v_error <= layer.v_limit)) {
      return tell(layer.layer, layer.is_state ? "state" : "v", layer.v_error, layer.v_limit);
    }
  }
  if (wrong_token) {  // the last tokens are right
    return fmt::format("token {}: its keys and values in layer 0 are those of another token id",
                       *wrong_token);
  }
  return std::nullopt;
}

bool can_probe(const cache::Cache& cache) {
  return cache.n_tokens() == 0 ||
         cache::check_truncate(cache::describe(cache), cache.n_tokens() - 1).ok();
}

bool has_full_attention_alone(const model::ModelConfig& config) {
  return std::ranges::all_of(config.layers, [](const model::LayerConfig& layer) {
    return layer.kind == model::LayerKind::kAttention && layer.window == 0;
  });
}

Result<ProbeReport> probe(cache::Cache cache, const model::Model& model, std::int64_t n_last,
                          double dense_limit, unsigned n_threads, const Progress& progress) {
  drop_empty_layers(cache, model.config);
  const std::int64_t n_tokens = cache.n_tokens();
  if (n_tokens == 0) return Error{ErrorCode::kInvalidArgument, "the cache holds no token to probe"};
  const std::int64_t block_first = (cache::block_count(n_tokens) - 1) * cache::kTokenBlock;
  ProbeReport report;
  if (!cache.media.empty()) {  // only the text behind them can be computed
    n_last = std::min(n_last, n_tokens - cache.media.back().end());
    if (n_last <= 0) return nothing_compared(cache);
  }
  report.first_token = std::max(block_first, n_tokens - n_last);
  report.n_tokens = n_tokens - report.first_token;
  report.layers = layer_limits(cache, model.config, dense_limit);

  const std::int64_t first_in_block = report.first_token - block_first;
  const std::vector<LayerRows> old_rows = last_rows(cache, first_in_block);
  if (cache.media.empty()) {
    TQC_TRY_ASSIGN(report.wrong_token, find_wrong_token(cache, model, dense_limit, n_threads));
  }
  const std::vector<std::int32_t> tokens = cache.tokens;
  TQC_TRY_ASSIGN(cache::Cache again, cache::truncate(std::move(cache), report.first_token));
  TQC_TRY(compute_rest(again, tokens, model, n_threads, progress));
  compare(old_rows, last_rows(again, first_in_block), report);
  return report;
}

std::optional<std::int64_t> tokens_of_earlier_state(const cache::CacheReader& cache) {
  constexpr std::int64_t kMostBehind = 4096;  // an answer, and not a long prompt
  const std::int64_t n = cache::last_state_before(cache, cache.n_tokens() - 1);
  if (n <= 0 || cache.n_tokens() - n > kMostBehind) return std::nullopt;
  return n;
}

Result<ProbeReport> probe_behind(cache::Cache earlier, cache::Cache cache,
                                 const model::Model& model, std::int64_t n_last, double dense_limit,
                                 unsigned n_threads, const Progress& progress) {
  drop_empty_layers(cache, model.config);
  drop_empty_layers(earlier, model.config);
  const std::int64_t n_tokens = cache.n_tokens();
  assert(earlier.n_tokens() < n_tokens);
  if (!cache.media.empty() && cache.media.back().end() > earlier.n_tokens()) {
    return nothing_compared(cache);
  }
  const std::int64_t block_first = (cache::block_count(n_tokens) - 1) * cache::kTokenBlock;
  ProbeReport report;
  report.first_token = std::max({block_first, n_tokens - n_last, earlier.n_tokens()});
  for (cache::Layer& layer : cache.layers) {
    report.first_token = std::max(report.first_token, cache::first_token(layer, n_tokens));
    if (auto* const state = std::get_if<cache::StateLayer>(&layer)) {
      TQC_TRY(model::adopt_delta_state(model.config, *state));
    }
  }
  report.n_tokens = n_tokens - report.first_token;
  report.layers = layer_limits(cache, model.config, dense_limit);
  if (cache.media.empty()) {
    TQC_TRY_ASSIGN(report.wrong_token, find_wrong_token(cache, model, dense_limit, n_threads));
  }
  TQC_TRY(compute_rest(earlier, cache.tokens, model, n_threads, progress));
  const std::int64_t first_in_block = report.first_token - block_first;
  compare(last_rows(cache, first_in_block), last_rows(earlier, first_in_block), report);
  return report;
}

Result<ProbeReport> probe_alone(cache::Cache cache, const model::Model& model, std::int64_t n_last,
                                double dense_limit, unsigned n_threads, const Progress& progress) {
  constexpr std::int64_t kMostWhole = 1024;
  if (cache.n_tokens() == 0) {
    return Error{ErrorCode::kInvalidArgument, "the cache holds no token to probe"};
  }
  const double limit = std::max(dense_limit, std::min(4 * dense_limit, 0.5));
  if (!cache.media.empty()) return nothing_compared(cache);
  if (cache.n_tokens() <= kMostWhole) {
    TQC_TRY_ASSIGN(cache::Cache empty, model::make_cache(model, Dtype::kF32));
    TQC_TRY_ASSIGN(ProbeReport report, probe_behind(std::move(empty), std::move(cache), model,
                                                    n_last, limit, n_threads, progress));
    report.scope = ProbeScope::kWhole;
    return report;
  }
  ProbeReport report;
  report.scope = ProbeScope::kNothing;
  if (auto* const state = std::get_if<cache::StateLayer>(&cache.layers[0])) {
    TQC_TRY(model::adopt_delta_state(model.config, *state));
    TQC_TRY_ASSIGN(const auto error, error_of_first_inputs(cache, model, n_threads));
    if (!error) return report;
    report.scope = ProbeScope::kFirstLayer;
    report.n_tokens = model.config.delta_net.kernel - 1;
    report.layers.push_back({0, *error, 0, true, limit, limit});
  } else if (cache::attention_of(cache.layers[0]) != nullptr) {
    TQC_TRY_ASSIGN(report.wrong_token, find_wrong_token(cache, model, dense_limit, n_threads));
    report.scope = ProbeScope::kFirstLayer;
    report.n_tokens = cache.n_tokens() - cache::first_token(cache.layers[0], cache.n_tokens());
  }
  report.first_token = cache.n_tokens() - report.n_tokens;
  return report;
}

Result<double> error_of_beginning(const cache::Cache& cache, const model::Model& model,
                                  unsigned n_threads) {
  std::int64_t n = std::min(cache.n_tokens(), cache::kTokenBlock);
  if (!cache.media.empty()) n = std::min(n, cache.media.front().begin);
  if (n == 0) return 0.0;
  TQC_TRY_ASSIGN(cache::Cache first, cache::truncate(cache, n));
  TQC_TRY_ASSIGN(cache::Cache empty, model::make_cache(model, Dtype::kF32));
  TQC_TRY(compute_rest(empty, first.tokens, model, n_threads, {}));
  ProbeReport report;
  report.layers.resize(first.layers.size());
  compare(last_rows(first, 0), last_rows(empty, 0), report);
  return largest_error(report);
}

}  // namespace tqcache::cli
