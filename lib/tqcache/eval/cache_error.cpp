#include "tqcache/eval/cache_error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/linear/kernels.h"

namespace tqcache::eval {
namespace {

using cache::kTokenBlock;

// Attention of one query over one cache, as far as it has got: sums of weights and of weighted
// values, each divided by exp(max).
struct Running {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> out;  // [head_dim]

  // Gives what the sums so far, and any others like them, are to be multiplied with.
  double raise(double score) {
    if (score <= max) return 1;
    const double factor = std::exp(max - score);
    max = score;
    sum *= factor;
    for (double& value : out) value *= factor;
    return factor;
  }
  void add(double score, std::span<const float> value) {
    const double weight = std::exp(score - max);
    sum += weight;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * static_cast<double>(value[i]);
  }
};

// One query over both caches. KL(p || q) = sum p (s_a - s_b) - log Z_a + log Z_b, so that no weight
// need be kept.
struct QueryPair {
  Running a, b;
  double score_gap = 0;  // sum of exp(s_a - a.max) (s_a - s_b)

  void add(double score_a, std::span<const float> value_a, double score_b,
           std::span<const float> value_b) {
    score_gap *= a.raise(score_a);
    b.raise(score_b);
    a.add(score_a, value_a);
    b.add(score_b, value_b);
    score_gap += std::exp(score_a - a.max) * (score_a - score_b);
  }
  double weights_kl() const {
    const double log_sum_a = a.max + std::log(a.sum);
    const double log_sum_b = b.max + std::log(b.sum);
    // Rounding may leave it a hair below zero.
    return std::max(0.0, score_gap / a.sum - log_sum_a + log_sum_b);
  }
};

// Keys and values of one kv head in one token block.
struct HeadBlock {
  AlignedFloats keys, values;  // [tokens, head_dim]

  void read(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
            std::int64_t kv_head) {
    const auto size = to_size(cache::tokens_in_block(n_tokens, block) * layer.shape.head_dim);
    keys.resize(size);
    values.resize(size);
    cache::read_block(layer.k, layer.shape, n_tokens, block, kv_head, keys);
    cache::read_block(layer.v, layer.shape, n_tokens, block, kv_head, values);
  }
};

// All queries of one kv head's group over the two caches.
class HeadPair {
 public:
  HeadPair(const LayerPair& layers, const LayerQueries& queries, std::int64_t kv_head)
      : layers_(layers), queries_(queries), kv_head_(kv_head) {
    const cache::HeadShape shape = layers.a.shape;
    const auto size = static_cast<std::int64_t>(queries.values.size());
    n_heads_ = size / queries.n / shape.head_dim;
    group_ = n_heads_ / shape.n_kv_heads;
    pairs_.resize(to_size(queries.n * group_));
    for (QueryPair& pair : pairs_) pair.a.out.resize(to_size(shape.head_dim));
    for (QueryPair& pair : pairs_) pair.b.out.resize(to_size(shape.head_dim));
  }

  void run() {
    const std::int64_t n_tokens = queries_.first + queries_.n;
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      block_a_.read(layers_.a, layers_.n_tokens_a, block, kv_head_);
      block_b_.read(layers_.b, layers_.n_tokens_b, block, kv_head_);
      for (std::int64_t i = 0; i < std::ssize(pairs_); ++i) add_block(i, block);
    }
  }

  // Of query head `kv_head * group + g`.
  AttentionError error(std::int64_t g) const {
    AttentionError error = {.n_queries = queries_.n};
    double squares = 0, difference = 0;
    for (std::int64_t token = 0; token < queries_.n; ++token) {
      const QueryPair& pair = pairs_[to_size(token * group_ + g)];
      error.weights_kl += pair.weights_kl() / static_cast<double>(queries_.n);
      for (std::size_t i = 0; i < pair.a.out.size(); ++i) {
        const double x = pair.a.out[i] / pair.a.sum;
        const double y = pair.b.out[i] / pair.b.sum;
        squares += x * x;
        difference += (x - y) * (x - y);
      }
    }
    error.output_error = difference == 0 ? 0 : difference / squares;
    return error;
  }
  std::int64_t group() const { return group_; }

