#include "tqcache/eval/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/codec/kernels/row_transform.h"
#include "tqcache/codec/trellis/symmetric_eigen.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/eval/calibration_state.h"
#include "tqcache/eval/divergence.h"
#include "tqcache/eval/predicted.h"
#include "tqcache/eval/principal_directions.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/products.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/predict/integer_matrix.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"

namespace tqcache::eval {
namespace {

using predict::TensorProfile;

constexpr std::int64_t kSkippedTokens = 4;  // first tokens of a window that are left out
constexpr double kRidge = 1e-3;             // of the mean diagonal
constexpr double kInputNoise = 0.15;   // of decoded neighbors, relative to the rms of the tensor
constexpr double kMetricFloor = 0.2;   // of the mean eigenvalue
constexpr double kMetricPower = 0.75;  // flattens metrics
constexpr double kTensorPower = 0.85;  // flattens sensitivities
constexpr double kUnitsPerDeviation = 128;
constexpr double kNoiseShare = 0.02;  // of the variance of a tensor, to measure its sensitivity
constexpr std::array kCurve = {0.003, 0.01, 0.03, 0.1, 0.3};  // divergences to measure steps at
constexpr int kCalibrationRevision = 1;                       // of what a checkpoint holds
constexpr std::chrono::seconds kCheckpointPeriod(120);
constexpr std::int64_t kQueriesPerBlock = 4;
constexpr std::int64_t kQueryBlocks = 4;    // of a window
constexpr std::int64_t kMetricWindows = 4;  // whose queries are read

std::size_t at(std::size_t row, std::size_t col, std::size_t n) { return row * n + col; }

// --- Tokens

// Windows of the texts, in turn, spread evenly over each.
std::vector<std::vector<std::int32_t>> take_windows(
    std::span<const std::vector<std::int32_t>> texts, const CalibrationOptions& options) {
  const auto n_texts = static_cast<std::int64_t>(texts.size());
  const std::int64_t n_wanted = std::max<std::int64_t>(1, options.n_tokens / options.window);
  std::vector<std::vector<std::int32_t>> windows;
  std::int64_t n_left = n_wanted, texts_left = n_texts;
  for (const std::vector<std::int32_t>& text : texts) {
    const std::int64_t n_own = std::ssize(text) / options.window;
    const std::int64_t n = std::min(n_own, (n_left + texts_left - 1) / texts_left);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t number = (2 * i + 1) * n_own / (2 * n);
      const auto first = text.begin() + number * options.window;
      windows.emplace_back(first, first + options.window);
    }
    n_left -= n;
    --texts_left;
  }
  return windows;
}

// The covariance of wider embeddings is not computed: its eigenvectors take minutes.
constexpr std::size_t kMostWholeWidth = 1024;

bool has_features(const model::Model& model, const CalibrationOptions& options) {
  return options.n_features > 0 && model.config.d_model <= kMaxFeatureWidth;
}

// The principal directions of the embeddings of frequent tokens, and every token along them.
Result<void> make_features(const model::Model& model,
                           const std::vector<std::vector<std::int32_t>>& windows,
                           const CalibrationOptions& options, predict::Profile& profile) {
  const model::Matrix& embedding = model.weights->token_embedding;
  const std::size_t dim = to_size(embedding.n_cols);
  if (!has_features(model, options)) return {};
  const std::size_t n_features = std::min(to_size(options.n_features), dim);
  std::map<std::int32_t, double> counts;
  for (const auto& window : windows) {
    for (const std::int32_t id : window) ++counts[id];
  }
  const auto load = [&](std::int64_t id, std::span<float> row) {
    model::load_rows(embedding, id, 1, row);
    double squares = 1e-12;
    for (const float x : row) squares += double{x} * double{x};
    const auto factor = static_cast<float>(std::sqrt(static_cast<double>(dim) / squares));
    for (float& x : row) x *= factor;
  };
  const std::vector<std::pair<std::int32_t, double>> tokens(counts.begin(), counts.end());
  const auto load_token = [&](std::size_t i, std::span<float> row) {
    load(tokens[i].first, row);
    const auto factor = static_cast<float>(std::sqrt(tokens[i].second));
    for (float& x : row) x *= factor;
  };
  codec::SymmetricEigen eigen;
  if (dim <= kMostWholeWidth) {
    AlignedFloats rows(tokens.size() * dim), sums(dim * dim);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      load_token(i, std::span(rows).subspan(i * dim, dim));
    }
    codec::multiply_columns(rows, rows, dim, sums);
    const Doubles covariance(sums.begin(), sums.end());
    TQC_TRY_ASSIGN(eigen, codec::symmetric_eigen(dim, covariance));
  } else {
    TQC_TRY_ASSIGN(eigen, principal_directions(dim, tokens.size(), load_token, n_features));
  }
  profile.n_features = static_cast<std::int64_t>(n_features);
  profile.vocab_size = embedding.n_rows;
  profile.features.resize(to_size(embedding.n_rows) * n_features);
  const double n_read =
      std::accumulate(counts.begin(), counts.end(), 0.0,
                      [](double sum, const auto& each) { return sum + each.second; });
  constexpr std::size_t kRows = 256;
  const std::size_t n_jobs = (to_size(embedding.n_rows) + kRows - 1) / kRows;
  parallel_for(n_jobs, options.n_threads, [&](std::size_t job) {
    std::vector<float> row(dim);
    for (std::size_t id = job * kRows; id < std::min((job + 1) * kRows, to_size(embedding.n_rows));
         ++id) {
      load(static_cast<std::int64_t>(id), row);
      for (std::size_t i = 0; i < n_features; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < dim; ++j) sum += double{row[j]} * eigen.vectors[i * dim + j];
        const double deviation = std::sqrt(std::max(eigen.values[i] / n_read, 1e-12));
        const double units = std::clamp(std::round(sum / deviation * 24), -127.0, 127.0);
        profile.features[id * n_features + i] = static_cast<std::int8_t>(units);
      }
    }
  });
  return {};
}

