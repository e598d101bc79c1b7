#include "tqcache/codec/kernels/head_queries.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/base/half.h"

namespace tqcache::codec {

namespace {

constexpr std::size_t kQueriesAtOnce = 8;  // queries at a time, with their scores on the stack

bool is_single(const HeadCodec& codec) {
  return codec.n_parts() == 1 && !codec.parts()[0].has_bias;
}

// Queries `first` to first + n - 1 of a group.
QueryRows rows_from(const QueryRows& rows, std::size_t first, std::size_t n) {
  QueryRows some = rows;
  some.n_queries = n;
  some.values += first * rows.stride;
  some.bytes += first * rows.n_levels * rows.stride;
  some.multipliers += first * rows.n_levels;
  some.sums += first * rows.n_levels;
  return some;
}

Kernels::Score score_kernel(const HeadCodec& codec, Precision precision) {
  const Kernels& kernels = codec.kernels();
  return precision == Precision::kExact ? kernels.score_exact : kernels.score_fast;
}

// scores[q][t] += <query q, part `part` of vector t>.
void add_part(const HeadCodec& codec, std::size_t part, const PackedBlock& block,
              Kernels::Score kernel, const QueryRows& queries, OutputRows scores) {
  alignas(64) std::array<float, kQueriesAtOnce * kBlockTokens> aside;
  for (std::size_t first = 0; first < queries.n_queries; first += kQueriesAtOnce) {
    const std::size_t n = std::min(kQueriesAtOnce, queries.n_queries - first);
    kernel(block, codec.part(part).tables(), rows_from(queries, first, n),
           {aside.data(), kBlockTokens});
    for (std::size_t q = 0; q < n; ++q) {
      float* const sums = scores.values + (first + q) * scores.stride;
      const float* const added = aside.data() + q * kBlockTokens;
      for (std::size_t t = 0; t < block.n_tokens; ++t) sums[t] += added[t];
    }
  }
}

using BlockFloats = std::array<float, kBlockTokens>;

void load_biases(std::span<const std::uint16_t> biases, std::size_t n_tokens, BlockFloats& values) {
  for (std::size_t t = 0; t < n_tokens; ++t) values[t] = f16_to_f32(biases[t]);
}

// A bias is the same in every channel of its part.
void add_biases(std::span<const std::uint16_t> biases, std::span<const float> query_sums,
                std::size_t n_tokens, OutputRows scores) {
  BlockFloats values;
  load_biases(biases, n_tokens, values);
  for (std::size_t q = 0; q < query_sums.size(); ++q) {
    float* const sums = scores.values + q * scores.stride;
    for (std::size_t t = 0; t < n_tokens; ++t) sums[t] += values[t] * query_sums[q];
  }
}

// Sums in lanes, so that additions do not wait for each other.
float weighted_sum(const float* weights, const BlockFloats& values, std::size_t n) {
  std::array<float, kLanes> lanes{};
  std::size_t t = 0;
  for (; t + kLanes <= n; t += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += weights[t + l] * values[t + l];
  }
  for (std::size_t l = 0; t + l < n; ++l) lanes[l] += weights[t + l] * values[t + l];
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Parts with a bias are not transformed: their quantized components are channels.
void accumulate_biases(std::span<const std::uint16_t> biases, const WeightRows& weights,
                       std::size_t dim, std::size_t n_tokens, OutputRows sums) {
  BlockFloats values;
  load_biases(biases, n_tokens, values);
  for (std::size_t q = 0; q < weights.n_queries; ++q) {
    const float sum = weighted_sum(weights.values + q * weights.stride, values, n_tokens);
    float* const row = sums.values + q * sums.stride;
    for (std::size_t i = 0; i < dim; ++i) row[i] += sum;
  }
}

}  // namespace

void HeadQueries::set(const HeadCodec& codec, ChannelOrder order, std::span<const float> queries) {
  assert(!queries.empty() && queries.size() % codec.head_dim() == 0);
  n_queries_ = queries.size() / codec.head_dim();
  parts_.resize(codec.n_parts());
  if (is_single(codec) && order.empty()) {
    parts_[0].set_for_packed(codec.part(0).quantizer(), queries);
    return;
  }
  ordered_.resize(queries.size());
  for (std::size_t q = 0; q < n_queries_; ++q) {
    const std::size_t at = q * codec.head_dim();
    take_channels(order, queries.subspan(at, codec.head_dim()),
                  std::span(ordered_).subspan(at, codec.head_dim()));
  }
  bias_sums_.resize(codec.n_parts() * n_queries_);
  for (std::size_t i = 0; i < codec.n_parts(); ++i) set_part(codec, i);
}

void HeadQueries::set_part(const HeadCodec& codec, std::size_t part) {
  const std::size_t dim = codec.part(part).shape().dim();
  slices_.resize(n_queries_ * dim);
  for (std::size_t q = 0; q < n_queries_; ++q) {
    const float* const slice = ordered_.data() + q * codec.head_dim() + codec.first_channel(part);
    std::copy_n(slice, dim, slices_.data() + q * dim);
    float sum = 0.0f;
    for (std::size_t i = 0; i < dim; ++i) sum += slice[i];
    bias_sums_[part * n_queries_ + q] = sum;
  }
  parts_[part].set_for_packed(codec.part(part).quantizer(), slices_);
}

void HeadQueries::score(const HeadCodec& codec, const PackedHead& head, std::size_t n_tokens,
                        Precision precision, OutputRows scores) const {
  assert(codec.order() == BlockOrder::kKeys && parts_.size() == codec.n_parts());
  const Kernels::Score kernel = score_kernel(codec, precision);
  kernel(codec.view(head, 0, n_tokens), codec.part(0).tables(), parts_[0].rows(), scores);
  for (std::size_t i = 1; i < codec.n_parts(); ++i) {
    add_part(codec, i, codec.view(head, i, n_tokens), kernel, parts_[i].rows(), scores);
  }
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    if (!codec.parts()[i].has_bias) continue;
    add_biases(codec.biases(head, i), std::span(bias_sums_).subspan(i * n_queries_, n_queries_),
               n_tokens, scores);
  }
}

void accumulate(const HeadCodec& codec, const PackedHead& head, std::size_t n_tokens,
                Precision precision, const WeightRows& weights, OutputRows sums) {
  assert(codec.order() == BlockOrder::kValues && sums.stride >= codec.coded_dim());
  const Kernels& kernels = codec.kernels();
  const auto add =
      precision == Precision::kExact ? kernels.accumulate_exact : kernels.accumulate_fast;
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    const OutputRows part = {sums.values + codec.coded_offset(i), sums.stride};
    add(codec.view(head, i, n_tokens), codec.part(i).tables(), weights, part);
    if (!codec.parts()[i].has_bias) continue;
    accumulate_biases(codec.biases(head, i), weights, codec.part(i).shape().dim(), n_tokens, part);
  }
}