 private:
  void add_block(std::int64_t pair, std::int64_t block) {
    const std::int64_t head_dim = layers_.a.shape.head_dim;
    const std::int64_t token = pair / group_;
    const std::int64_t head = kv_head_ * group_ + pair % group_;
    const float* const q = queries_.values.data() + (token * n_heads_ + head) * head_dim;
    const std::int64_t visible = queries_.first + token + 1;
    const std::int64_t n = std::min(kTokenBlock, visible - block * kTokenBlock);
    const double scale = queries_.scores ? double{queries_.scores->scale}
                                         : 1 / std::sqrt(static_cast<double>(head_dim));
    const double cap = queries_.scores ? double{queries_.scores->cap} : 0;
    for (std::int64_t key = 0; key < n; ++key) {
      const std::size_t at = to_size(key * head_dim);
      const auto row = [&](const AlignedFloats& rows) {
        return std::span(rows).subspan(at, to_size(head_dim));
      };
      const auto score = [&](const AlignedFloats& keys) {
        const double plain = scale * static_cast<double>(model::best_kernels().dot_f32(
                                         std::as_bytes(row(keys)).data(), q, to_size(head_dim)));
        return cap > 0 ? cap * std::tanh(plain / cap) : plain;
      };
      pairs_[to_size(pair)].add(score(block_a_.keys), row(block_a_.values), score(block_b_.keys),
                                row(block_b_.values));
    }
  }

  const LayerPair& layers_;
  const LayerQueries& queries_;
  std::int64_t kv_head_;
  std::int64_t n_heads_ = 0;
  std::int64_t group_ = 0;
  HeadBlock block_a_, block_b_;
  std::vector<QueryPair> pairs_;  // [n, group]
};

struct Range {
  std::int64_t first;
  std::int64_t n;
};

// The last tokens of `n_tokens` that stand in one block: at least two, so that they go through the
// decoder as a chunk, which may end inside a packed block.
Result<Range> last_tokens(std::int64_t n_tokens, std::int64_t wanted) {
  if (n_tokens < 2) {
    return Error{ErrorCode::kInvalidArgument, "fewer than two tokens in common"};
  }
  const std::int64_t end = n_tokens % kTokenBlock == 1 ? n_tokens - 1 : n_tokens;
  const std::int64_t in_block = (end - 1) % kTokenBlock + 1;
  const std::int64_t n = std::clamp<std::int64_t>(wanted, 2, in_block);
  return Range{end - n, n};
}

}  // namespace

std::vector<AttentionError> attention_errors(const LayerPair& layers, const LayerQueries& queries,
                                             unsigned n_threads) {
  const std::int64_t n_kv_heads = layers.a.shape.n_kv_heads;
  std::vector<std::vector<AttentionError>> groups(to_size(n_kv_heads));
  parallel_for(groups.size(), n_threads, [&](std::size_t kv_head) {
    HeadPair pair(layers, queries, static_cast<std::int64_t>(kv_head));
    pair.run();
    for (std::int64_t g = 0; g < pair.group(); ++g) groups[kv_head].push_back(pair.error(g));
  });
  std::vector<AttentionError> heads;
  for (const auto& group : groups) heads.insert(heads.end(), group.begin(), group.end());
  return heads;
}

Result<std::vector<LayerAttentionError>> attention_errors(
    const model::Model& model, const cache::Cache& a, const cache::Cache& b, std::int64_t n_queries,
    unsigned n_threads, const Progress& progress) {
  TQC_TRY(cache::check_identity(a, model.identity));
  TQC_TRY_ASSIGN(const Range range, last_tokens(std::min(a.n_tokens(), b.n_tokens()), n_queries));
  std::vector<LayerAttentionError> errors;
  std::optional<model::ScoreParams> scores;
  if (model.config.attention_scale > 0 || model.config.attention_cap > 0) {
    scores = {model.config.score_scale(), model.config.attention_cap};
  }
  const auto sink = [&](std::int64_t layer, std::span<const float> queries) -> Result<void> {
    if (progress && !progress(static_cast<std::uint64_t>(layer), a.layers.size())) {
      return Error{ErrorCode::kInterrupted, "stopped"};
    }
    const auto at = to_size(layer);
    const LayerPair pair = {std::get<cache::AttentionLayer>(a.layers[at]), a.n_tokens(),
                            std::get<cache::AttentionLayer>(b.layers[at]), b.n_tokens()};
    errors.push_back(
        {layer, attention_errors(pair, {range.first, range.n, queries, scores}, n_threads)});
    return {};
  };
  model::Decoder decoder(model, n_threads);
  TQC_TRY(decoder.queries(a, range.first, range.n, sink));
  return errors;
}

}  // namespace tqcache::eval
