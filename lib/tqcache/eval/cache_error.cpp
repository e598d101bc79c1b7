#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/eval/attention_error.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::eval {
namespace {

using cache::kTokenBlock;

// Attention of one query over the keys of one cache so far: sums of weights and of weighted values,
// each divided by exp(max).
struct Running {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> out;  // [head_dim]

  // Raises max to `score` and returns the factor by which existing sums have to be multiplied.
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

// One query over both caches. Computes KL(p || q) = sum p (s_a - s_b) - log Z_a + log Z_b, which
// needs no stored weights.
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
    // Rounding can make the result slightly negative.
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

  // The error of query head `kv_head * group + g`.
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

// The last tokens of `n_tokens` within one token block: at least two, so that the decoder processes
// them as a chunk, which may end inside a quantized block.
Result<Range> last_tokens(std::int64_t n_tokens, std::int64_t wanted) {
  if (n_tokens < 2) {
    return invalid("the caches have fewer than two tokens in common");
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
      return interrupted_error();
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

namespace {

using cache::Difference;
using cache::LayerDifference;

Cell number(double value, int decimals) { return Number{value, decimals}; }

void add_difference(const std::string& layer, const std::string& head, const Difference& k,
                    const Difference& v, Table& table) {
  std::vector<Cell> row = {layer, head};
  for (const Difference& tensor : {k, v}) {
    row.push_back(number(tensor.relative_mse, 6));
    row.push_back(number(tensor.mean_cosine, 6));
    row.push_back(number(tensor.min_cosine, 6));
    row.push_back(number(tensor.max_abs, 4));
  }
  table.rows.push_back(std::move(row));
}

Table empty_table(std::string title) {
  return {std::move(title),
          {"layer", "kv head", "k rel. mse", "k cosine", "k least", "k max", "v rel. mse",
           "v cosine", "v least", "v max"},
          {}};
}

Table by_layer(const cache::CacheDifference& diff) {
  Table table = empty_table("Keys and values");
  for (const LayerDifference& layer : diff.layers) {
    add_difference(std::to_string(layer.layer), "all", layer.k, layer.v, table);
  }
  add_difference("all", "all", diff.k, diff.v, table);
  return table;
}

Table by_head(const cache::CacheDifference& diff) {
  Table table = empty_table("Keys and values by head");
  for (const LayerDifference& layer : diff.layers) {
    for (std::size_t head = 0; head < layer.k_heads.size(); ++head) {
      add_difference(std::to_string(layer.layer), std::to_string(head), layer.k_heads[head],
                     layer.v_heads[head], table);
    }
  }
  return table;
}

// Layers may have different numbers of heads; missing cells are NaN.
template <class LayerOf, class ValuesOf>
HeatMap heat_map(std::string title, std::string column_label, std::string unit,
                 const std::vector<LayerOf>& layers, ValuesOf values_of) {
  HeatMap map;
  map.title = std::move(title);
  map.row_label = "layer";
  map.column_label = std::move(column_label);
  map.unit = std::move(unit);
  map.decimals = 5;
  std::size_t n_columns = 0;
  for (const LayerOf& layer : layers) {
    map.rows.push_back(std::to_string(layer.layer));
    map.values.push_back(values_of(layer));
    n_columns = std::max(n_columns, map.values.back().size());
  }
  for (std::size_t i = 0; i < n_columns; ++i) map.columns.push_back(std::to_string(i));
  for (std::vector<double>& row : map.values) row.resize(n_columns, std::nan(""));
  return map;
}

void add_tensor_maps(const cache::CacheDifference& diff, Report& report) {
  for (const bool keys : {true, false}) {
    report.figures.emplace_back(
        heat_map(keys ? "Error of keys" : "Error of values", "kv head", "relative squared error",
                 diff.layers, [keys](const LayerDifference& layer) {
                   std::vector<double> values;
                   for (const Difference& head : keys ? layer.k_heads : layer.v_heads) {
                     values.push_back(head.relative_mse);
                   }
                   return values;
                 }));
  }
}

AttentionError mean(const std::vector<AttentionError>& heads) {
  AttentionError sum;
  for (const AttentionError& head : heads) {
    sum.weights_kl += head.weights_kl / static_cast<double>(heads.size());
    sum.output_error += head.output_error / static_cast<double>(heads.size());
    sum.n_queries = head.n_queries;
  }
  return sum;
}

Table attention_table(const std::vector<LayerAttentionError>& layers) {
  Table table = {"Attention", {"layer", "queries", "kl of weights", "error of output"}, {}};
  std::vector<AttentionError> means;
  for (const LayerAttentionError& layer : layers) means.push_back(mean(layer.heads));
  const auto add = [&](const std::string& name, const AttentionError& error) {
    table.rows.push_back({name, number(static_cast<double>(error.n_queries), 0),
                          number(error.weights_kl, 6), number(error.output_error, 6)});
  };
  for (std::size_t i = 0; i < layers.size(); ++i) add(std::to_string(layers[i].layer), means[i]);
  if (!means.empty()) add("mean", mean(means));
  return table;
}

void add_attention(const std::vector<LayerAttentionError>& layers, Report& report) {
  report.figures.emplace_back(attention_table(layers));
  const auto add = [&](std::string title, std::string unit, double AttentionError::*field) {
    report.figures.emplace_back(heat_map(std::move(title), "query head", std::move(unit), layers,
                                         [field](const LayerAttentionError& layer) {
                                           std::vector<double> values;
                                           for (const AttentionError& head : layer.heads) {
                                             values.push_back(head.*field);
                                           }
                                           return values;
                                         }));
  };
  add("Divergence of attention weights", "nats", &AttentionError::weights_kl);
  add("Error of attention output", "relative squared error", &AttentionError::output_error);
  report.notes.emplace_back(
      "Attention errors are for the model's own queries of the last tokens that both caches hold; "
      "each query attends to the tokens up to its own. They are means over query heads.");
}

}  // namespace

Report cache_report(const cache::CacheDifference& diff,
                    const std::optional<std::vector<LayerAttentionError>>& attention) {
  Report report;
  report.title = "Error of a cache";
  report.facts = {{"tokens compared", std::to_string(diff.n_tokens)},
                  {"of these known to be the same", std::to_string(diff.n_tokens_checked)}};
  report.figures.emplace_back(by_layer(diff));
  report.figures.emplace_back(by_head(diff));
  add_tensor_maps(diff, report);
  report.notes = {
      "Rel. mse: squared error over squared length, of all values together. Cosine: mean over head "
      "vectors; least: the head vector that is worst off; max: the largest error of one value."};
  if (!diff.arrays_equal) {
    report.notes.emplace_back("The state of layers without full attention differs.");
  }
  if (attention) add_attention(*attention, report);
  return report;
}

}  // namespace tqcache::eval
