#include "tqcache/model/attention/latent_attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/base/integers.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// y = x / sqrt(mean(x^2) + epsilon) * weight, in place.
void rms_norm(std::span<float> x, const AlignedFloats& weight, float epsilon) {
  const std::span bytes = std::as_bytes(x);
  const float squares = best_kernels().dot_f32(bytes.data(), x.data(), x.size());
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factor * weight[i];
}

Matrix view_of(std::span<const float> values, std::int64_t n_rows, std::int64_t n_cols) {
  const auto size = to_size(n_rows * n_cols);
  return {tensors::TensorType::kF32, n_rows, n_cols, std::as_bytes(values.first(size))};
}

float dot(std::span<const float> a, const float* b) {
  return best_kernels().dot_f32(std::as_bytes(a).data(), b, a.size());
}

void add_scaled(float factor, std::span<const float> x, float* y) {
  best_kernels().add_scaled_f32(factor, std::as_bytes(x).data(), x.size(), y);
}

// Replaces scores by their weights in a softmax, and adds them to the sum of those before. Returns
// the factor of what belongs to these. A score that is not finite makes the sum NaN.
float add_scores(std::span<float> scores, float& max, float& sum) {
  const Kernels& kernels = best_kernels();
  const bool finite = std::ranges::all_of(scores, [](float x) { return std::isfinite(x); });
  const float new_max = std::max(max, kernels.max_value(scores.data(), scores.size()));
  const float factor = loops::exp_f32(max - new_max);
  sum = factor * sum + kernels.exp_sum(new_max, scores.size(), scores.data());
  if (!finite) sum = std::numeric_limits<float>::quiet_NaN();
  max = new_max;
  return factor;
}

}  // namespace

std::span<const float> LatentAttention::make_queries(const LatentWeights& weights, std::int64_t n,
                                                     std::span<const float> x,
                                                     const RopeTable& rope,
                                                     const Workers& workers) {
  const LatentConfig& latent = config_.latent;
  grow(q_, n * config_.n_heads * latent.query_size());
  std::span<const float> from = x;
  if (latent.query_rank > 0) {
    grow(query_latents_, n * latent.query_rank);
    multiply_rows(n, x, {{&weights.q_a, query_latents_.data()}}, bits_, workers);
    for (std::int64_t i = 0; i < n; ++i) {
      rms_norm(std::span(query_latents_)
                   .subspan(to_size(i * latent.query_rank), to_size(latent.query_rank)),
               weights.q_a_norm, latent.epsilon);
    }
    from = query_latents_;
  }
  multiply_rows(n, from, {{&weights.q, q_.data()}}, bits_, workers);
  const std::int64_t size = latent.query_size();
  for (std::int64_t i = 0; i < n * config_.n_heads; ++i) {
    const auto place = to_size(i * size + latent.plain);
    rope.rotate_pairs(i / config_.n_heads, std::span(q_).subspan(place, to_size(latent.rotated)));
  }
  return std::span(q_).first(to_size(n * config_.n_heads * size));
}

void LatentAttention::make_latents(const LatentWeights& weights, std::int64_t n,
                                   std::span<const float> x, const RopeTable& rope,
                                   std::span<float> latents, std::span<float> rotated,
                                   const Workers& workers) {
  const LatentConfig& latent = config_.latent;
  const std::int64_t size = latent.rank + latent.rotated;
  grow(both_, n * size);
  multiply_rows(n, x, {{&weights.kv_a, both_.data()}}, bits_, workers);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* const row = both_.data() + i * size;
    const auto c = latents.subspan(to_size(i * latent.rank), to_size(latent.rank));
    const auto r = rotated.subspan(to_size(i * latent.rotated), to_size(latent.rotated));
    std::copy_n(row, latent.rank, c.begin());
    std::copy_n(row + latent.rank, latent.rotated, r.begin());
    rms_norm(c, weights.kv_a_norm, latent.epsilon);
    rope.rotate_pairs(i, r);
  }
}

void LatentAttention::attend(const LatentWeights& weights, const cache::AttentionLayer& layer,
                             std::int64_t n_tokens, std::int64_t n, std::span<float> out,
                             const Workers& workers) {
  assert((n_tokens - 1) / kTokenBlock == (n_tokens - n) / kTokenBlock);
  if (n == 1) return attend_step(weights, layer, n_tokens, out, workers);
  attend_chunk(weights, layer, n_tokens, n, out, workers);
}

