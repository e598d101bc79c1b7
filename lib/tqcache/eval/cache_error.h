#pragma once
// eval/cache_error.h: the difference between two caches of the same prompt by layer and head: in
// keys and values (cache/diff.h) and in the attention over them.
//
// The error of a key matters only as far as queries attend to it. Given the model, the last tokens
// of the prompt are run again over the reference cache, which yields the model's real queries; each
// of them attends to the keys and values of both caches.
//
//   weights  KL(p || q) of the attention weights, p from the reference, q from the other, in nats
//   output   sum |a - b|^2 / sum |a|^2 of the attention output, a from the reference

#include <cstdint>
#include <optional>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/diff.h"
#include "tqcache/eval/report.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct AttentionError {
  double weights_kl = 0;       // mean over queries
  double output_error = 0;     // relative, over all queries
  std::int64_t n_queries = 0;  // tokens, for each query head
};

struct LayerAttentionError {
  std::int64_t layer = 0;
  std::vector<AttentionError> heads;  // [n_heads], query heads
};

// Attention errors for the last `n_queries` tokens that both caches hold, limited to one token
// block.
//
// Requires: diff(a, b) succeeded; n_queries of at least 1.
// Errors:   kMismatch if `a` or its shapes do not belong to the model; kUnsupported if the tokens
// of
//           `a` are hidden; kInvalidArgument if there are fewer than two common tokens, or a layer
//           without full attention; kInterrupted.
// Progress: layers done.
// Memory:   a token block of K and V of each cache, and the decoder's memory for a chunk.
// Bytes:    the same for any number of threads, on one kind of CPU.
Result<std::vector<LayerAttentionError>> attention_errors(
    const model::Model& model, const cache::Cache& a, const cache::Cache& b, std::int64_t n_queries,
    unsigned n_threads, const Progress& progress = {});

// Tables and heat maps of the errors of keys and values by layer and kv head, and of the attention
// errors by layer and query head if they were measured.
Report cache_report(const cache::CacheDifference& diff,
                    const std::optional<std::vector<LayerAttentionError>>& attention);

}  // namespace tqcache::eval
