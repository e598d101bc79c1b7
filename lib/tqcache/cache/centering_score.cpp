#include "tqcache/cache/centering_score.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

#include "tqcache/base/integers.h"

namespace tqcache::cache {
namespace {

using codec::kSinusoidHalf;
using codec::kSinusoidPolynomials;
using codec::kSinusoidRow;

// A pair is slow if it rotates by at most this many radians in half a block. There the polynomials
// of degree 0 to 13 leave 2 J_14(4) = 3e-7 of a cosine, where J is the Bessel function. A larger
// limit would need as many more polynomials as it saves rows of fast pairs.
constexpr double kSlowRadians = 4;

// The distance of token 128 + i from the middle of its block.
double distance(std::size_t i) { return static_cast<double>(i) + 0.5; }

// cos(n acos(x)), for |x| <= 1.
double chebyshev(std::size_t n, double x) {
  return std::cos(static_cast<double>(n) * std::acos(x));
}

// The coefficients of T_0, T_2, T_4, ... in a cosine, and of T_1, T_3, T_5, ... in a sine.
struct Expansion {
  std::array<double, kSinusoidPolynomials> cos{};
  std::array<double, kSinusoidPolynomials> sin{};
};

// cos(a x) and sin(a x) as sums of Chebyshev polynomials on [-1, 1], projected by Gauss-Chebyshev
// quadrature; with so many nodes its error is below that of f64.
Expansion expand(double a) {
  constexpr std::size_t kNodes = 48;
  Expansion result;
  for (std::size_t node = 0; node < kNodes; ++node) {
    const double angle = (static_cast<double>(node) + 0.5) * std::numbers::pi / kNodes;
    const double cos = std::cos(a * std::cos(angle)) * 2 / kNodes;
    const double sin = std::sin(a * std::cos(angle)) * 2 / kNodes;
    for (std::size_t n = 0; n < kSinusoidPolynomials; ++n) {
      const auto degree = static_cast<double>(2 * n);
      result.cos[n] += (n == 0 ? 0.5 : 1.0) * cos * std::cos(degree * angle);
      result.sin[n] += sin * std::cos((degree + 1) * angle);
    }
  }
  return result;
}

// The values in a sinusoid's row, and in those of the polynomials.
void add_sinusoid_row(double frequency, AlignedFloats& values) {
  std::array<float, kSinusoidRow> row;
  for (std::size_t i = 0; i < kSinusoidHalf; ++i) {
    const Phasor at = phasor(distance(i) * frequency);
    row[i] = static_cast<float>(at.cos);
    row[kSinusoidHalf + i] = static_cast<float>(at.sin);
  }
  values.insert(values.end(), row.begin(), row.end());
}

void add_polynomial_row(std::size_t degree, AlignedFloats& values) {
  std::array<float, kSinusoidRow> row;
  for (std::size_t i = 0; i < kSinusoidHalf; ++i) {
    const double x = distance(i) / kSinusoidHalf;
    row[i] = static_cast<float>(chebyshev(degree, x));
    row[kSinusoidHalf + i] = static_cast<float>(chebyshev(degree + 1, x));
  }
  values.insert(values.end(), row.begin(), row.end());
}

void add_join(double frequency, AlignedFloats& joins) {
  const Expansion parts = expand(2 * std::numbers::pi * frequency * kSinusoidHalf);
  for (std::size_t n = 0; n < kSinusoidPolynomials; ++n) {
    joins.push_back(static_cast<float>(parts.cos[n]));
    joins.push_back(static_cast<float>(parts.sin[n]));
  }
  joins.resize(joins.size() + 2);
}

codec::SinusoidTable make_sinusoids(std::span<const double> frequencies) {
  constexpr double kSlowCycles = kSlowRadians / (2 * std::numbers::pi * kSinusoidHalf);
  // Frequencies of scaled RoPE need not descend, so the fast pairs end with the last fast one.
  std::size_t n_fast = frequencies.size();
  while (n_fast > 0 && frequencies[n_fast - 1] <= kSlowCycles) --n_fast;
  AlignedFloats values, joins;
  for (const double frequency : frequencies.first(n_fast)) add_sinusoid_row(frequency, values);
  for (std::size_t n = 0; n < kSinusoidPolynomials; ++n) add_polynomial_row(2 * n, values);
  for (const double frequency : frequencies.subspan(n_fast)) add_join(frequency, joins);
  return codec::make_sinusoid_table(frequencies.size(), n_fast, std::move(values),
                                    std::move(joins));
}

}  // namespace

CenteringTable::CenteringTable(const Rope& rope)
    : frequencies_(rope_frequencies(rope)), sinusoids_(make_sinusoids(frequencies_)) {}

void CenteringTable::extend(std::int64_t n_blocks) {
  const std::size_t stride = 2 * sinusoids_.n_padded();
  const std::size_t held = phasors_.size() / stride;
  if (to_size(n_blocks) <= held) return;
  phasors_.resize(to_size(n_blocks) * stride);
  for (std::size_t block = held; block < to_size(n_blocks); ++block) {
    float* const phasors = phasors_.data() + block * stride;
    const double middle = static_cast<double>(block * 2 + 1) * kSinusoidHalf - 0.5;
    for (std::size_t pair = 0; pair < n_pairs(); ++pair) {
      const Phasor at = phasor(middle * frequencies_[pair]);
      phasors[2 * pair] = static_cast<float>(at.cos);
      phasors[2 * pair + 1] = static_cast<float>(at.sin);
    }
  }
}

const float* CenteringTable::block_phasors(std::int64_t block) const {
  const std::size_t stride = 2 * sinusoids_.n_padded();
  assert((to_size(block) + 1) * stride <= phasors_.size());
  return phasors_.data() + to_size(block) * stride;
}

std::uint64_t CenteringTable::bytes() const {
  return (sinusoids_.values.size() + sinusoids_.joins.size() + phasors_.size()) * sizeof(float) +
         sinusoids_.int16.size() * sizeof(std::int16_t);
}

void CenteringScore::set(const CenteringTable* table, std::span<const float> mean,
                         std::span<const float> queries) {
  table_ = table;
  const std::size_t head_dim = mean.size();
  const std::size_t n = queries.size() / head_dim;
  const std::size_t half = table != nullptr ? table->n_pairs() : 0;
  const std::size_t stride = table != nullptr ? 2 * table->sinusoids().n_padded() : 0;
  amplitudes_.assign(n * stride, 0);
  constants_.assign(n, 0);
  for (std::size_t q = 0; q < n; ++q) {
    const float* const query = queries.data() + q * head_dim;
    float* const ab = amplitudes_.data() + q * stride;
    for (std::size_t i = 0; i < half; ++i) {
      ab[2 * i] = query[i] * mean[i] + query[i + half] * mean[i + half];
      ab[2 * i + 1] = query[i + half] * mean[i] - query[i] * mean[i + half];
    }
    for (std::size_t i = 2 * half; i < head_dim; ++i) constants_[q] += query[i] * mean[i];
  }
}

void CenteringScore::add_to(std::int64_t block, const codec::Kernels& kernels,
                            codec::Precision precision, float* scores, std::size_t stride) const {
  const std::size_t n = constants_.size();
  if (table_ != nullptr) {
    const bool exact = precision == codec::Precision::kExact;
    const auto add_sinusoids = exact ? kernels.add_sinusoids_exact : kernels.add_sinusoids_fast;
    const codec::Sinusoids sinusoids = {n, amplitudes_.data(), constants_.data(),
                                        table_->block_phasors(block)};
    return add_sinusoids(table_->sinusoids(), sinusoids, {scores, stride});
  }
  for (std::size_t q = 0; q < n; ++q) {
    for (std::size_t t = 0; t < to_size(kTokenBlock); ++t) scores[q * stride + t] += constants_[q];
  }
}

}  // namespace tqcache::cache
