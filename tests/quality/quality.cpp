#include "quality/quality.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "support/cache_builder.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/kernels.h"

namespace tqcache::test {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Makes probabilities of logits, and gives the logarithm of the sum of their exponentials.
double soften(std::span<float> logits) {
  const model::Kernels& kernels = model::best_kernels();
  const float max = kernels.max_value(logits.data(), logits.size());
  const float sum = kernels.exp_sum(max, logits.size(), logits.data());
  for (float& value : logits) value /= sum;
  return static_cast<double>(max) + std::log(static_cast<double>(sum));
}

std::ptrdiff_t find_largest(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

// Predictions of the dense run of one window.
struct Dense {
  std::size_t n_words;
  std::vector<float> logits;  // [window, n_words]

  std::span<const float> row(std::size_t i) const {
    return std::span(logits).subspan(i * n_words, n_words);
  }
};

// Minus the logarithm of the next token's probability.
double surprise(std::span<const float> logits, std::int32_t next) {
  std::vector<float> p(logits.begin(), logits.end());
  return soften(p) - static_cast<double>(logits[to_size(next)]);
}

// Adds one prediction to sums that measure() turns into means.
void add_row(std::span<const float> dense, std::span<const float> coded, std::int32_t next,
             Quality& sums) {
  std::vector<float> p(dense.begin(), dense.end());
  std::vector<float> q(coded.begin(), coded.end());
  const double log_sum = soften(q);
  sums.perplexity += log_sum - static_cast<double>(coded[to_size(next)]);
  sums.kld += log_sum - soften(p);
  for (std::size_t i = 0; i < p.size(); ++i) {
    sums.kld += static_cast<double>(p[i]) * static_cast<double>(dense[i] - coded[i]);
  }
  sums.top1 += find_largest(dense) == find_largest(coded) ? 1 : 0;
}

double packed_bits_of_a_value(const cache::Cache& cache) {
  double bits = 0;
  double values = 0;
  for (const cache::Layer& layer : cache.layers) {
    const auto& attention = std::get<cache::AttentionLayer>(layer);
    for (const cache::Side* side : {&attention.k, &attention.v}) {
      const auto n_blocks = cache::packed_block_count(*side);
      const auto* turbo = std::get_if<cache::TurboSide>(side);
      for (std::int64_t i = 0; turbo != nullptr && i < n_blocks; ++i) {
        bits += 8.0 * static_cast<double>(cache::packed_block_bytes(*turbo, attention.shape, i));
        values += static_cast<double>(cache::kTokenBlock * attention.shape.n_kv_heads *
                                      attention.shape.head_dim);
      }
    }
  }
  return values == 0 ? 0 : bits / values;
}

// Shapes: ids [window + 1]: the last one is predicted, and predicts nothing.
void measure_window(model::Decoder& decoder, const model::Model& model,
                    std::span<const std::int32_t> ids, double& dense_surprise,
                    std::span<Quality> ways) {
  Dense dense = {to_size(model.config.vocab_size), {}};
  cache::Cache cache = must(model::make_cache(model, Dtype::kF32));
  const std::span<const std::int32_t> window = ids.first(ids.size() - 1);
  must(decoder.prefill_all_logits(
      cache, window, [&](std::int64_t, std::int64_t, std::span<const float> rows) {
        dense.logits.insert(dense.logits.end(), rows.begin(), rows.end());
      }));
  for (std::size_t i = 0; i < window.size(); ++i) {
    dense_surprise += surprise(dense.row(i), ids[i + 1]);
  }
  for (Quality& way : ways) {
    const cache::Cache turbo = must(cache::convert(cache, way.options));
    way.bits_of_a_value = packed_bits_of_a_value(turbo);
    cache::Cache coded = must(model::make_cache(model, Dtype::kF32));
    const model::LogitsSink sink = [&](std::int64_t first, std::int64_t n,
                                       std::span<const float> rows) {
      for (std::size_t i = 0; i < to_size(n); ++i) {
        const std::size_t token = to_size(first) + i;
        const std::span<const float> row = rows.subspan(i * dense.n_words, dense.n_words);
        add_row(dense.row(token), row, ids[token + 1], way);
      }
    };
    must(decoder.prefill_all_logits(coded, window, sink, {}, model::coding_filter(turbo)));
  }
}

}  // namespace

double measure(const model::Model& model, std::span<const std::int32_t> ids, std::int64_t window,
               std::int64_t n_windows, std::span<Quality> ways) {
  model::Decoder decoder(model, 0);
  double dense_surprise = 0;
  for (std::int64_t i = 0; i < n_windows; ++i) {
    measure_window(decoder, model, ids.subspan(to_size(i * window), to_size(window + 1)),
                   dense_surprise, ways);
  }
  const auto n_predictions = static_cast<double>(n_windows * window);
  for (Quality& way : ways) {
    way.kld /= n_predictions;
    way.top1 /= n_predictions;
    way.perplexity = std::exp(way.perplexity / n_predictions);
  }
  return std::exp(dense_surprise / n_predictions);
}

}  // namespace tqcache::test
