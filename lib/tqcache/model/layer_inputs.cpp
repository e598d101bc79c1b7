#include "tqcache/model/layer_inputs.h"

#include <cmath>
#include <numbers>

#include "tqcache/base/integers.h"
#include "tqcache/model/feed_forward.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/norms.h"

namespace tqcache::model {

void LayerInputs::begin(std::span<const std::int32_t> ids, std::span<const float> x,
                        const Workers& workers) {
  n_ = std::ssize(ids);
  const std::size_t size = to_size(config_.layer_inputs);
  const std::size_t n_cols = to_size(weights_.input_embedding.n_cols);
  grow(inputs_, n_ * weights_.input_embedding.n_cols);
  multiply_rows(n_, x, {{&weights_.input_projection, inputs_.data()}}, bits_, workers);
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(config_.d_model)));
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(size)));
  workers.run(ids.size(), [&](std::size_t row) {
    AlignedFloats own(n_cols);
    // Tokens of media are behind the last row of the table: they have the first one.
    const std::int64_t id = ids[row] < weights_.input_embedding.n_rows ? ids[row] : 0;
    load_rows(weights_.input_embedding, id, 1, own);
    const auto all = std::span(inputs_).subspan(row * n_cols, n_cols);
    for (float& value : all) value /= root;
    for (std::size_t first = 0; first < n_cols; first += size) {
      const auto part = all.subspan(first, size);
      rms_norm(part, weights_.input_norm, config_.rms_norm_epsilon, part);
    }
    constexpr float kHalf = 1 / std::numbers::sqrt2_v<float>;
    for (std::size_t i = 0; i < n_cols; ++i) all[i] = (all[i] + scale * own[i]) * kHalf;
  });
}

void LayerInputs::run(std::int64_t layer, std::span<const float> x, float* update,
                      const Workers& workers) {
  const LayerInputWeights& weights = weights_.layers[to_size(layer)].inputs;
  const std::size_t size = to_size(config_.layer_inputs);
  const std::size_t n_cols = to_size(weights_.input_embedding.n_cols);
  grow(gates_, n_ * config_.layer_inputs);
  multiply_rows(n_, x, {{&weights.gate, gates_.data()}}, bits_, workers);
  for (std::size_t row = 0; row < to_size(n_); ++row) {
    const float* const input = inputs_.data() + row * n_cols + to_size(layer) * size;
    activate_and_multiply(config_.activation, input, size, gates_.data() + row * size);
  }
  multiply_rows(n_, gates_, {{&weights.output, update}}, bits_, workers);
  const std::size_t d_model = to_size(config_.d_model);
  for (std::size_t row = 0; row < to_size(n_); ++row) {
    const std::span out(update + row * d_model, d_model);
    rms_norm(out, weights.norm, config_.rms_norm_epsilon, out);
  }
}

}  // namespace tqcache::model
