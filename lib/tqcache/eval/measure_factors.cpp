#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/centering.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/reader.h"

namespace tqcache::eval {
namespace {

constexpr std::int64_t kDenseTokens = 4;  // the sink tokens of the default configuration

// Added to what is left of each component, as a share of the median, and to its weight, as a share
// of the mean: a component that hardly varies, or that no query of the sample looks at, gets no
// extreme factor. (A share of the mean of what is left would keep the factors of a head small in
// which a few components have nearly all energy, which needs them most.)
constexpr double kLeftFloor = 0.01;
constexpr double kWeightFloor = 0.05;

// At least this share of the mean counts as the median.
constexpr double kLeastMedian = 1e-6;

// The error of 4 bits, as a share of the energy that was coded.
constexpr double kErrorOf4Bits = 0.0095;

// What is left of component i; both components of a pair count as one, so that it does not matter
// by how much it turned.
double of_pair(std::span<const double> x, std::size_t i, std::size_t n_pairs) {
  if (i >= 2 * n_pairs) return x[i];
  const std::size_t low = i % n_pairs;
  return (x[low] + x[low + n_pairs]) / 2;
}

// Of those that vary at all: heads may be padded with zeros.
// Shapes: left [head_dim]. Requires: one of them varies.
double median_of_pairs(std::span<const double> left, std::size_t n_pairs) {
  std::vector<double> pairs;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (const double pair = of_pair(left, i, n_pairs); pair > 0) pairs.push_back(pair);
  }
  const auto middle = pairs.begin() + std::ssize(pairs) / 2;
  std::ranges::nth_element(pairs, middle);
  return *middle;
}

// Sums the squares of what the mean of the first full block leaves of the keys of one layer.
Result<void> add_layer(const cache::CacheReader& cache, std::size_t layer, std::size_t first_block,
                       std::size_t n_layers_in_block,
                       const std::shared_ptr<const cache::RopeTable>& table,
                       std::span<double> left) {
  const auto& attention = std::get<cache::AttentionDesc>(cache.description().layers[layer]);
  const cache::HeadShape shape = attention.shape;
  const std::size_t dim = to_size(shape.head_dim);
  cache::Mean mean;
  mean.kind = table ? cache::Centering::kPreRope : cache::Centering::kPostRope;
  mean.rope = table;
  AlignedFloats rows(to_size(cache::kTokenBlock) * dim);
  const std::int64_t n_full = cache.n_tokens() / cache::kTokenBlock;
  for (std::int64_t b = 0; b < n_full; ++b) {
    AlignedBytes raw;
    TQC_TRY(cache.read(first_block + to_size(b) * n_layers_in_block, raw));
    const cache::FullBlock block{shape, attention.k.dtype, b, raw, 0};
    if (b == 0) mean.values = cache::compute_mean({&block, 1}, kDenseTokens, mean.rope.get(), 1);
    const cache::BlockMean in_block(mean, shape, b);
    const std::size_t first = to_size(cache::uncoded_tokens(block, kDenseTokens));
    for (std::int64_t h = 0; h < shape.n_kv_heads; ++h) {
      load_f32(block.dtype, block.head(h).data(), rows);
      in_block.subtract_from(h, 0, rows);
      for (std::size_t t = first; t < to_size(cache::kTokenBlock); ++t) {
        for (std::size_t i = 0; i < dim; ++i) {
          const double x{rows[t * dim + i]};
          left[to_size(h) * dim + i] += x * x;
        }
      }
    }
  }
  const bool is_finite = std::ranges::all_of(left, [](double x) { return std::isfinite(x); });
  if (!is_finite) return corrupt(fmt::format("layer {}: a key that is not finite", layer));
  return {};
}

// Prepares sums for layers of these shapes, or checks that they are those of `moments`.
Result<void> start(const cache::CacheDesc& cache, KeyMoments& moments) {
  KeyMoments fresh;
  fresh.shapes.resize(cache.layers.size());
  fresh.left.resize(cache.layers.size());
  fresh.weight.resize(cache.layers.size());
  std::int64_t head_dim = 0;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&cache.layers[i]);
    if (attention == nullptr) continue;
    if (attention->k.quant) {
      return invalid(fmt::format("layer {}: its keys are quantized; a dense cache is wanted", i));
    }
    fresh.shapes[i] = attention->shape;
    fresh.left[i].resize(to_size(attention->shape.n_kv_heads * attention->shape.head_dim));
    fresh.weight[i].resize(fresh.left[i].size());
    head_dim = attention->shape.head_dim;
  }
  if (head_dim == 0) return invalid("no layer has full attention, so no keys are quantized");
  // Without RoPE parameters: pairs as most models have them.
  const cache::Rope& rope = cache.identity.rope;
  fresh.n_pairs = cache::can_rotate(rope, head_dim) ? rope.n_dims / 2 : head_dim / 2;
  if (moments.n_pairs < 0) {
    moments = std::move(fresh);
    return {};
  }
  if (moments.shapes != fresh.shapes || moments.n_pairs != fresh.n_pairs) {
    return invalid("the caches are of different models: their layers have other shapes");
  }
  return {};
}

std::int8_t eighths_of(double factor) {
  const double most{cache::kMostFactor};
  return static_cast<std::int8_t>(std::clamp(std::round(8 * std::log2(factor)), -most, most));
}

}  // namespace