void LatentAttention::attend_chunk(const LatentWeights& weights, const cache::AttentionLayer& layer,
                                   std::int64_t n_tokens, std::int64_t n, std::span<float> out,
                                   const Workers& workers) {
  const LatentConfig& latent = config_.latent;
  grow(latents_, kTokenBlock * latent.rank);
  grow(rotated_, kTokenBlock * latent.rotated);
  row_max_.assign(to_size(config_.n_heads * n), kNoScore);
  row_sum_.assign(to_size(config_.n_heads * n), 0.0f);
  std::ranges::fill(out, 0.0f);
  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    const std::int64_t n_keys = cache::tokens_in_block(n_tokens, block);
    cache::read_block(layer.k, layer.shape, n_tokens, block, 0,
                      std::span(latents_).first(to_size(n_keys * latent.rank)));
    cache::read_block(layer.v, layer.value_shape(), n_tokens, block, 0,
                      std::span(rotated_).first(to_size(n_keys * latent.rotated)));
    // Keys that the first query sees.
    const std::int64_t n_seen = n_tokens - n + 1 - block * kTokenBlock;
    for (std::int64_t head = 0; head < config_.n_heads; ++head) {
      add_head(weights, head, n_keys, n_seen, n, out, workers);
    }
  }
  for (std::int64_t row = 0; row < n * config_.n_heads; ++row) {
    const std::int64_t head = row % config_.n_heads;
    const float sum = row_sum_[to_size(head * n + row / config_.n_heads)];
    const auto values = out.subspan(to_size(row * latent.value), to_size(latent.value));
    for (float& value : values) value /= sum;
  }
}

// Adds the keys and values of one head in the current block.
void LatentAttention::add_head(const LatentWeights& weights, std::int64_t head, std::int64_t n_keys,
                               std::int64_t n_seen, std::int64_t n, std::span<float> out,
                               const Workers& workers) {
  const LatentConfig& latent = config_.latent;
  const std::int64_t size = latent.query_size();
  grow(to_keys_, latent.plain * latent.rank);
  grow(to_values_, latent.value * latent.rank);
  weights.load_key_rows(head, latent, to_keys_);
  load_rows(weights.values[to_size(head)], 0, latent.value, to_values_);

  // Keys [n_keys, plain + rotated], and values as columns: [value, n_keys].
  grow(products_, n_keys * latent.plain);
  grow(keys_, n_keys * size);
  grow(values_, latent.value * n_keys);
  const Matrix to_keys = view_of(to_keys_, latent.plain, latent.rank);
  multiply_rows(n_keys, latents_, {{&to_keys, products_.data()}}, bits_, workers);
  for (std::int64_t i = 0; i < n_keys; ++i) {
    float* const key = keys_.data() + i * size;
    std::copy_n(products_.data() + i * latent.plain, latent.plain, key);
    std::copy_n(rotated_.data() + i * latent.rotated, latent.rotated, key + latent.plain);
  }
  const Matrix latents = view_of(latents_, n_keys, latent.rank);
  multiply_rows(latent.value, to_values_, {{&latents, values_.data()}}, bits_, workers);

  grow(queries_, n * size);
  for (std::int64_t i = 0; i < n; ++i) {
    std::copy_n(q_.data() + (i * config_.n_heads + head) * size, size, queries_.data() + i * size);
  }
  grow(scores_, n * n_keys);
  grow(added_, n * latent.value);
  const Matrix keys = view_of(keys_, n_keys, size);
  multiply_rows(n, queries_, {{&keys, scores_.data()}}, bits_, workers);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::span<float> row = std::span(scores_).subspan(to_size(i * n_keys), to_size(n_keys));
    const auto seen = row.first(to_size(std::clamp<std::int64_t>(n_seen + i, 0, n_keys)));
    std::ranges::fill(row.subspan(seen.size()), 0.0f);
    if (seen.empty()) continue;
    for (float& score : seen) score *= config_.score_scale();
    const std::size_t place = to_size(head * n + i);
    const float factor = add_scores(seen, row_max_[place], row_sum_[place]);
    const auto so_far =
        out.subspan(to_size((i * config_.n_heads + head) * latent.value), to_size(latent.value));
    for (float& value : so_far) value *= factor;
  }
  const Matrix values = view_of(values_, latent.value, n_keys);
  multiply_rows(n, scores_, {{&values, added_.data()}}, bits_, workers);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* const row = added_.data() + i * latent.value;
    float* const so_far = out.data() + (i * config_.n_heads + head) * latent.value;
    for (std::int64_t d = 0; d < latent.value; ++d) so_far[d] += row[d];
  }
}

