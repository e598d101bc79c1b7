#include "tqcache/codec/kernels/query_group.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace tqcache::codec {
namespace {

constexpr double kMaxRoundingError = 0.009;  // of a query in one level, root mean square
constexpr int kMaxByte = 127;

// What limits the step of a row of bytes: the largest component, and the largest sum of the
// magnitudes of two neighbors. Not finite if the query is not.
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
    multipliers_[row] = std::nanf("");  // times rows of 0: scores are NaN, as they are in f32
    return;
  }
  const bool two = n_levels_ == 2;
  const float step = two ? step_of_two_levels(extent) : step_of_one_level(extent);
  if (!(step >= std::numeric_limits<float>::min())) return;  // a query of zeros, or next to it
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
