#include "tqcache/cache/centring_score.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tqcache/cache/cache.h"
#include "tqcache/codec/mirrored_sum.h"

namespace tqcache::cache {
namespace {

using codec::kMirrorHalf;
using codec::kMirrorRow;
using codec::kMirrorStep;

constexpr std::size_t kPolynomials = CentringTable::kPolynomials;
constexpr std::size_t kUsed = 7;  // polynomials of each kind

// A pair is slow when it turns by at most this many radians in half a block. There the polynomials
// of degree 0 to 13 leave 2 J_14(4) = 3e-7 of a cosine, J being Bessel's function. A larger limit
// would need as many more polynomials as it saves rows of fast pairs.
constexpr double kSlowRadians = 4;

constexpr std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The distance of token 128 + i from the middle of its block.
double distance(std::size_t i) { return static_cast<double>(i) + 0.5; }

// cos(n acos(x)), for |x| <= 1.
double chebyshev(std::size_t n, double x) {
  return std::cos(static_cast<double>(n) * std::acos(x));
}

struct Expansion {
  std::array<double, kPolynomials> cos{};  // of T_0, T_2, T_4, ...
  std::array<double, kPolynomials> sin{};  // of T_1, T_3, T_5, ...
};

// cos(a x) and sin(a x) as sums of Chebyshev polynomials on [-1, 1]: the projection, by Gauss and
// Chebyshev's sum, whose error at so many nodes is below f64's.
Expansion expand(double a) {
  constexpr std::size_t kNodes = 48;
  Expansion result;
  for (std::size_t node = 0; node < kNodes; ++node) {
    const double angle = (static_cast<double>(node) + 0.5) * std::numbers::pi / kNodes;
    const double cos = std::cos(a * std::cos(angle)) * 2 / kNodes;
    const double sin = std::sin(a * std::cos(angle)) * 2 / kNodes;
    for (std::size_t n = 0; n < kUsed; ++n) {
      const auto degree = static_cast<double>(2 * n);
      result.cos[n] += (n == 0 ? 0.5 : 1.0) * cos * std::cos(degree * angle);
      result.sin[n] += sin * std::cos((degree + 1) * angle);
    }
  }
  return result;
}

constexpr std::size_t kMaxPairs = to_size(kMaxHeadDim) / 2;
constexpr std::size_t kMaxRows = kMaxPairs + kPolynomials + kMirrorStep;

// Seen from the middle of a block, A cos + B sin of a pair's angle is even * cos + odd * sin of the
// angle from there. Shapes: waves and phasors [2, n]; even, odd [n].
void turn_waves(const float* __restrict waves, const float* __restrict phasors, std::size_t n,
                float* __restrict even, float* __restrict odd) {
  for (std::size_t i = 0; i < n; ++i) {
    even[i] = waves[i] * phasors[i] + waves[n + i] * phasors[n + i];
    odd[i] = waves[n + i] * phasors[i] - waves[i] * phasors[n + i];
  }
}

// A GNU vector, which stays in a register over a sum: of arrays, compilers make a mess here.
using Four = float __attribute__((vector_size(16)));

Four load_four(const float* p) {
  Four four;
  std::memcpy(&four, p, sizeof(four));
  return four;
}

// sums[n] = sum over i of even[i] * parts[i][0][n], and then the same of odd and parts[i][1].
// Eight sums at once, because each one waits for its last addition.
//
// Shapes: even, odd [n]; parts [n, 2, kPolynomials]; sums [2, kPolynomials]. n is even.
void join(const float* even, const float* odd, const float* parts, std::size_t n, float* sums) {
  static_assert(kPolynomials == 8);
  Four sum[2][4] = {};
  for (std::size_t i = 0; i < n; i += 2) {
    for (std::size_t k = 0; k < 2; ++k, parts += 2 * kPolynomials) {
      sum[k][0] += even[i + k] * load_four(parts);
      sum[k][1] += even[i + k] * load_four(parts + 4);
      sum[k][2] += odd[i + k] * load_four(parts + 8);
      sum[k][3] += odd[i + k] * load_four(parts + 12);
    }
  }
  for (std::size_t j = 0; j < 4; ++j) {
    const Four total = sum[0][j] + sum[1][j];
    std::memcpy(sums + 4 * j, &total, sizeof(total));
  }
}

// What one query multiplies each row of the table with. Shapes: factors [table.n_rows(), 2].
void make_factors(const CentringTable& table, const float* waves, const float* phasors,
                  float* factors) {
  std::array<float, kMaxPairs + 1> even, odd;
  turn_waves(waves, phasors, table.n_pairs(), even.data(), odd.data());
  even[table.n_pairs()] = odd[table.n_pairs()] = 0;
  const std::size_t n_fast = table.n_fast();
  for (std::size_t row = 0; row < n_fast; ++row) {
    factors[2 * row] = even[row];
    factors[2 * row + 1] = odd[row];
  }
  std::array<float, 2 * kPolynomials> slow;
  join(even.data() + n_fast, odd.data() + n_fast, table.slow_pairs(), table.n_slow_padded(),
       slow.data());
  for (std::size_t i = 0; i < kUsed; ++i) {
    factors[2 * (n_fast + i)] = slow[i];
    factors[2 * (n_fast + i) + 1] = slow[kPolynomials + i];
  }
  std::fill(factors + 2 * (n_fast + kUsed), factors + 2 * table.n_rows(), 0.0f);
}

}  // namespace

CentringTable::CentringTable(const Rope& rope) : frequencies_(rope_frequencies(rope)) {
  constexpr double kSlowTurns = kSlowRadians / (2 * std::numbers::pi * kMirrorHalf);
  n_fast_ = to_size(std::ranges::count_if(frequencies_, [](double f) { return f > kSlowTurns; }));
  rows_.resize(n_rows() * kMirrorRow);
  for (std::size_t i = 0; i < kMirrorHalf; ++i) {
    for (std::size_t pair = 0; pair < n_fast_; ++pair) {
      const Phasor at = phasor(distance(i) * frequencies_[pair]);
      rows_[pair * kMirrorRow + i] = static_cast<float>(at.cos);
      rows_[pair * kMirrorRow + kMirrorHalf + i] = static_cast<float>(at.sin);
    }
    for (std::size_t row = n_fast_; row < n_fast_ + kUsed; ++row) {
      const std::size_t degree = 2 * (row - n_fast_);
      const double x = distance(i) / kMirrorHalf;
      rows_[row * kMirrorRow + i] = static_cast<float>(chebyshev(degree, x));
      rows_[row * kMirrorRow + kMirrorHalf + i] = static_cast<float>(chebyshev(degree + 1, x));
    }
  }
  for (std::size_t pair = n_fast_; pair < n_pairs(); ++pair) {
    const Expansion parts = expand(2 * std::numbers::pi * frequencies_[pair] * kMirrorHalf);
    slow_pairs_.insert(slow_pairs_.end(), parts.cos.begin(), parts.cos.end());
    slow_pairs_.insert(slow_pairs_.end(), parts.sin.begin(), parts.sin.end());
  }
  slow_pairs_.resize(n_slow_padded() * 2 * kPolynomials);
}

std::size_t CentringTable::n_rows() const {
  return (n_fast_ + kUsed + kMirrorStep - 1) / kMirrorStep * kMirrorStep;
}

void CentringTable::extend(std::int64_t n_blocks) {
  const std::size_t held = phasors_.size() / (2 * n_pairs());
  if (to_size(n_blocks) <= held) return;
  phasors_.resize(to_size(n_blocks) * 2 * n_pairs());
  for (std::size_t block = held; block < to_size(n_blocks); ++block) {
    float* const phasors = phasors_.data() + block * 2 * n_pairs();
    const double middle = static_cast<double>(block * 2 + 1) * kMirrorHalf - 0.5;
    for (std::size_t pair = 0; pair < n_pairs(); ++pair) {
      const Phasor at = phasor(middle * frequencies_[pair]);
      phasors[pair] = static_cast<float>(at.cos);
      phasors[n_pairs() + pair] = static_cast<float>(at.sin);
    }
  }
}

const float* CentringTable::block_phasors(std::int64_t block) const {
  assert((to_size(block) + 1) * 2 * n_pairs() <= phasors_.size());
  return phasors_.data() + to_size(block) * 2 * n_pairs();
}

std::uint64_t CentringTable::bytes() const {
  return (rows_.size() + slow_pairs_.size() + phasors_.size()) * sizeof(float);
}

void CentringScore::set(const CentringTable* table, std::span<const float> mean,
                        std::span<const float> queries) {
  table_ = table;
  const std::size_t head_dim = mean.size();
  const std::size_t n = queries.size() / head_dim;
  const std::size_t half = table != nullptr ? table->n_pairs() : 0;
  waves_.resize(n * 2 * half);
  constants_.assign(n, 0);
  for (std::size_t q = 0; q < n; ++q) {
    const float* const query = queries.data() + q * head_dim;
    float* const a = waves_.data() + q * 2 * half;
    float* const b = a + half;
    for (std::size_t i = 0; i < half; ++i) {
      a[i] = query[i] * mean[i] + query[i + half] * mean[i + half];
      b[i] = query[i + half] * mean[i] - query[i] * mean[i + half];
    }
    for (std::size_t i = 2 * half; i < head_dim; ++i) constants_[q] += query[i] * mean[i];
  }
}

void CentringScore::add_to(std::int64_t block, float* scores, std::size_t stride) const {
  const std::size_t n = constants_.size();
  if (table_ == nullptr) {
    for (std::size_t q = 0; q < n; ++q) {
      for (std::size_t t = 0; t < to_size(kTokenBlock); ++t)
        scores[q * stride + t] += constants_[q];
    }
    return;
  }
  std::size_t q = 0;
  for (; q + 2 <= n; q += 2) add_waves<2>(q, block, scores + q * stride, stride);
  if (q < n) add_waves<1>(q, block, scores + q * stride, stride);
}

template <std::size_t kQueries>
void CentringScore::add_waves(std::size_t first, std::int64_t block, float* scores,
                              std::size_t stride) const {
  std::array<float, kQueries * 2 * kMaxRows> factors;
  const std::size_t n_rows = table_->n_rows();
  for (std::size_t q = 0; q < kQueries; ++q) {
    make_factors(*table_, waves_.data() + (first + q) * 2 * table_->n_pairs(),
                 table_->block_phasors(block), factors.data() + q * 2 * n_rows);
    // The polynomial of degree 0 is 1 everywhere.
    factors[q * 2 * n_rows + 2 * table_->n_fast()] += constants_[first + q];
  }
  codec::add_mirrored<kQueries>(table_->rows(), n_rows, factors.data(), scores, stride);
}

}  // namespace tqcache::cache