void LatentAttention::attend_step(const LatentWeights& weights, const cache::AttentionLayer& layer,
                                  std::int64_t n_tokens, std::span<float> out,
                                  const Workers& workers) {
  const LatentConfig& latent = config_.latent;
  const std::size_t n_heads = to_size(config_.n_heads), rank = to_size(latent.rank);
  grow(absorbed_, config_.n_heads * latent.rank);
  row_.resize(workers.count());
  parts_.resize(workers.count());
  for (AlignedFloats& row : row_) grow(row, std::max(latent.rank, latent.plain));
  workers.run_in_slots(n_heads, [&](std::size_t head, std::size_t slot) {
    const auto q = std::span(q_).subspan(head * to_size(latent.query_size()));
    weights.absorb(static_cast<std::int64_t>(head), q.first(to_size(latent.plain)), row_[slot],
                   std::span(absorbed_).subspan(head * rank, rank));
  });

  whole_.max.assign(n_heads, kNoScore);
  whole_.sum.assign(n_heads, 0.0f);
  whole_.mixed.assign(n_heads * rank, 0.0f);
  const std::int64_t n_blocks = cache::block_count(n_tokens);
  const auto at_once = static_cast<std::int64_t>(workers.count());
  for (std::int64_t first = 0; first < n_blocks; first += at_once) {
    const std::int64_t count = std::min(at_once, n_blocks - first);
    workers.run(to_size(count), [&](std::size_t i) {
      add_block(layer, n_tokens, first + static_cast<std::int64_t>(i), parts_[i]);
    });
    // In the order of the blocks, whatever the number of workers.
    for (std::size_t i = 0; i < to_size(count); ++i) {
      for (std::size_t head = 0; head < n_heads; ++head) {
        const Part& part = parts_[i];
        const float max = std::max(whole_.max[head], part.max[head]);
        const float old = loops::exp_f32(whole_.max[head] - max);
        const float added = loops::exp_f32(part.max[head] - max);
        whole_.sum[head] = old * whole_.sum[head] + added * part.sum[head];
        whole_.max[head] = max;
        float* const mixed = whole_.mixed.data() + head * rank;
        for (std::size_t d = 0; d < rank; ++d) mixed[d] *= old;
        add_scaled(added, std::span(part.mixed).subspan(head * rank, rank), mixed);
      }
    }
  }

  workers.run_in_slots(n_heads, [&](std::size_t head, std::size_t slot) {
    const std::span<float> row = std::span(row_[slot]).first(rank);
    for (std::int64_t i = 0; i < latent.value; ++i) {
      load_rows(weights.values[head], i, 1, row);
      out[head * to_size(latent.value) + to_size(i)] =
          dot(row, whole_.mixed.data() + head * rank) / whole_.sum[head];
    }
  });
}

void LatentAttention::add_block(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                                std::int64_t block, Part& part) {
  const LatentConfig& latent = config_.latent;
  const std::size_t n_heads = to_size(config_.n_heads), rank = to_size(latent.rank);
  const std::size_t n_rotated = to_size(latent.rotated);
  const std::size_t n_keys = to_size(cache::tokens_in_block(n_tokens, block));
  part.latents.resize(to_size(kTokenBlock) * rank);
  part.rotated.resize(to_size(kTokenBlock) * n_rotated);
  part.scores.resize(to_size(kTokenBlock));
  part.max.assign(n_heads, kNoScore);
  part.sum.assign(n_heads, 0.0f);
  part.mixed.assign(n_heads * rank, 0.0f);
  cache::read_block(layer.k, layer.shape, n_tokens, block, 0,
                    std::span(part.latents).first(n_keys * rank));
  cache::read_block(layer.v, layer.value_shape(), n_tokens, block, 0,
                    std::span(part.rotated).first(n_keys * n_rotated));
  const std::span<const float> latents = part.latents, rotated = part.rotated;
  const std::span<float> scores = std::span(part.scores).first(n_keys);
  for (std::size_t head = 0; head < n_heads; ++head) {
    const float* const q = absorbed_.data() + head * rank;
    const float* const q_rotated = q_.data() + head * to_size(latent.query_size()) + latent.plain;
    for (std::size_t i = 0; i < n_keys; ++i) {
      scores[i] =
          config_.score_scale() * (dot(latents.subspan(i * rank, rank), q) +
                                   dot(rotated.subspan(i * n_rotated, n_rotated), q_rotated));
    }
    add_scores(scores, part.max[head], part.sum[head]);
    float* const mixed = part.mixed.data() + head * rank;
    for (std::size_t i = 0; i < n_keys; ++i) {
      add_scaled(scores[i], latents.subspan(i * rank, rank), mixed);
    }
  }
}

std::uint64_t LatentAttention::scratch_bytes() const {
  std::size_t floats = 0;
  const auto count = [&](const Part& part) {
    floats += part.latents.size() + part.rotated.size() + part.scores.size() + part.max.size() +
              part.sum.size() + part.mixed.size();
  };
  for (const Part& part : parts_) count(part);
  count(whole_);
  for (const AlignedFloats& row : row_) floats += row.size();
  for (const AlignedFloats* each :
       {&query_latents_, &both_, &q_, &latents_, &rotated_, &to_keys_, &to_values_, &queries_,
        &products_, &keys_, &values_, &scores_, &added_, &row_max_, &row_sum_, &absorbed_}) {
    floats += each->size();
  }
  return floats * sizeof(float);
}

}  // namespace tqcache::model
