#pragma once
// eval/cache_error.h: how far a cache is from another one of the same prompt, layer by layer and
// head by head: in keys and values (cache/diff.h), and in what attention makes of them.
//
// An error of a key counts as much as queries ask for it. With the model at hand, the last tokens
// of the prompt are run again over the reference, which gives the queries that the model really
// asks; each goes over the keys and values of both caches.
//
//   weights  KL(p || q) of the attention weights, p of the reference, q of the other, in nats
//   output   sum |a - b|^2 / sum |a|^2 of the attention output, a of the reference

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/diff.h"
#include "tqcache/eval/report.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct AttentionError {
  double weights_kl = 0;       // mean over queries
  double output_error = 0;     // relative, over all queries
  std::int64_t n_queries = 0;  // of a query head: tokens
};

struct LayerAttentionError {
  std::int64_t layer = 0;
  std::vector<AttentionError> heads;  // [n_heads], query heads
};

// Errors of attention for the last `n_queries` tokens that both caches hold, or as many of them as
// stand in one token block.
//
// Requires: diff(a, b) went well; n_queries of at least 1.
// Errors:   kMismatch when `a` is not of the model, or its shapes are not; kUnsupported when the
//           tokens of `a` are hidden; kInvalidArgument when there are fewer than two common tokens,
//           or a layer without full attention; kInterrupted.
// Progress: layers done, of all.
// Memory:   a token block of each side, and what the decoder takes for a chunk.
// Bytes:    the same for any number of threads, on one kind of CPU.
Result<std::vector<LayerAttentionError>> attention_errors(
    const model::Model& model, const cache::Cache& a, const cache::Cache& b, std::int64_t n_queries,
    unsigned n_threads, const Progress& progress = {});

// The same for the queries [n, n_heads, head_dim] of one layer, those of tokens
// [first, first + n), each of which sees the tokens up to itself.
//
// Requires: both layers are of one shape and hold these tokens; n_heads is a multiple of
//           n_kv_heads.
struct LayerQueries {
  std::int64_t first = 0;
  std::int64_t n = 0;
  std::span<const float> values;
  // Of models that scale scores by something else, or bound them; absent: 1 / sqrt(head_dim).
  std::optional<model::ScoreParams> scores = {};
};
struct LayerPair {
  const cache::AttentionLayer& a;
  std::int64_t n_tokens_a;  // that the layer holds
  const cache::AttentionLayer& b;
  std::int64_t n_tokens_b;
};
std::vector<AttentionError> attention_errors(const LayerPair& layers, const LayerQueries& queries,
                                             unsigned n_threads);

// Tables and heat maps: by layer and kv head the errors of keys and values, by layer and query head
// those of attention, if they were measured.
Report cache_report(const cache::CacheDifference& diff,
                    const std::optional<std::vector<LayerAttentionError>>& attention);

}  // namespace tqcache::eval