namespace {

constexpr double kMaxRoundingError = 0.009;  // root mean square, for a query in one level
constexpr int kMaxByte = 127;

// The limits for the step of a row of bytes: the largest component, and the largest sum of the
// magnitudes of two neighbors. Not finite if the query is not finite.
struct Extent {
  float largest = 0.0f;
  float largest_pair = 0.0f;
};

Extent measure(std::span<const float> values) {
  Extent extent;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
    const float pair = std::fabs(values[i]) + std::fabs(values[i + 1]);
    if (!std::isfinite(pair)) return {pair, pair};
    extent.largest = std::max({extent.largest, std::fabs(values[i]), std::fabs(values[i + 1])});
    extent.largest_pair = std::max(extent.largest_pair, pair);
  }
  return extent;
}

float step_of_one_level(const Extent& extent) {
  return std::max(extent.largest / static_cast<float>(kMaxByte),
                  extent.largest_pair / static_cast<float>(CodeTables::kPairLimit - 1));
}

float step_of_two_levels(const Extent& extent) {
  return extent.largest / static_cast<float>(kMaxTwoBytes);
}

// Rounding leaves an error of step / sqrt(12) in each component.
bool is_coarse(std::span<const float> values, std::size_t head_dim) {
  double energy = 0.0;
  for (const float value : values) energy += static_cast<double>(value) * value;
  const double step = step_of_one_level(measure(values));
  const double error = step * step / 12.0 * static_cast<double>(head_dim);
  return error > kMaxRoundingError * kMaxRoundingError * energy;
}