// --- Moments

// Keys (before RoPE) and values of one window, one layer after another: columns of tokens.
class WindowColumns {
 public:
  WindowColumns(std::size_t n_layers, std::size_t dim, std::size_t n)
      : dim_(dim), n_(n), values_(n_layers * 2 * dim * n) {}
  std::size_t n() const { return n_; }
  // [2 dim, n]: channels of keys, then of values.
  float* layer(std::size_t index) { return values_.data() + index * 2 * dim_ * n_; }

 private:
  std::size_t dim_, n_;
  AlignedFloats values_;
};

Result<void> read_columns(const cache::Cache& cache, std::int64_t n_tokens, const cache::Rope& rope,
                          const predict::Profile& profile, unsigned n_threads,
                          WindowColumns& columns) {
  const std::size_t dim = to_size(profile.channels());
  const std::size_t n_skipped = to_size(kSkippedTokens);
  return parallel_try(cache.layers.size(), n_threads, [&](std::size_t l) -> Result<void> {
    const cache::AttentionLayer& layer = *cache::attention_of(cache.layers[l]);
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const std::size_t n = to_size(cache::tokens_in_block(n_tokens, block));
      const std::size_t head_dim = to_size(profile.shape.head_dim);
      AlignedFloats rows(n * dim), head(n * head_dim);
      for (const bool is_value : {false, true}) {
        for (std::int64_t h = 0; h < profile.shape.n_kv_heads; ++h) {
          cache::read_block(is_value ? layer.v : layer.k, profile.shape, n_tokens, block, h, head);
          for (std::size_t t = 0; t < n; ++t) {
            std::copy_n(&head[t * head_dim], head_dim, &rows[t * dim + to_size(h) * head_dim]);
          }
        }
        const std::int64_t first = block * cache::kTokenBlock;
        if (!is_value) predict::BlockRope(rope, profile.shape, first, n).rotate_back(rows);
        float* const out = columns.layer(l) + (is_value ? dim * columns.n() : 0);
        for (std::size_t t = block == 0 ? n_skipped : 0; t < n; ++t) {
          const std::size_t column = to_size(first) + t - n_skipped;
          for (std::size_t i = 0; i < dim; ++i) out[i * columns.n() + column] = rows[t * dim + i];
        }
      }
    }
    return {};
  });
}

void add_product(const float* a, std::size_t m, const float* b, std::size_t n, std::size_t k,
                 Doubles& sum, AlignedFloats& scratch) {
  const auto as_int = [](std::size_t x) { return static_cast<std::int64_t>(x); };
  grow(scratch, m * n);
  model::multiply_transposed(as_int(m), as_int(n), as_int(k), {a, as_int(k)}, {b, as_int(k)},
                             {scratch.data(), as_int(n)});
  for (std::size_t i = 0; i < m * n; ++i) sum[i] += double{scratch[i]};
}

void add_window(WindowColumns& columns, std::span<const std::int32_t> ids,
                const predict::Profile& profile, unsigned n_threads, Moments& moments) {
  const std::size_t n = columns.n(), width = 2 * moments.dim, n_layers = moments.sums.size();
  const std::size_t n_features = moments.n_features;
  AlignedFloats features(n_features * n);
  for (std::size_t t = 0; t < n; ++t) {
    const std::size_t row = to_size(ids[t + to_size(kSkippedTokens)]) * n_features;
    for (std::size_t i = 0; i < n_features; ++i) {
      features[i * n + t] = static_cast<float>(profile.features[row + i]);
    }
  }
  const bool is_first = moments.n == 0;
  parallel_for(n_layers, n_threads, [&](std::size_t l) {
    float* const own = columns.layer(l);
    for (std::size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::size_t t = 0; t < n; ++t) sum += double{own[i * n + t]};
      if (is_first) moments.shift[l][i] = sum / static_cast<double>(n);
      const double shift = moments.shift[l][i];
      moments.sums[l][i] += sum - shift * static_cast<double>(n);
      for (std::size_t t = 0; t < n; ++t) {
        own[i * n + t] = static_cast<float>(double{own[i * n + t]} - shift);
      }
    }
  });
  parallel_for(n_layers, n_threads, [&](std::size_t l) {
    AlignedFloats scratch;
    for (std::size_t distance = 0; distance <= std::min(moments.depth, l); ++distance) {
      add_product(columns.layer(l), width, columns.layer(l - distance), width, n,
                  moments.products[l][distance], scratch);
    }
    if (n_features == 0) return;
    add_product(columns.layer(l), width, features.data(), n_features, n, moments.with_features[l],
                scratch);
  });
  moments.n += static_cast<double>(n);
  if (n_features == 0) return;
  AlignedFloats scratch;
  add_product(features.data(), n_features, features.data(), n_features, n, moments.features,
              scratch);
  for (std::size_t i = 0; i < n_features; ++i) {
    for (std::size_t t = 0; t < n; ++t) moments.feature_sums[i] += double{features[i * n + t]};
  }
}

// Sums of products become covariances. (Features are not centered: their sums stay in.)
void center(Moments& moments) {
  const double n = moments.n;
  const std::size_t width = 2 * moments.dim;
  for (std::size_t l = 0; l < moments.sums.size(); ++l) {
    for (double& sum : moments.sums[l]) sum /= n;
  }
  for (std::size_t l = 0; l < moments.sums.size(); ++l) {
    for (std::size_t distance = 0; distance < moments.products[l].size(); ++distance) {
      Doubles& matrix = moments.products[l][distance];
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t j = 0; j < width; ++j) {
          matrix[at(i, j, width)] =
              matrix[at(i, j, width)] / n - moments.sums[l][i] * moments.sums[l - distance][j];
        }
      }
    }
    Doubles& matrix = moments.with_features[l];
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t j = 0; j < moments.n_features; ++j) {
        double& value = matrix[at(i, j, moments.n_features)];
        value = (value - moments.sums[l][i] * moments.feature_sums[j]) / n;
      }
    }
  }
  for (double& value : moments.features) value /= n;
}

