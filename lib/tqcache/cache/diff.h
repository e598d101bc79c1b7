#pragma once
// cache/diff.h: how far apart the keys and values of two caches of the same prompt are.

#include <cstdint>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cache {

struct Difference {
  double relative_mse = 0;  // sum |a - b|^2 / sum |a|^2
  double cosine = 1;        // <a, b> / (|a| |b|), over all values of the side as one vector
  double max_abs = 0;       // largest |a_i - b_i|
  double mean_cosine = 1;   // of the head vectors, each for itself
  double min_cosine = 1;    // of the head vector that is worst off
  std::uint64_t n_values = 0;
};

struct LayerDifference {
  std::int64_t layer = 0;
  Difference k;
  Difference v;
  std::vector<Difference> k_heads;  // [n_kv_heads]
  std::vector<Difference> v_heads;  // [n_kv_heads]
};

struct CacheDifference {
  std::int64_t n_tokens = 0;  // compared: the shorter of the two
  // Attention layers, and windows of which one is turbo, if both hold the same tokens.
  std::vector<LayerDifference> layers;
  Difference k;  // over all layers
  Difference v;
  bool arrays_equal = true;  // arrays layers and all other windows, bit for bit
  // How many of the compared tokens are known to be the same: all of them, but for token blocks of
  // which one cache has neither ids nor a hash of so much.
  std::int64_t n_tokens_checked = 0;
};

// Compares the tokens that both caches hold. `a` is the reference that errors are relative to.
// Tokens that are hidden in one of them are compared by the hashes of their token blocks, as far as
// there are any.
// Errors: kMismatch when layers or shapes differ, or the common tokens do.
Result<CacheDifference> diff(const Cache& a, const Cache& b, unsigned n_threads);

}  // namespace tqcache::cache