// n = kByteRadix * high + low.
int high_byte(int n) {
  constexpr int kHalf = kByteRadix / 2;
  return n >= 0 ? (n + kHalf) / kByteRadix : -((kHalf - n) / kByteRadix);
}

}  // namespace

void QueryGroup::resize(std::size_t n_queries, std::size_t head_dim) {
  n_queries_ = n_queries;
  stride_ = (head_dim + kUnitLaneCodes - 1) / kUnitLaneCodes * kUnitLaneCodes;
  values_.assign(n_queries * stride_, 0.0f);
}

void QueryGroup::set_for_dense(std::size_t head_dim, std::span<const float> queries) {
  assert(head_dim > 0 && !queries.empty() && queries.size() % head_dim == 0);
  resize(queries.size() / head_dim, head_dim);
  n_levels_ = 1;
  bytes_.clear();
  for (std::size_t q = 0; q < n_queries_; ++q) {
    std::copy_n(queries.data() + q * head_dim, head_dim, values_.data() + q * stride_);
  }
}

void QueryGroup::set_for_packed(const Quantizer& quantizer, std::span<const float> queries) {
  const std::size_t head_dim = quantizer.rotation().head_dim();
  assert(!queries.empty() && queries.size() % head_dim == 0);
  resize(queries.size() / head_dim, head_dim);
  bool two_levels = false;
  for (std::size_t q = 0; q < n_queries_; ++q) {
    const std::span rotated = std::span(values_).subspan(q * stride_, head_dim);
    quantizer.rotation().rotate(queries.subspan(q * head_dim, head_dim), rotated);
    two_levels =
        two_levels || is_coarse(std::span(values_).subspan(q * stride_, stride_), head_dim);
  }
  n_levels_ = two_levels ? 2 : 1;
  bytes_.assign(n_queries_ * n_levels_ * stride_, 0);
  multipliers_.assign(n_queries_ * n_levels_, 0.0f);
  sums_.assign(n_queries_ * n_levels_, 0);
  for (std::size_t q = 0; q < n_queries_; ++q) round_to_bytes(q);
}

void QueryGroup::round_to_bytes(std::size_t query) {
  const std::span<const float> values = std::span(values_).subspan(query * stride_, stride_);
  const Extent extent = measure(values);
  const std::size_t row = query * n_levels_;
  if (!std::isfinite(extent.largest_pair)) {
    multipliers_[row] = std::nanf("");  // times rows of 0: scores are NaN, as in f32
    return;
  }
  const bool two = n_levels_ == 2;
  const float step = two ? step_of_two_levels(extent) : step_of_one_level(extent);
  if (!(step >= std::numeric_limits<float>::min())) return;  // all components are (nearly) zero
  multipliers_[row] = two ? step * static_cast<float>(kByteRadix) : step;
  if (two) multipliers_[row + 1] = step;
  std::int8_t* const bytes = bytes_.data() + row * stride_;
  for (std::size_t i = 0; i < stride_; ++i) {
    const int n = static_cast<int>(std::lrint(values[i] / step));
    const int high = two ? high_byte(n) : n;
    bytes[i] = static_cast<std::int8_t>(high);
    sums_[row] += high;
    if (!two) continue;
    const int low = n - kByteRadix * high;
    bytes[stride_ + i] = static_cast<std::int8_t>(low);
    sums_[row + 1] += low;
  }
}

QueryRows QueryGroup::rows() const {
  return {n_queries_,          stride_,     values_.data(), n_levels_, bytes_.data(),
          multipliers_.data(), sums_.data()};
}

}  // namespace tqcache::codec