// --- Metrics

// sum over queries i and keys j of p (1 - p) q q^T, q rotated back to the position of the key.
Result<void> add_key_metric(model::Decoder& decoder, const cache::Cache& cache,
                            const model::Model& model, const CalibrationOptions& options,
                            std::vector<HeadMetrics>& metrics) {
  const std::int64_t n_tokens = cache.n_tokens();
  const cache::HeadShape shape = model.config.head_shape();
  const std::size_t head_dim = to_size(shape.head_dim);
  const std::size_t group = to_size(model.config.n_heads / shape.n_kv_heads);
  const std::int64_t n_blocks = n_tokens / cache::kTokenBlock;
  for (std::int64_t i = 0; i < kQueryBlocks; ++i) {
    const std::int64_t block = (2 * i + 1) * n_blocks / (2 * kQueryBlocks);
    const std::int64_t first = block * cache::kTokenBlock + cache::kTokenBlock - kQueriesPerBlock;
    const std::size_t n_keys = to_size(first + kQueriesPerBlock);
    const predict::BlockRope rope(model.config.rope, {1, shape.head_dim}, 0, n_keys);
    const auto sink = [&](std::int64_t index, std::span<const float> queries) -> Result<void> {
      const auto& layer = *cache::attention_of(cache.layers[to_size(index)]);
      parallel_for(to_size(shape.n_kv_heads), options.n_threads, [&](std::size_t h) {
        AlignedFloats keys(n_keys * head_dim), rotated(n_keys * head_dim),
            sums(head_dim * head_dim);
        AlignedFloats block_keys(to_size(cache::kTokenBlock) * head_dim);
        for (std::size_t t = 0; t < n_keys; t += to_size(cache::kTokenBlock)) {
          const auto b = static_cast<std::int64_t>(t) / cache::kTokenBlock;
          const std::size_t n_in = to_size(cache::tokens_in_block(n_tokens, b)) * head_dim;
          cache::read_block(layer.k, shape, n_tokens, b, static_cast<std::int64_t>(h),
                            std::span(block_keys).first(n_in));
          std::copy_n(block_keys.begin(), std::min(n_in, keys.size() - t * head_dim),
                      keys.begin() + static_cast<std::ptrdiff_t>(t * head_dim));
        }
        Doubles weights(n_keys);
        for (std::int64_t t = 0; t < kQueriesPerBlock; ++t) {
          for (std::size_t g = 0; g < group; ++g) {
            const std::size_t row = to_size(t * model.config.n_heads) + h * group + g;
            const float* const q = queries.data() + row * head_dim;
            const std::size_t n_seen = to_size(first + t) + 1;
            double most = -1e300, total = 0;
            for (std::size_t j = 0; j < n_seen; ++j) {
              double score = 0;
              for (std::size_t c = 0; c < head_dim; ++c) {
                score += double{q[c]} * double{keys[j * head_dim + c]};
              }
              weights[j] = score * double{model.config.score_scale()};
              most = std::max(most, weights[j]);
            }
            for (std::size_t j = 0; j < n_seen; ++j)
              total += weights[j] = std::exp(weights[j] - most);
            std::fill(rotated.begin(), rotated.end(), 0.0f);
            for (std::size_t j = to_size(kSkippedTokens); j < n_seen; ++j) {
              const double p = weights[j] / total;
              const auto root = static_cast<float>(std::sqrt(p * (1 - p)));
              for (std::size_t c = 0; c < head_dim; ++c) rotated[j * head_dim + c] = root * q[c];
            }
            rope.rotate_back(rotated);
            codec::multiply_columns(rotated, rotated, head_dim, sums);
            Doubles& metric = metrics[to_size(index)][h];
            for (std::size_t c = 0; c < sums.size(); ++c) {
              if (c % head_dim <= c / head_dim) metric[c] += double{sums[c]};
            }
          }
        }
      });
      return {};
    };
    TQC_TRY(decoder.queries(cache, first, kQueriesPerBlock, sink));
  }
  return {};
}

// W^T W of the output projection, summed over the query heads of each kv head.
HeadMetrics value_metric(const model::Model& model, std::size_t layer) {
  const model::Matrix& output = model.weights->layers[layer].attention.output;
  const std::size_t head_dim = to_size(model.config.head_dim);
  const std::size_t n_heads = to_size(model.config.n_heads), n_rows = to_size(output.n_rows);
  const std::size_t n_kv_heads = to_size(model.config.n_kv_heads);
  AlignedFloats rows(n_rows * n_heads * head_dim), head(n_rows * head_dim),
      sums(head_dim * head_dim);
  model::load_rows(output, 0, output.n_rows, rows);
  HeadMetrics metrics(n_kv_heads, Doubles(head_dim * head_dim));
  for (std::size_t h = 0; h < n_heads; ++h) {
    for (std::size_t row = 0; row < n_rows; ++row) {
      std::copy_n(&rows[(row * n_heads + h) * head_dim], head_dim, &head[row * head_dim]);
    }
    codec::multiply_columns(head, head, head_dim, sums);
    Doubles& metric = metrics[h / (n_heads / n_kv_heads)];
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (i % head_dim <= i / head_dim) metric[i] += double{sums[i]};
    }
  }
  return metrics;
}

// --- Predictors and maps

