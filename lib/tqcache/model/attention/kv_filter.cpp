#include "tqcache/model/attention/kv_filter.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/head_coder.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

// Rows [n, n_kv_heads, head_dim] of the tokens from position `first` on.
struct Rows {
  cache::HeadShape shape;
  std::int64_t first;
  std::span<float> values;

  std::size_t stride() const { return to_size(shape.n_kv_heads * shape.head_dim); }
  std::size_t n_tokens() const { return values.size() / stride(); }
  float* head(std::int64_t kv_head) const { return values.data() + kv_head * shape.head_dim; }
};

Result<void> code_head(const cache::TurboSide& side, const Rows& rows, std::int64_t kv_head) {
  const codec::HeadCodec& codec = side.codec;
  const std::size_t n = rows.n_tokens();
  const std::size_t n_sinks =
      to_size(std::clamp<std::int64_t>(side.n_sinks - rows.first, 0, static_cast<std::int64_t>(n)));
  const std::int64_t place = rows.first % kTokenBlock;
  const cache::HeadCoder coder(side, rows.shape, rows.first / kTokenBlock, kv_head);

  AlignedBytes codes(codec.code_bytes());
  std::vector<std::uint16_t> scales(codec.n_scale_rows() * to_size(kTokenBlock));
  float* const head = rows.head(kv_head);
  const auto* const bytes = reinterpret_cast<const std::byte*>(head);
  TQC_TRY(coder.encode({Dtype::kF32, bytes, rows.stride() * sizeof(float)}, place, n, n_sinks,
                       codes, scales));

  const std::size_t head_dim = to_size(rows.shape.head_dim);
  AlignedFloats decoded(n * head_dim);
  coder.decode({codes, scales}, place, decoded);
  for (std::size_t token = n_sinks; token < n; ++token) {
    std::copy_n(decoded.data() + token * head_dim, head_dim, head + token * rows.stride());
  }
  return {};
}

Result<void> code_side(const cache::Side& side, const Rows& rows) {
  const auto* turbo = std::get_if<cache::TurboSide>(&side);
  if (turbo == nullptr) return {};
  if (!turbo->mean.is_fixed() || !turbo->outliers.is_fixed() || !turbo->transforms.is_fixed()) {
    return Error{ErrorCode::kInvalidArgument, "nothing is packed, so its mean is not known"};
  }
  for (std::int64_t kv_head = 0; kv_head < rows.shape.n_kv_heads; ++kv_head) {
    if (auto coded = code_head(*turbo, rows, kv_head); !coded) {
      return in_context(
          "head " + std::to_string(kv_head) + ", from token " + std::to_string(rows.first) + " on",
          std::move(coded).error());
    }
  }
  return {};
}

}  // namespace

KvFilter coding_filter(const cache::Cache& cache) {
  return [&cache](std::int64_t index, std::int64_t first, std::span<float> k,
                  std::span<float> v) -> Result<void> {
    const cache::AttentionLayer* found = cache::attention_of(cache.layers[to_size(index)]);
    if (found == nullptr) return {};
    const cache::AttentionLayer& layer = *found;
    const std::string name = "layer " + std::to_string(index);
    if (auto coded = code_side(layer.k, {layer.shape, first, k}); !coded) {
      return in_context(name + " k", std::move(coded).error());
    }
    if (auto coded = code_side(layer.v, {layer.shape, first, v}); !coded) {
      return in_context(name + " v", std::move(coded).error());
    }
    return {};
  };
}

}  // namespace tqcache::model
