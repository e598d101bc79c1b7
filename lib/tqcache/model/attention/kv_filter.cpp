#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"

namespace tqcache::model {
namespace {

// Rows [n, n_kv_heads, head_dim] for the tokens from position `first` on.
Result<void> code_tensor(const cache::Tensor& tensor, std::int64_t first, std::span<float> rows) {
  const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  if (turbo == nullptr) return {};
  if (!turbo->codec.is_fixed()) return invalid("nothing is packed, so its mean is not known");
  return turbo->codec.quantize_rows(first, rows);
}

}  // namespace

KvFilter coding_filter(const cache::Cache& cache) {
  return [&cache](std::int64_t index, std::int64_t first, std::span<float> k,
                  std::span<float> v) -> Result<void> {
    const cache::AttentionLayer* found = cache::attention_of(cache.layers[to_size(index)]);
    if (found == nullptr) return {};
    const cache::AttentionLayer& layer = *found;
    const std::string name = "layer " + std::to_string(index);
    if (auto coded = code_tensor(layer.k, first, k); !coded) {
      return in_context(name + " k", std::move(coded).error());
    }
    if (auto coded = code_tensor(layer.v, first, v); !coded) {
      return in_context(name + " v", std::move(coded).error());
    }
    return {};
  };
}

}  // namespace tqcache::model