// The lower triangle of a = L L^T, in place. Requires: a is positive definite.
void factorize(std::size_t n, Doubles& a) {
  for (std::size_t j = 0; j < n; ++j) {
    const double root = std::sqrt(std::max(a[at(j, j, n)], 1e-30));
    a[at(j, j, n)] = root;
    // Column j below the diagonal, kept in row j above it, so that rows are contiguous.
    double* const __restrict row = &a[at(j, 0, n)];
    for (std::size_t i = j + 1; i < n; ++i) row[i] /= root;
    for (std::size_t i = j + 1; i < n; ++i) {
      const double factor = row[i];
      double* const __restrict to = &a[at(i, 0, n)];
      for (std::size_t k = i; k < n; ++k) to[k] -= factor * row[k];
    }
  }
}

// Solves L L^T x = b, where row j of `upper` from its diagonal on is column j of L. Shapes: b [n,
// m].
void solve(std::size_t n, const Doubles& upper, std::size_t m, Doubles& b) {
  for (std::size_t j = 0; j < n; ++j) {
    double* const __restrict own = &b[j * m];
    for (std::size_t c = 0; c < m; ++c) own[c] /= upper[at(j, j, n)];
    for (std::size_t i = j + 1; i < n; ++i) {
      const double factor = upper[at(j, i, n)];
      double* const __restrict to = &b[i * m];
      for (std::size_t c = 0; c < m; ++c) to[c] -= factor * own[c];
    }
  }
  for (std::size_t j = n; j-- > 0;) {
    double* const __restrict own = &b[j * m];
    for (std::size_t i = j + 1; i < n; ++i) {
      const double factor = upper[at(j, i, n)];
      const double* const __restrict from = &b[i * m];
      for (std::size_t c = 0; c < m; ++c) own[c] -= factor * from[c];
    }
    for (std::size_t c = 0; c < m; ++c) own[c] /= upper[at(j, j, n)];
  }
}

// The covariance of two inputs or outputs, by their places: channel of a layer, or feature.
struct Place {
  bool is_feature = false;
  std::size_t layer = 0;
  std::size_t index = 0;  // channel of keys, then of values; or the feature
};

double covariance(const Moments& moments, Place a, Place b) {
  const std::size_t width = 2 * moments.dim;
  if (a.is_feature && b.is_feature) {
    return moments.features[at(a.index, b.index, moments.n_features)];
  }
  if (a.is_feature) std::swap(a, b);
  if (b.is_feature) return moments.with_features[a.layer][at(a.index, b.index, moments.n_features)];
  if (a.layer < b.layer) std::swap(a, b);
  return moments.products[a.layer][a.layer - b.layer][at(a.index, b.index, width)];
}

std::vector<Place> inputs_of(const Moments& moments, std::size_t tensor) {
  std::vector<Place> places;
  const std::size_t layer = tensor / 2;
  for (std::size_t i = 1; i <= std::min(moments.depth, layer); ++i) {
    for (std::size_t c = 0; c < 2 * moments.dim; ++c) places.push_back({false, layer - i, c});
  }
  for (std::size_t c = 0; c < moments.n_features; ++c) places.push_back({true, 0, c});
  if (tensor % 2 == 0) return places;
  for (std::size_t c = 0; c < moments.dim; ++c) places.push_back({false, layer, c});
  return places;
}

// What becomes of one tensor: its profile, and the covariance of its residual.
struct TensorWork {
  Doubles residual;  // [dim, dim]
  Doubles root;      // [dim, dim] square root of the metric, and its inverse
  Doubles root_back;
  double variance = 0;  // sum over channels
};

double unit_of(const Moments& moments, Place place) {
  if (place.is_feature) return 1;
  return std::max(std::sqrt(std::max(covariance(moments, place, place), 0.0)), 1e-12) /
         kUnitsPerDeviation;
}

// Columns of bytes with a scale each. Shapes: values [n, dim].
void quantize_columns(const Doubles& values, std::size_t n, std::size_t dim,
                      std::vector<std::int8_t>& bytes, std::vector<float>& scales) {
  bytes.resize(n * dim);
  scales.assign(dim, 0);
  for (std::size_t c = 0; c < dim; ++c) {
    double most = 1e-20;
    for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::abs(values[at(i, c, dim)]));
    scales[c] = static_cast<float>(most / 127);
    for (std::size_t i = 0; i < n; ++i) {
      const double units = std::round(values[at(i, c, dim)] / double{scales[c]});
      bytes[at(i, c, dim)] = static_cast<std::int8_t>(std::clamp(units, -127.0, 127.0));
    }
  }
}

