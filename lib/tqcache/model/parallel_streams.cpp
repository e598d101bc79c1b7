#include "tqcache/model/parallel_streams.h"

#include <algorithm>
#include <cmath>

#include "tqcache/base/integers.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/norms.h"

namespace tqcache::model {

constexpr float kLeastMeanSquare = 1e-5f;

// Makes every row of `of` as long as that of x.
void ParallelStreams::match_magnitude(std::span<const float> x, std::span<float> of) {
  const std::size_t size = to_size(config_.d_model);
  for (std::size_t first = 0; first < of.size(); first += size) {
    const auto row = of.subspan(first, size);
    const float factor = magnitude(x.subspan(first, size)) / magnitude(row, kLeastMeanSquare);
    for (float& value : row) value *= factor;
  }
}

void ParallelStreams::begin(std::int64_t n, std::span<const float> x, const Workers& workers) {
  n_ = n;
  grow(streams_, n_others() * n * config_.d_model);
  for (std::int64_t i = 0; i < n_others(); ++i) {
    multiply_rows(n, x, {{&weights_.to_streams[to_size(i)], stream(i).data()}}, bits_, workers);
    match_magnitude(x, stream(i));
  }
}

// coefficients = matrix m(x).
void ParallelStreams::find_coefficients(const ParallelWeights& weights, const Matrix& matrix,
                                        std::span<const float> x, const Workers& workers) {
  const std::size_t size = to_size(config_.d_model);
  grow(normed_, n_ * config_.d_model);
  grow(modalities_, n_ * config_.n_streams);
  grow(coefficients_, n_ * matrix.n_rows);
  for (std::size_t first = 0; first < to_size(n_) * size; first += size) {
    const auto out = std::span(normed_).subspan(first, size);
    rms_norm(x.subspan(first, size), weights.router_norm, config_.rms_norm_epsilon, out);
    for (float& value : out) value /= static_cast<float>(size);
  }
  multiply_rows(n_, normed_, {{&weights.router, modalities_.data()}}, bits_, workers);
  for (float& value : modalities_) value = std::tanh(value);
  multiply_rows(n_, modalities_, {{&matrix, coefficients_.data()}}, bits_, workers);
}

void ParallelStreams::predict(std::int64_t layer, std::span<float> x, const Workers& workers) {
  const ParallelWeights& weights = weights_.layers[to_size(layer)].parallel;
  find_coefficients(weights, weights.predict, x, workers);
  const std::size_t size = to_size(config_.d_model), n_streams = to_size(config_.n_streams);
  workers.run(to_size(n_), [&](std::size_t row) {
    const float* const factors = coefficients_.data() + row * n_streams * n_streams;
    std::vector<float*> rows = {x.data() + row * size};
    for (std::int64_t i = 0; i < n_others(); ++i) rows.push_back(stream(i).data() + row * size);
    std::vector<float> old(n_streams);
    for (std::size_t at = 0; at < size; ++at) {
      for (std::size_t j = 0; j < n_streams; ++j) old[j] = rows[j][at];
      for (std::size_t i = 0; i < n_streams; ++i) {
        for (std::size_t j = 0; j < n_streams; ++j)
          rows[i][at] += factors[i * n_streams + j] * old[j];
      }
    }
  });
  predicted_.assign(x.begin(), x.begin() + n_ * config_.d_model);
}

void ParallelStreams::correct(std::int64_t layer, std::span<float> x, const Workers& workers) {
  const ParallelWeights& weights = weights_.layers[to_size(layer)].parallel;
  find_coefficients(weights, weights.correct, x, workers);
  const std::size_t size = to_size(config_.d_model);
  for (std::size_t i = 0; i < to_size(n_) * size; ++i) {
    const float* const factors = coefficients_.data() + i / size * to_size(config_.n_streams);
    const float innovation = x[i] - predicted_[i];
    x[i] = predicted_[i] + (1 + factors[0]) * innovation;
    for (std::int64_t j = 0; j < n_others(); ++j) {
      stream(j)[i] += (1 + factors[j + 1]) * innovation;
    }
  }
}

void ParallelStreams::add(std::span<const float> update) {
  for (std::int64_t i = 0; i < n_others(); ++i) {
    const std::span<float> to = stream(i);
    for (std::size_t at = 0; at < to.size(); ++at) to[at] += update[at];
  }
}

void ParallelStreams::finish(std::span<float> x, const Workers& workers) {
  predicted_.assign(x.begin(), x.begin() + n_ * config_.d_model);
  for (std::int64_t i = 0; i < n_others(); ++i) {
    multiply_rows(n_, stream(i), {{&weights_.from_streams[to_size(i)], normed_.data()}}, bits_,
                  workers);
    const auto back = std::span(normed_).first(predicted_.size());
    match_magnitude(predicted_, back);
    for (std::size_t at = 0; at < back.size(); ++at) x[at] += back[at];
  }
  for (float& value : x.first(predicted_.size())) value /= static_cast<float>(config_.n_streams);
}

std::uint64_t ParallelStreams::scratch_bytes() const {
  return (streams_.size() + predicted_.size() + normed_.size() + modalities_.size() +
          coefficients_.size()) *
         sizeof(float);
}

}  // namespace tqcache::model
