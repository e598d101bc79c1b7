#pragma once
// eval/coding_error.h: quantization errors of keys and values by layer and kv head.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/cache/cache.h"
#include "tqcache/model/attention/kv_filter.h"

namespace tqcache::eval {

// Sums over the values of head vectors; they add up over heads, layers and windows. Sink tokens,
// which are not quantized, are left out.
struct CodingError {
  double error = 0;     // |x - dequantized x|^2
  double energy = 0;    // |x|^2
  double variance = 0;  // |x - mean|^2 with the mean that the cache removes; energy without one

  void add(const CodingError& other);
  // Relative to the energy; 0 without any error.
  double relative() const { return error == 0 ? 0 : error / energy; }
  // Relative to the values that are quantized, to which the theoretical bound applies.
  double relative_to_variance() const { return error == 0 ? 0 : error / variance; }
};

// [n_layers, 2 (keys, values), n_kv_heads]; tensors that stay dense have sums of zero.
class CodingErrors {
 public:
  CodingErrors() = default;
  CodingErrors(std::size_t n_layers, std::size_t n_kv_heads)
      : n_kv_heads_(n_kv_heads), cells_(n_layers * 2 * n_kv_heads) {}

  std::size_t n_layers() const { return n_kv_heads_ == 0 ? 0 : cells_.size() / 2 / n_kv_heads_; }
  std::size_t n_kv_heads() const { return n_kv_heads_; }

  CodingError& at(std::size_t layer, std::size_t side, std::size_t kv_head) {
    return cells_[(layer * 2 + side) * n_kv_heads_ + kv_head];
  }
  const CodingError& at(std::size_t layer, std::size_t side, std::size_t kv_head) const {
    return cells_[(layer * 2 + side) * n_kv_heads_ + kv_head];
  }
  // Over all layers and kv heads.
  CodingError total(std::size_t side) const;

 private:
  std::size_t n_kv_heads_ = 0;
  std::vector<CodingError> cells_;
};

// model::coding_filter() of `cache`, which also adds its errors to `errors`.
// Requires: both arguments outlive the filter; `errors` has the cache's shape; all layers are
//           attention layers of one shape.
model::KvFilter measuring_filter(const cache::Cache& cache, CodingErrors& errors);

}  // namespace tqcache::eval