void fit_predictor(const Moments& moments, std::size_t tensor, TensorProfile& out,
                   TensorWork& work) {
  const std::size_t dim = moments.dim, layer = tensor / 2;
  const std::size_t offset = tensor % 2 == 0 ? 0 : dim;
  const std::vector<Place> inputs = inputs_of(moments, tensor);
  const std::size_t n = inputs.size();
  std::vector<double> units(n);
  for (std::size_t i = 0; i < n; ++i) units[i] = unit_of(moments, inputs[i]);
  // In units of the inputs, as the decoder has them.
  Doubles gram(n * n), target(n * dim);
  std::vector<double> rms(moments.sums.size() * 2, 0);
  for (const Place& place : inputs) {
    if (place.is_feature) continue;
    rms[2 * place.layer + place.index / dim] +=
        covariance(moments, place, place) / static_cast<double>(dim);
  }
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i; j < n; ++j) {
      gram[at(i, j, n)] = covariance(moments, inputs[i], inputs[j]) / (units[i] * units[j]);
    }
    if (!inputs[i].is_feature) {
      const double noise = rms[2 * inputs[i].layer + inputs[i].index / dim];
      gram[at(i, i, n)] += kInputNoise * kInputNoise * noise / (units[i] * units[i]);
    }
    trace += gram[at(i, i, n)];
    for (std::size_t c = 0; c < dim; ++c) {
      target[at(i, c, dim)] = covariance(moments, inputs[i], {false, layer, offset + c}) / units[i];
    }
  }
  Doubles upper = gram, weights = target;
  for (std::size_t i = 0; i < n; ++i) {
    upper[at(i, i, n)] += kRidge * trace / static_cast<double>(std::max<std::size_t>(n, 1));
  }
  factorize(n, upper);
  solve(n, upper, dim, weights);
  quantize_columns(weights, n, dim, out.weights, out.weight_scale);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < dim; ++c) {
      weights[at(i, c, dim)] = double{out.weight_scale[c]} * out.weights[at(i, c, dim)];
    }
  }
  // S_yy - A^T T - T^T A + A^T G A, with the noise of decoded inputs.
  Doubles product(n * dim);
  for (std::size_t i = 0; i < n; ++i) {
    double* const __restrict to = &product[i * dim];
    for (std::size_t j = 0; j < n; ++j) {
      const double factor = gram[i <= j ? at(i, j, n) : at(j, i, n)];
      const double* const __restrict from = &weights[j * dim];
      for (std::size_t c = 0; c < dim; ++c) to[c] += factor * from[c];
    }
    for (std::size_t c = 0; c < dim; ++c) to[c] -= target[at(i, c, dim)];
  }
  work.residual.assign(dim * dim, 0);
  double unexplained = 0;
  for (std::size_t a = 0; a < dim; ++a) {
    for (std::size_t b = 0; b < dim; ++b) {
      work.residual[at(a, b, dim)] =
          covariance(moments, {false, layer, offset + a}, {false, layer, offset + b});
    }
  }
  for (std::size_t a = 0; a < dim; ++a) work.variance += work.residual[at(a, a, dim)];
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t a = 0; a < dim; ++a) {
      const double weight = weights[at(i, a, dim)], wanted = target[at(i, a, dim)];
      double* const __restrict to = &work.residual[a * dim];
      for (std::size_t b = 0; b < dim; ++b) {
        to[b] += weight * product[at(i, b, dim)] - wanted * weights[at(i, b, dim)];
      }
    }
  }
  for (std::size_t a = 0; a < dim; ++a) {
    unexplained += work.residual[at(a, a, dim)];
    for (std::size_t b = 0; b < a; ++b) {
      const double mean = (work.residual[at(a, b, dim)] + work.residual[at(b, a, dim)]) / 2;
      work.residual[at(a, b, dim)] = work.residual[at(b, a, dim)] = mean;
    }
  }
  out.explained = static_cast<float>(1 - unexplained / std::max(work.variance, 1e-30));
  for (std::size_t c = 0; c < dim; ++c) {
    const Place place{false, layer, offset + c};
    out.mean.push_back(
        static_cast<float>(moments.shift[layer][offset + c] + moments.sums[layer][offset + c]));
    out.unit.push_back(static_cast<float>(unit_of(moments, place)));
  }
}

// The square root of the flattened metric, of geometric mean 1, and its inverse.
Result<void> fit_root(const HeadMetrics& metrics, std::size_t head_dim, TensorWork& work) {
  const std::size_t dim = metrics.size() * head_dim;
  std::vector<codec::SymmetricEigen> heads;
  double mean = 0;
  for (const Doubles& metric : metrics) {
    TQC_TRY_ASSIGN(codec::SymmetricEigen eigen, codec::symmetric_eigen(head_dim, metric));
    for (const double value : eigen.values) mean += std::max(value, 0.0) / static_cast<double>(dim);
    heads.push_back(std::move(eigen));
  }
  double logarithms = 0;
  for (auto& eigen : heads) {
    for (double& value : eigen.values) {
      value = std::pow(std::max(value, 0.0) / std::max(mean, 1e-300) + kMetricFloor, kMetricPower);
      logarithms += std::log(value) / static_cast<double>(dim);
    }
  }
  work.root.assign(dim * dim, 0);
  work.root_back.assign(dim * dim, 0);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    for (std::size_t e = 0; e < head_dim; ++e) {
      const double root = std::sqrt(heads[h].values[e] / std::exp(logarithms));
      const double* const vector = &heads[h].vectors[e * head_dim];
      for (std::size_t i = 0; i < head_dim; ++i) {
        for (std::size_t j = 0; j < head_dim; ++j) {
          const std::size_t place = at(h * head_dim + i, h * head_dim + j, dim);
          work.root[place] += root * vector[i] * vector[j];
          work.root_back[place] += vector[i] * vector[j] / root;
        }
      }
    }
  }
  return {};
}

Doubles multiplied(const Doubles& a, const Doubles& b, std::size_t dim) {
  Doubles out(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    double* const __restrict to = &out[i * dim];
    for (std::size_t k = 0; k < dim; ++k) {
      const double factor = a[at(i, k, dim)];
      const double* const __restrict from = &b[k * dim];
      for (std::size_t j = 0; j < dim; ++j) to[j] += factor * from[j];
    }
  }
  return out;
}

// Components are the principal directions of the residual in the metric, times `scale`.
Result<void> fit_map(const TensorWork& work, std::size_t dim, double scale, TensorProfile& out) {
  const Doubles weighted = multiplied(multiplied(work.root, work.residual, dim), work.root, dim);
  TQC_TRY_ASSIGN(const codec::SymmetricEigen eigen, codec::symmetric_eigen(dim, weighted));
  Doubles map = multiplied(eigen.vectors, work.root_back, dim);
  for (double& value : map) value /= scale;
  quantize_columns(map, dim, dim, out.map, out.map_scale);
  out.deviation.clear();
  for (const double value : eigen.values) {
    out.deviation.push_back(static_cast<float>(scale * std::sqrt(std::max(value, 1e-12))));
  }
  return {};
}

// --- Sensitivities

