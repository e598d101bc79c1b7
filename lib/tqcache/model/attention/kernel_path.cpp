#include <string>

#include "tqcache/cache.h"
#include "tqcache/decoder.h"

namespace tqcache::model {

namespace {

void add_tensor(const cache::Tensor& tensor, Scorer scorer, const std::string& name,
                KernelPath& path) {
  if (cache::packed_block_count(tensor) == 0) return;
  path.prompt = "decoded";
  const std::string fact = scorer == Scorer::kFast
                               ? std::get<cache::TurboTensor>(tensor).codec.why_not_integers()
                               : std::string();
  const bool in_bytes = scorer == Scorer::kFast && fact.empty();
  if (!in_bytes) {
    path.step = "packed_f32";
  } else if (path.step == "dense") {
    path.step = "packed_int8";
  }
  if (!fact.empty() && path.fallback.empty()) path.fallback = name + ": " + fact;
}

}  // namespace

KernelPath kernel_path(const cache::Cache& cache, Scorer scorer) {
  KernelPath path;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const cache::AttentionLayer* const rows = cache::attention_of(cache.layers[i]);
    if (rows == nullptr) continue;
    const std::string layer = "layer " + std::to_string(i);
    add_tensor(rows->k, scorer, layer + " k", path);
    add_tensor(rows->v, scorer, layer + " v", path);
  }
  return path;
}

}  // namespace tqcache::model