Result<void> add_keys(const cache::CacheReader& cache, KeyMoments& moments, unsigned n_threads) {
  const cache::CacheDesc& description = cache.description();
  if (cache.n_tokens() < cache::kTokenBlock) {
    return invalid(
        fmt::format("{} tokens; at least {} are wanted", cache.n_tokens(), cache::kTokenBlock));
  }
  TQC_TRY(start(description, moments));
  // Blocks stand by token block, then by layer; all token blocks have as many.
  std::vector<std::size_t> first(description.layers.size());
  std::size_t per_token_block = 0;
  for (std::size_t i = 0; i < cache.blocks().size(); ++i) {
    const cache::BlockInfo& block = cache.blocks()[i];
    if (block.tensor == cache::TensorKind::kArray || block.block > 0) continue;
    if (block.tensor == cache::TensorKind::kKeys) first[to_size(block.layer)] = i;
    ++per_token_block;
  }
  std::shared_ptr<const cache::RopeTable> table;
  const cache::Rope& rope = description.identity.rope;
  const bool rotates = std::ranges::all_of(moments.shapes, [&](const cache::HeadShape& shape) {
    return shape.head_dim == 0 || cache::can_rotate(rope, shape.head_dim);
  });
  if (rotates) table = std::make_shared<const cache::RopeTable>(rope);
  TQC_TRY(parallel_try(moments.left.size(), n_threads, [&](std::size_t i) -> Result<void> {
    if (moments.left[i].empty()) return {};
    return add_layer(cache, i, first[i], per_token_block, table, moments.left[i]);
  }));
  moments.n_tokens += cache.n_tokens() / cache::kTokenBlock * cache::kTokenBlock - kDenseTokens;
  return {};
}

Result<void> add_text(const model::Model& model, std::span<const std::int32_t> ids,
                      KeyMoments& moments, unsigned n_threads, const Progress& progress) {
  TQC_TRY_ASSIGN(cache::Cache cache, model::make_cache(model, Dtype::kF32));
  TQC_TRY(start(cache::describe(cache), moments));
  const std::size_t n_heads = to_size(model.config.n_heads);
  const auto add_queries = [&](std::int64_t layer, std::span<const float> queries) -> Result<void> {
    std::vector<double>& weight = moments.weight[to_size(layer)];
    const cache::HeadShape shape = moments.shapes[to_size(layer)];
    const std::size_t dim = to_size(shape.head_dim);
    const std::size_t group = n_heads / to_size(shape.n_kv_heads);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const std::size_t head = i / dim % n_heads / group;
      weight[head * dim + i % dim] += double{queries[i]} * double{queries[i]};
    }
    return {};
  };
  model::Decoder decoder(model, n_threads);
  TQC_TRY(decoder.prefill_all_logits(cache, ids, {}, progress, {}, add_queries));
  return add_keys(*cache::reader_of(cache), moments, n_threads);
}

std::vector<std::vector<std::int8_t>> key_factors(const KeyMoments& moments) {
  std::vector<std::vector<std::int8_t>> all(moments.left.size());
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    if (moments.left[layer].empty()) continue;
    const std::size_t dim = to_size(moments.shapes[layer].head_dim);
    const std::size_t n_pairs = to_size(moments.n_pairs);
    all[layer].resize(moments.left[layer].size());
    for (std::size_t at = 0; at < all[layer].size(); at += dim) {
      const std::span<const double> left = std::span(moments.left[layer]).subspan(at, dim);
      const std::span<const double> weight = std::span(moments.weight[layer]).subspan(at, dim);
      double mean_left = 0, mean_weight = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        mean_left += left[i] / static_cast<double>(dim);
        mean_weight += weight[i] / static_cast<double>(dim);
      }
      if (!(mean_left > 0)) continue;  // keys that are all alike need no factors
      const double floor =
          kLeftFloor * std::max(median_of_pairs(left, n_pairs) / mean_left, kLeastMedian);
      const bool has_queries = mean_weight > 0;
      std::vector<double> factor(dim);
      double energy = 0;  // of what is left, after the factors
      for (std::size_t i = 0; i < dim; ++i) {
        const double w = has_queries ? of_pair(weight, i, n_pairs) / mean_weight + kWeightFloor
                                     : 1 + kWeightFloor;
        const double s = of_pair(left, i, n_pairs) / mean_left + floor;
        factor[i] = std::sqrt(std::sqrt(w / s));
        energy += factor[i] * factor[i] * s / static_cast<double>(dim);
      }
      // Lengths stay as they are on average, so that scales stay in the range of f16.
      const double scale = std::sqrt((1 + floor) / energy);
      for (std::size_t i = 0; i < dim; ++i) all[layer][at + i] = eighths_of(factor[i] * scale);
    }
  }
  return all;
}

std::vector<double> key_losses(const KeyMoments& moments) {
  std::vector<double> all(moments.left.size());
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    if (moments.left[layer].empty()) continue;
    const std::size_t dim = to_size(moments.shapes[layer].head_dim);
    for (std::size_t at = 0; at < moments.left[layer].size(); at += dim) {
      const std::span<const double> left = std::span(moments.left[layer]).subspan(at, dim);
      double mean = 0;
      for (const double x : left) mean += x / static_cast<double>(dim);
      if (!(mean > 0)) continue;
      const double median =
          std::max(median_of_pairs(left, to_size(moments.n_pairs)), kLeastMedian * mean);
      all[layer] = std::max(all[layer], kErrorOf4Bits * mean / median);
    }
    all[layer] = std::round(all[layer] * 1e4) / 1e4;  // further digits depend on the CPU
  }
  return all;
}

}  // namespace tqcache::eval
