#pragma once
// quality/quality.h: what coded keys and values do to a model's predictions.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tqcache/cache/cache.h"
#include "tqcache/cache/convert.h"
#include "tqcache/model/model.h"

namespace tqcache::test {

// A way to keep keys and values, and how far the model's predictions are from the dense ones.
struct Quality {
  std::string name;
  cache::ConvertOptions options = {};

  double kld = 0;              // mean Kullback-Leibler divergence of predictions, in nats
  double top1 = 0;             // share of predictions with the same most probable token
  double perplexity = 0;       // of the token that does follow
  double bits_of_a_value = 0;  // of packed state: codes, scales
};

// Predictions over windows of a text that do not overlap, the rest dropped. In each window every
// key and value is coded before attention sees it, the current token's own included; its means are
// those of the dense run of the same window, as cache::convert() takes them.
//
// Gives the dense perplexity, and fills the fields of `ways`.
// Shapes: ids [n_windows * window + 1] at least.
double measure(const model::Model& model, std::span<const std::int32_t> ids, std::int64_t window,
               std::int64_t n_windows, std::span<Quality> ways);

}  // namespace tqcache::test