// Adds noise to the keys, or the values, of one layer: white in the metric.
model::KvFilter noisy(const predict::Profile& profile, const cache::Rope& rope, std::size_t tensor,
                      const Doubles& root_back, double amplitude) {
  return [&profile, &rope, tensor, &root_back, amplitude](std::int64_t layer, std::int64_t first,
                                                          std::span<float> k,
                                                          std::span<float> v) -> Result<void> {
    if (to_size(layer) != tensor / 2) return {};
    const std::size_t dim = to_size(profile.channels()), n = k.size() / dim;
    std::minstd_rand random(static_cast<std::uint32_t>(tensor * 100'003 + to_size(first) + 1));
    AlignedFloats noise(n * dim);
    Doubles white(dim);
    for (std::size_t t = 0; t < n; ++t) {
      if (first + static_cast<std::int64_t>(t) < kSkippedTokens) continue;
      for (double& each : white) {
        double sum = -6;  // of twelve even numbers: nearly normal, the same with every library
        for (int i = 0; i < 12; ++i) sum += static_cast<double>(random()) / 2147483647.0;
        each = sum * amplitude;
      }
      for (std::size_t i = 0; i < dim; ++i) {
        for (std::size_t j = 0; j < dim; ++j) {
          noise[t * dim + j] += static_cast<float>(white[i] * root_back[at(i, j, dim)]);
        }
      }
    }
    if (tensor % 2 == 0) predict::BlockRope(rope, profile.shape, first, n).rotate(noise);
    const std::span<float> to = tensor % 2 == 0 ? k : v;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += noise[i];
    return {};
  };
}

// Mean divergences from the dense run of a few tokens.
class DivergenceRuns {
 public:
  DivergenceRuns(const model::Model& model, std::span<const std::int32_t> ids, unsigned n_threads,
                 TotalProgress& runs)
      : model_(model),
        ids_(ids),
        n_threads_(n_threads),
        runs_(runs),
        decoder_(model, n_threads),
        vocab_(to_size(model.config.vocab_size)) {}

  Result<void> run_dense() {
    const auto sink = [&](std::int64_t first, std::int64_t, std::span<const float> rows) {
      dense_.insert(dense_.end(), rows.begin(), rows.end());
      softmaxes_.resize(dense_.size() / vocab_);
      parallel_for(rows.size() / vocab_, n_threads_, [&](std::size_t i) {
        std::vector<float> scratch;
        softmaxes_[to_size(first) + i] = softmax_of(rows.subspan(i * vocab_, vocab_), scratch);
      });
    };
    return run(sink, {});
  }

  // Requires: run_dense().
  Result<double> measure(const model::KvFilter& filter) {
    double sum = 0;
    const auto sink = [&](std::int64_t first, std::int64_t n, std::span<const float> rows) {
      std::vector<double> found(to_size(n));
      parallel_for(to_size(n), n_threads_, [&](std::size_t i) {
        std::vector<float> scratch;
        const auto row = rows.subspan(i * vocab_, vocab_);
        const Softmax own = softmax_of(row, scratch);
        const std::size_t token = to_size(first) + i;
        found[i] = divergence(std::span(dense_).subspan(token * vocab_, vocab_), softmaxes_[token],
                              row, own, scratch);
      });
      for (const double each : found) sum += each;
    };
    TQC_TRY(run(sink, filter));
    return sum / static_cast<double>(ids_.size());
  }

 private:
  template <class Sink>
  Result<void> run(const Sink& sink, const model::KvFilter& filter) {
    TQC_TRY_ASSIGN(cache::Cache cache, model::make_cache(model_, Dtype::kF32));
    TQC_TRY(decoder_.prefill_all_logits(cache, ids_, sink, runs_.next_run(), filter));
    runs_.finish_run(ids_.size());
    return {};
  }

  const model::Model& model_;
  std::span<const std::int32_t> ids_;
  unsigned n_threads_;
  TotalProgress& runs_;
  model::Decoder decoder_;
  std::size_t vocab_;
  AlignedFloats dense_;
  std::vector<Softmax> softmaxes_;
};

// Mean divergence by noise in one tensor alone, divided by its squared amplitude.
Result<double> sensitivity_of(const model::Model& model, const predict::Profile& profile,
                              std::size_t tensor, const TensorWork& work, DivergenceRuns& runs) {
  double spread = 0;  // squared length of noise of amplitude 1
  for (const double value : work.root_back) spread += value * value;
  const double amplitude = std::sqrt(kNoiseShare * work.variance / std::max(spread, 1e-30));
  TQC_TRY_ASSIGN(const double kld, runs.measure(noisy(profile, model.config.rope, tensor,
                                                      work.root_back, amplitude)));
  return std::max(kld, 1e-8) / (amplitude * amplitude);
}

// The divergence with everything coded, at the steps that should have these ones.
Result<std::vector<predict::CurvePoint>> measure_curve(const model::Model& model,
                                                       const predict::Profile& profile,
                                                       std::span<const std::int32_t> ids,
                                                       DivergenceRuns& runs) {
  const auto predictor = std::make_shared<const predict::Predictor>(profile, Sha256{});
  std::vector<predict::CurvePoint> curve;
  for (const double expected : kCurve) {
    const auto step = predict::step_of_divergence(profile, expected);
    if (!step) continue;
    PredictedSize size;
    const predict::CurvePoint before = curve.empty() ? predict::CurvePoint{} : curve.back();
    TQC_TRY_ASSIGN(const double kld, runs.measure(predicted_filter(predictor, model.config.rope,
                                                                   static_cast<float>(*step),
                                                                   kSkippedTokens, ids, size)));
    const predict::CurvePoint point{static_cast<float>(*step), static_cast<float>(kld)};
    if (point.step > before.step && point.kld > before.kld) curve.push_back(point);
  }
  return curve;
}

// What the result depends on.
Sha256 digest_of(const predict::Profile& profile, const CalibrationOptions& options,
                 const std::vector<std::vector<std::int32_t>>& windows) {
  Sha256Hasher hasher;
  hasher.update(profile.weights_fingerprint);
  hasher.update(profile.tokenizer_fingerprint);
  hasher.update(as_bytes(fmt::format("{} {} {} {} {}\n", kCalibrationRevision, profile.depth,
                                     profile.n_features, options.window, options.n_sensitivity)));
  for (const auto& window : windows) hasher.update(std::as_bytes(std::span(window)));
  return hasher.finish();
}

// The checkpoint of a calibration: written when it is interrupted, and from time to time.
class Checkpoint {
 public:
  Checkpoint(const std::filesystem::path& path, const Sha256& calibration,
             const CalibrationState& state)
      : path_(path), calibration_(calibration), state_(state) {}

  Result<void> save() {
    saved_ = std::chrono::steady_clock::now();
    if (path_.empty()) return {};
    return in_file(path_.string(), save_state(path_, calibration_, state_));
  }
  Result<void> save_if_due() {
    if (std::chrono::steady_clock::now() - saved_ < kCheckpointPeriod) return {};
    return save();
  }
  // `done`, after saving what is there if it was interrupted.
  template <class T>
  Result<T> passed(Result<T> done) {
    if (!done && done.error().code == ErrorCode::kInterrupted) TQC_TRY(save());
    return done;
  }

 private:
  const std::filesystem::path& path_;
  Sha256 calibration_;
  const CalibrationState& state_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

Result<void> check_model(const model::Model& model, const CalibrationOptions& options) {
  const model::ModelConfig& config = model.config;
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    const model::LayerConfig layer = config.layer(i);
    if (layer.kind != model::LayerKind::kAttention || layer.window != 0) {
      return unsupported(
          fmt::format("layer {} has no full attention: only models with full attention "
                      "in all layers are predicted",
                      i));
    }
    if (!(layer.rope == config.rope)) return unsupported("layers with different RoPE");
  }
  if (config.n_kv_heads * config.head_dim > predict::kMaxChannels) {
    return unsupported(fmt::format("{} channels of keys; predictors have up to {}",
                                   config.n_kv_heads * config.head_dim, predict::kMaxChannels));
  }
  if (options.window < 2 * cache::kTokenBlock || options.window > config.context_length) {
    return invalid(
        fmt::format("a window of {} tokens; calibration needs 512 up to the model's "
                    "context of {}",
                    options.window, config.context_length));
  }
  if (options.depth < 0 || options.depth > predict::kMaxDepth) {
    return invalid(fmt::format("{} earlier layers; predictors use 0 to {}", options.depth,
                               predict::kMaxDepth));
  }
  const std::int64_t n_inputs =
      config.n_kv_heads * config.head_dim * (2 * std::min(options.depth, config.n_layers - 1) + 1) +
      std::max<std::int64_t>(options.n_features, 0);
  if (n_inputs > static_cast<std::int64_t>(predict::kMaxMatrixRows)) {
    return unsupported(
        fmt::format("{} earlier layers and {} features: a predictor would have {} "
                    "inputs, more than {}; use fewer earlier layers",
                    options.depth, options.n_features, n_inputs, predict::kMaxMatrixRows));
  }
  return {};
}

// Refuses what needs more memory than there is, or gives a file that is too large, before anything
// is read.
Result<void> check_size(const model::Model& model, const CalibrationOptions& options) {
  const model::ModelConfig& config = model.config;
  predict::Profile profile;
  profile.shape = config.head_shape();
  profile.depth = std::min(options.depth, config.n_layers - 1);
  if (has_features(model, options)) {
    profile.n_features = std::min(options.n_features, config.d_model);
    profile.vocab_size = config.vocab_size;
  }
  const std::uint64_t dim = to_u64(profile.channels()), square = dim * dim;
  const std::uint64_t n_features = to_u64(profile.n_features);
  const std::uint64_t n_threads = thread_count(options.n_threads);
  std::uint64_t numbers = to_u64(profile.vocab_size) * n_features;  // bytes of the file
  std::uint64_t doubles = n_features * n_features, most_inputs = 0;
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
    for (const std::size_t tensor : {to_size(2 * layer), to_size(2 * layer + 1)}) {
      const std::uint64_t n_inputs = to_u64(profile.n_inputs(tensor));
      numbers += (n_inputs + dim) * dim;
      most_inputs = std::max(most_inputs, n_inputs);
    }
    const std::uint64_t n_before = to_u64(std::min(profile.depth, layer));
    doubles += 4 * square * (n_before + 1) + 2 * dim * n_features;  // sums of products
    doubles += 2 * 3 * square;  // covariance of residuals, roots of metrics
  }
  if (numbers > predict::kMaxProfileBytes) {
    return too_large(
        fmt::format("{} earlier layers: a profile of {} bytes, more than {}; use fewer "
                    "earlier layers",
                    options.depth, numbers, predict::kMaxProfileBytes));
  }
  doubles += n_threads * (2 * most_inputs * most_inputs + 3 * most_inputs * dim);  // of a predictor
  const std::uint64_t columns =
      to_u64(config.n_layers) * 2 * dim * to_u64(options.window) * sizeof(float);
  return options.memory.check(doubles * sizeof(double) + columns + numbers,
                              "the sums of the calibration");
}

}  // namespace

