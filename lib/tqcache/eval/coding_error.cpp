#include <algorithm>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/eval.h"
#include "tqcache/eval/measuring_filter.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::eval {
namespace {

double squared_length(std::span<const float> x) {
  const auto bytes = std::as_bytes(x);
  return static_cast<double>(model::best_kernels().dot_f32(bytes.data(), x.data(), x.size()));
}

double sum_of_squares(std::span<const float> rows, std::size_t head_dim) {
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); i += head_dim) {
    sum += squared_length(rows.subspan(i, head_dim));
  }
  return sum;
}

// Rows [n, n_kv_heads, head_dim] of tokens from position `first`, before and after quantization.
struct Rows {
  cache::HeadShape shape;
  std::int64_t first;
  std::span<const float> before;
  std::span<const float> after;

  std::size_t stride() const { return to_size(shape.n_kv_heads * shape.head_dim); }
  std::size_t n_tokens() const { return before.size() / stride(); }
};

// Tokens [n_skipped, n) of one kv head, contiguous.
AlignedFloats gather(const Rows& rows, std::span<const float> values, std::size_t kv_head,
                     std::size_t n_skipped) {
  const std::size_t head_dim = to_size(rows.shape.head_dim);
  AlignedFloats head((rows.n_tokens() - n_skipped) * head_dim);
  for (std::size_t token = n_skipped; token < rows.n_tokens(); ++token) {
    std::copy_n(values.data() + token * rows.stride() + kv_head * head_dim, head_dim,
                head.data() + (token - n_skipped) * head_dim);
  }
  return head;
}

CodingError head_error(const cache::KvCodec& codec, const Rows& rows, std::size_t kv_head) {
  const auto n = static_cast<std::int64_t>(rows.n_tokens());
  const std::int64_t n_sinks = std::clamp<std::int64_t>(codec.n_sinks() - rows.first, 0, n);
  const std::size_t head_dim = to_size(rows.shape.head_dim);
  AlignedFloats x = gather(rows, rows.before, kv_head, to_size(n_sinks));
  AlignedFloats lost = gather(rows, rows.after, kv_head, to_size(n_sinks));
  for (std::size_t i = 0; i < x.size(); ++i) lost[i] -= x[i];

  CodingError sums;
  sums.error = sum_of_squares(lost, head_dim);
  sums.energy = sum_of_squares(x, head_dim);
  codec.subtract_mean(rows.first + n_sinks, static_cast<std::int64_t>(kv_head), x);
  sums.variance = sum_of_squares(x, head_dim);
  return sums;
}

void add_tensor(const cache::Tensor& tensor, const Rows& rows, std::size_t layer, std::size_t index,
                CodingErrors& errors) {
  const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  if (turbo == nullptr) return;
  for (std::size_t kv_head = 0; kv_head < to_size(rows.shape.n_kv_heads); ++kv_head) {
    errors.at(layer, index, kv_head).add(head_error(turbo->codec, rows, kv_head));
  }
}

}  // namespace

void CodingError::add(const CodingError& other) {
  error += other.error;
  energy += other.energy;
  variance += other.variance;
}

CodingError CodingErrors::total(std::size_t tensor) const {
  CodingError sum;
  for (std::size_t layer = 0; layer < n_layers(); ++layer) {
    for (std::size_t kv_head = 0; kv_head < n_kv_heads_; ++kv_head) {
      sum.add(at(layer, tensor, kv_head));
    }
  }
  return sum;
}

model::KvFilter measuring_filter(const cache::Cache& cache, CodingErrors& errors) {
  return [&cache, &errors, filter = model::coding_filter(cache)](
             std::int64_t index, std::int64_t first, std::span<float> k,
             std::span<float> v) -> Result<void> {
    const AlignedFloats k_before(k.begin(), k.end());
    const AlignedFloats v_before(v.begin(), v.end());
    TQC_TRY(filter(index, first, k, v));
    const std::size_t layer = to_size(index);
    const cache::AttentionLayer* tensors = cache::attention_of(cache.layers[layer]);
    if (tensors == nullptr) return {};
    add_tensor(tensors->k, {tensors->shape, first, k_before, k}, layer, 0, errors);
    add_tensor(tensors->v, {tensors->shape, first, v_before, v}, layer, 1, errors);
    return {};
  };
}

}  // namespace tqcache::eval
