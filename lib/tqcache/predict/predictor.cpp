#include "tqcache/predict/predictor.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/codec/kernels/row_transform.h"

namespace tqcache::predict {
namespace {

// Squared steps that a bit is worth: the slope of error by rate, for steps of 1 between levels.
constexpr float kBitPrice = 0.31f;

// Rounds to the nearest integer, ties to even, within +-kMaxInput; NaN becomes 0.
std::int16_t to_input(float x) {
  constexpr float kLimit = kMaxInput;
  // Behind this sum, the last bit of a float is 1. In contrast to nearbyint(), it is vectorized.
  constexpr float kWhole = 0x1.8p23f;
  const float high = x < kLimit ? x : x == x ? kLimit : 0.0f;
  const float limited = high > -kLimit ? high : -kLimit;
  return static_cast<std::int16_t>(std::bit_cast<std::int32_t>(limited + kWhole) -
                                   std::bit_cast<std::int32_t>(kWhole));
}

}  // namespace

std::int64_t Profile::n_inputs(std::size_t tensor) const {
  const auto layer = static_cast<std::int64_t>(tensor / 2);
  return 2 * channels() * std::min(depth, layer) + n_features + (tensor % 2 == 1 ? channels() : 0);
}

Predictor::Predictor(Profile profile, const Sha256& digest, const MemoryBudget& memory)
    : profile_(std::move(profile)), digest_(digest), memory_(memory) {
  const std::size_t dim = to_size(profile_.channels());
  for (std::size_t i = 0; i < profile_.tensors.size(); ++i) {
    const TensorProfile& from = profile_.tensors[i];
    Tensor tensor{IntegerMatrix(to_size(profile_.n_inputs(i)), dim, from.weights),
                  IntegerMatrix(dim, dim, from.map),
                  {}};
    for (const float unit : from.unit) tensor.per_unit.push_back(1.0f / unit);
    tensors_.push_back(std::move(tensor));
  }
}

BlockCoder::BlockCoder(const Predictor& predictor, float step, std::span<const std::int32_t> tokens,
                       std::size_t n_sinks, const codec::Kernels& kernels)
    : predictor_(predictor),
      kernels_(kernels),
      step_(step),
      n_(tokens.size()),
      n_sinks_(std::min(n_sinks, tokens.size())),
      dim_(to_size(predictor.profile().channels())),
      search_(kBitPrice, kernels.isa),
      activities_(n_, 1),
      sums_(n_),
      classes_(dim_),
      predicted_(n_ * dim_) {
  const Profile& profile = predictor.profile();
  const std::size_t n_features = to_size(profile.n_features);
  features_.resize(n_ * n_features);
  for (std::size_t t = 0; t < n_; ++t) {
    const std::int8_t* const from = profile.features.data() + to_size(tokens[t]) * n_features;
    if (n_features > 0) std::copy_n(from, n_features, features_.data() + t * n_features);
  }
}

// Sets predicted_ and classes_ for the next tensor.
void BlockCoder::predict() {
  const Profile& profile = predictor_.profile();
  const TensorProfile& numbers = profile.tensors[tensor_];
  const IntegerMatrix& weights = predictor_.tensor(tensor_).weights;
  const std::size_t stride = weights.input_stride();
  const std::size_t n_features = to_size(profile.n_features);
  const bool is_value = tensor_ % 2 == 1;
  inputs_.resize(n_ * stride);
  std::size_t at = 0;
  const auto put = [&](const Int16Rows& rows, std::size_t width) {
    for (std::size_t t = 0; t < n_; ++t) {
      std::copy_n(rows.data() + t * width, width, inputs_.data() + t * stride + at);
    }
    at += width;
  };
  // Neighbors are in the order of tensors; values also have the keys of their layer, at the end.
  const std::size_t n_before = neighbors_.size() - (is_value ? 1 : 0);
  const std::size_t n_layers = std::min(to_size(profile.depth), tensor_ / 2);
  for (std::size_t i = 1; i <= n_layers; ++i) {
    put(neighbors_[n_before - 2 * i], dim_);
    put(neighbors_[n_before - 2 * i + 1], dim_);
  }
  put(features_, n_features);
  if (is_value) put(neighbors_.back(), dim_);
  assert(at == weights.n_rows());
  for (std::size_t t = 0; at < stride && t < n_; ++t) inputs_[t * stride + at] = 0;
  const std::size_t out_stride = weights.output_stride();
  products_.resize(n_ * out_stride);
  weights.multiply(inputs_.data(), n_, products_.data(), kernels_.isa);
  for (std::size_t t = 0; t < n_; ++t) {
    const std::int32_t* const __restrict sums = products_.data() + t * out_stride;
    float* const __restrict out = predicted_.data() + t * dim_;
    const float* const __restrict scale = numbers.weight_scale.data();
    for (std::size_t i = 0; i < dim_; ++i) out[i] = static_cast<float>(sums[i]) * scale[i];
  }
  for (std::size_t i = 0; i < dim_; ++i) classes_[i] = class_of(numbers.deviation[i] / step_);
  levels_.resize(n_ * predictor_.tensor(tensor_).map.input_stride());  // of 0 where never written
}

// Adds the decoded residual to the prediction, and keeps the sum as a neighbor.
void BlockCoder::finish(std::span<float> out) {
  const TensorProfile& numbers = predictor_.profile().tensors[tensor_];
  const Predictor::Tensor& tensor = predictor_.tensor(tensor_);
  const std::size_t stride = tensor.map.output_stride();
  products_.resize(n_ * stride);
  tensor.map.multiply(levels_.data(), n_, products_.data(), kernels_.isa);
  std::vector<float> scale(dim_);
  for (std::size_t i = 0; i < dim_; ++i) scale[i] = numbers.map_scale[i] * step_;
  Int16Rows neighbor;
  if (neighbors_.size() > 2 * to_size(predictor_.profile().depth) + 1) {
    neighbor = std::move(neighbors_.front());
    neighbors_.pop_front();
  }
  neighbor.resize(n_ * dim_);  // of 0 in the rows of sink tokens
  std::fill_n(out.begin(), n_sinks_ * dim_, 0.0f);
  for (std::size_t t = n_sinks_; t < n_; ++t) {
    const std::int32_t* const __restrict sums = products_.data() + t * stride;
    const float* const __restrict predicted = predicted_.data() + t * dim_;
    const float* const __restrict factors = scale.data();
    const float* const __restrict per_unit = tensor.per_unit.data();
    const float* const __restrict mean = numbers.mean.data();
    std::int16_t* const __restrict input = neighbor.data() + t * dim_;
    float* const __restrict value = out.data() + t * dim_;
    for (std::size_t i = 0; i < dim_; ++i) {
      const float centered = predicted[i] + static_cast<float>(sums[i]) * factors[i];
      input[i] = to_input(centered * per_unit[i]);
      value[i] = centered + mean[i];
    }
  }
  neighbors_.push_back(std::move(neighbor));
  classify_activities(std::span(sums_).subspan(n_sinks_), std::span(activities_).subspan(n_sinks_));
  ++tensor_;
}

Result<void> BlockCoder::decode(ByteView coded, std::span<float> out) {
  predict();
  RangeDecoder in(coded);
  const std::size_t stride = predictor_.tensor(tensor_).map.input_stride();
  for (std::size_t t = n_sinks_; t < n_; ++t) {
    const auto levels = std::span(levels_).subspan(t * stride, dim_);
    TQC_TRY_ASSIGN(sums_[t], decode_levels(in, models_, classes_, activities_[t], levels));
  }
  if (!in.is_complete()) return corrupt("symbols that do not end with the section");
  finish(out);
  return {};
}

Result<void> BlockCoder::encode(std::span<const float> x, Bytes& coded, std::span<float> out) {
  // Without a branch per value: the exponent of a value that is not finite has all bits set.
  std::uint32_t n_not_finite = 0;
  for (const float value : x) {
    n_not_finite += (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  if (n_not_finite > 0) return corrupt("values that are not finite");
  predict();
  const TensorProfile& numbers = predictor_.profile().tensors[tensor_];
  const std::size_t stride = predictor_.tensor(tensor_).map.input_stride();
  residual_.resize(n_ * dim_);  // of 0 in the rows of sink tokens
  components_.resize(n_ * dim_);
  for (std::size_t t = n_sinks_; t < n_; ++t) {
    const float* const __restrict from = x.data() + t * dim_;
    const float* const __restrict predicted = predicted_.data() + t * dim_;
    const float* const __restrict mean = numbers.mean.data();
    float* const __restrict to = residual_.data() + t * dim_;
    for (std::size_t i = 0; i < dim_; ++i) to[i] = from[i] - mean[i] - predicted[i];
  }
  codec::multiply_rows(residual_, predictor_.inverse(tensor_), dim_, components_, kernels_);
  const float per_step = 1.0f / step_;
  for (float& each : components_) each *= per_step;
  search_.set_prices(models_);
  RangeEncoder to(coded);
  std::vector<std::int16_t> symbols(dim_);
  for (std::size_t t = n_sinks_; t < n_; ++t) {
    const auto y = std::span<const float>(components_).subspan(t * dim_, dim_);
    search_.find(y, classes_, activities_[t], symbols,
                 std::span(levels_).subspan(t * stride, dim_));
    encode_symbols(to, models_, classes_, activities_[t], symbols);
    sums_[t] = activity_of(symbols);
  }
  to.finish();
  finish(out);
  return {};
}

}  // namespace tqcache::predict
