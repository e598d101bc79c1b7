#pragma once
// eval/attention_error.h: the attention errors of one layer, from given queries.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/eval.h"
#include "tqcache/model/attention/score_params.h"

namespace tqcache::eval {

// The queries [n, n_heads, head_dim] of one layer for the tokens [first, first + n). Each query
// attends to the tokens up to its own.
struct LayerQueries {
  std::int64_t first = 0;
  std::int64_t n = 0;
  std::span<const float> values;
  // For models with another scale or a cap of attention scores; absent: 1 / sqrt(head_dim).
  std::optional<model::ScoreParams> scores = {};
};
struct LayerPair {
  const cache::AttentionLayer& a;
  std::int64_t n_tokens_a;  // in the layer
  const cache::AttentionLayer& b;
  std::int64_t n_tokens_b;
};
// Attention errors of one layer.
// Requires: both layers have the same shape and hold these tokens; n_heads is a multiple of
//           n_kv_heads.
std::vector<AttentionError> attention_errors(const LayerPair& layers, const LayerQueries& queries,
                                             unsigned n_threads);

}  // namespace tqcache::eval
