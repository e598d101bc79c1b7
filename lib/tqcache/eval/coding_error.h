#pragma once
// eval/coding_error.h: what coding takes from keys and values, by layer, side and kv head.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/cache/cache.h"
#include "tqcache/model/attention/kv_filter.h"

namespace tqcache::eval {

// Sums over the values of head vectors: they add up over heads, layers and windows. Sink tokens,
// which are not coded, are left out.
struct CodingError {
  double error = 0;     // |x - coded x|^2
  double energy = 0;    // |x|^2
  double variance = 0;  // |x - mean|^2, the mean being what the cache takes out; energy if nothing

  void add(const CodingError& other);
  // As a share of what was there: 0 where nothing was lost.
  double relative() const { return error == 0 ? 0 : error / energy; }
  // As a share of what had to be coded, which the bound of theory is about.
  double relative_to_variance() const { return error == 0 ? 0 : error / variance; }
};

// [n_layers, 2 (keys, values), n_kv_heads]; sides that stay dense have sums of zero.
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

// model::coding_filter() of `cache`, with what it takes added to `errors`.
// Requires: both outlive the filter; `errors` has the cache's shape, all layers being attention of
//           one shape.
model::KvFilter measuring_filter(const cache::Cache& cache, CodingErrors& errors);

}  // namespace tqcache::eval