Result<predict::Profile> calibrate(const model::Model& model,
                                   std::span<const std::vector<std::int32_t>> texts,
                                   const CalibrationOptions& options, const Progress& progress) {
  TQC_TRY(check_model(model, options));
  TQC_TRY(check_size(model, options));
  const auto windows = take_windows(texts, options);
  if (windows.empty()) {
    return invalid(fmt::format("no text has {} tokens, the size of a window", options.window));
  }
  const model::ModelConfig& config = model.config;
  predict::Profile profile;
  profile.architecture = model.identity.architecture;
  profile.model_name = model.identity.model_name.substr(0, 128);
  profile.weights_fingerprint = model.identity.weights_fingerprint;
  profile.tokenizer_fingerprint = model.identity.tokenizer_fingerprint;
  profile.n_layers = config.n_layers;
  profile.shape = config.head_shape();
  profile.depth = std::min(options.depth, config.n_layers - 1);
  TQC_TRY(make_features(model, windows, options, profile));

  const std::size_t n_layers = to_size(config.n_layers), dim = to_size(profile.channels());
  const std::size_t n_features = to_size(profile.n_features), width = 2 * dim;
  const std::size_t n_measured = to_size(std::min(options.n_sensitivity, options.window));
  const std::size_t n_read = windows.size() * to_size(options.window);
  TotalProgress runs(progress, n_read + (2 * n_layers + 1 + kCurve.size()) * n_measured);
  CalibrationState state;
  Moments& moments = state.moments;
  moments = {dim, to_size(profile.depth), n_features, 0, {}, {}, {}, {}, {}, {}};
  moments.shift.assign(n_layers, Doubles(width));
  moments.sums.assign(n_layers, Doubles(width));
  moments.with_features.assign(n_layers, Doubles(width * n_features));
  moments.features.assign(n_features * n_features, 0);
  moments.feature_sums.assign(n_features, 0);
  for (std::size_t l = 0; l < n_layers; ++l) {
    moments.products.emplace_back(std::min(moments.depth, l) + 1, Doubles(width * width));
  }
  const std::size_t head_dim = to_size(config.head_dim);
  std::vector<HeadMetrics>& key_metrics = state.key_metrics;
  key_metrics.assign(n_layers,
                     HeadMetrics(to_size(config.n_kv_heads), Doubles(head_dim * head_dim)));
  const Sha256 calibration = digest_of(profile, options, windows);
  if (!options.checkpoint.empty()) {
    TQC_TRY(
        in_file(options.checkpoint.string(), load_state(options.checkpoint, calibration, state)));
    if (state.n_windows > windows.size() || state.sensitivities.size() > 2 * n_layers) {
      return in_file(options.checkpoint.string(), corrupt("a checkpoint of more than there is"));
    }
  }
  Checkpoint checkpoint(options.checkpoint, calibration, state);
  for (std::size_t i = 0; i < state.n_windows; ++i) runs.finish_run(windows[i].size());
  {
    model::Decoder decoder(model, options.n_threads);
    WindowColumns columns(n_layers, dim, to_size(options.window - kSkippedTokens));
    const std::size_t every = std::max<std::size_t>(1, windows.size() / to_size(kMetricWindows));
    for (std::size_t i = static_cast<std::size_t>(state.n_windows); i < windows.size(); ++i) {
      TQC_TRY_ASSIGN(cache::Cache cache, model::make_cache(model, Dtype::kF32));
      TQC_TRY(checkpoint.passed(decoder.prefill(cache, windows[i], runs.next_run())));
      runs.finish_run(windows[i].size());
      TQC_TRY(
          read_columns(cache, options.window, config.rope, profile, options.n_threads, columns));
      add_window(columns, windows[i], profile, options.n_threads, moments);
      if (i % every == 0) TQC_TRY(add_key_metric(decoder, cache, model, options, key_metrics));
      state.n_windows = i + 1;
      TQC_TRY(checkpoint.save_if_due());
    }
  }
  profile.n_tokens = n_read;
  if (state.is_centered == 0) center(moments);
  state.is_centered = 1;
  profile.tensors.resize(2 * n_layers);
  std::vector<TensorWork> works(2 * n_layers);
  TQC_TRY(checkpoint.passed(
      parallel_try(2 * n_layers, options.n_threads, [&](std::size_t tensor) -> Result<void> {
        if (!runs.report(0)) return interrupted_error();
        fit_predictor(moments, tensor, profile.tensors[tensor], works[tensor]);
        return fit_root(tensor % 2 == 0 ? key_metrics[tensor / 2] : value_metric(model, tensor / 2),
                        head_dim, works[tensor]);
      })));
  const auto ids = std::span(windows[windows.size() / 2]).first(n_measured);
  DivergenceRuns divergences(model, ids, options.n_threads, runs);
  TQC_TRY(checkpoint.passed(divergences.run_dense()));
  Doubles& sensitivity = state.sensitivities;
  for (std::size_t tensor = 0; tensor < sensitivity.size(); ++tensor) runs.finish_run(n_measured);
  for (std::size_t tensor = sensitivity.size(); tensor < works.size(); ++tensor) {
    TQC_TRY_ASSIGN(const double found, checkpoint.passed(sensitivity_of(
                                           model, profile, tensor, works[tensor], divergences)));
    sensitivity.push_back(found);
    TQC_TRY(checkpoint.save_if_due());
  }
  double logarithms = 0;
  for (const double each : sensitivity) {
    logarithms += std::log(each) / static_cast<double>(sensitivity.size());
  }
  TQC_TRY(parallel_try(2 * n_layers, options.n_threads, [&](std::size_t tensor) -> Result<void> {
    profile.tensors[tensor].sensitivity = static_cast<float>(sensitivity[tensor]);
    const double flattened =
        logarithms + kTensorPower * (std::log(sensitivity[tensor]) - logarithms);
    return fit_map(works[tensor], dim, std::exp(flattened / 2), profile.tensors[tensor]);
  }));
  TQC_TRY_ASSIGN(profile.curve, checkpoint.passed(measure_curve(model, profile, ids, divergences)));
  return profile;
}

}  // namespace tqcache::eval
