#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_tables.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/sinusoids.h"

namespace tqcache::cuda {
namespace {

// As on the CPU: pairs that rotate by at most so many radians in half a block are slow, and there
// the polynomials of degree 0 to 13 leave 3e-7 of a cosine.
constexpr double kSlowRadians = 4;
constexpr double kHalfBlock = kPageTokens / 2;
constexpr double kFullTurn = 2 * std::numbers::pi;

// Factors of T_0, T_2, ... in cos(a x), and of T_1, T_3, ... in sin(a x), in the order of degrees.
// Gauss-Chebyshev quadrature; with so many nodes its error is below that of f64.
std::array<double, kPolynomials> expansion(double a) {
  constexpr int kNodes = 48;
  std::array<double, kPolynomials> factors{};
  for (int node = 0; node < kNodes; ++node) {
    const double angle = (node + 0.5) * std::numbers::pi / kNodes;
    const double x = a * std::cos(angle);
    for (int degree = 0; degree < kPolynomials; ++degree) {
      const double value = degree % 2 == 0 ? std::cos(x) : std::sin(x);
      factors[static_cast<std::size_t>(degree)] +=
          (degree == 0 ? 1.0 : 2.0) / kNodes * value * std::cos(degree * angle);
    }
  }
  return factors;
}

// Row `row` at `token` of a block.
double value_at(std::span<const double> turns, int n_fast, int row, int token) {
  const double u = token + 0.5 - kHalfBlock;
  if (row < 2 * n_fast) {
    const double angle = kFullTurn * turns[static_cast<std::size_t>(row / 2)] * u;
    return row % 2 == 0 ? std::cos(angle) : std::sin(angle);
  }
  const int degree = row - 2 * n_fast;
  return degree < kPolynomials ? std::cos(degree * std::acos(u / kHalfBlock)) : 0.0;
}

// The pair of column (or row) k of a step, of which it is the cosine if k is even. Thread (g, t) of
// a warp has columns 2t, 2t + 1 and 2t + 8, 2t + 9, and so two neighboring pairs.
int pair_of(int step, int k) { return step * kStepPairs + k % 8 / 2 * 2 + k / 8; }

// Left factors of matrix units. value(row, column); thread (g, t) has those of rows g and g + 8.
template <class Value>
void push_factors(std::vector<std::uint16_t>& halves, const Value& value) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const double factor = value(lane / 4 + i / 2 % 2 * 8, 2 * (lane % 4) + i % 2 + i / 4 * 8);
      halves.push_back(f32_to_f16(static_cast<float>(factor)));
    }
  }
}

// Those of a block's tiles. Rows g and g + 8 of product m are tokens 4g + 2m and the next.
std::vector<std::uint16_t> tile_factors(std::span<const double> turns, int n_fast, int n_steps) {
  std::vector<std::uint16_t> halves;
  for (int tile = 0; tile < kPageTokens / 32; ++tile) {
    for (int step = 0; step < n_steps; ++step) {
      for (int m = 0; m < 2; ++m) {
        push_factors(halves, [&](int row, int k) {
          const int token = tile * 32 + row % 8 * 4 + 2 * m + row / 8;
          const bool is_direct = step < n_fast / kStepPairs;
          return value_at(turns, n_fast,
                          is_direct ? 2 * pair_of(step, k) + k % 2 : step * kStepRows + k, token);
        });
      }
    }
  }
  return halves;
}

// Those that join amplitudes to the rows of the steps from `n_direct` on.
std::vector<std::uint16_t> join_factors(std::span<const double> turns, int n_fast, int n_steps) {
  const int n_pairs = static_cast<int>(turns.size()), n_direct = n_fast / kStepPairs;
  std::vector<std::array<double, kPolynomials>> expansions;
  for (const double turn : turns) expansions.push_back(expansion(kFullTurn * turn * kHalfBlock));
  std::vector<std::uint16_t> halves;
  for (int from = n_direct; from * kStepPairs < n_pairs; ++from) {
    for (int to = n_direct; to < n_steps; ++to) {
      push_factors(halves, [&](int row, int k) {
        const int pair = pair_of(from, k), at = to * kStepRows + row, degree = at - 2 * n_fast;
        if (degree < 0) return 2 * pair + k % 2 == at ? 1.0 : 0.0;
        // Even polynomials take the cosines' amplitudes, odd ones the sines'.
        const bool is_joined =
            degree < kPolynomials && pair >= n_fast && pair < n_pairs && degree % 2 == k % 2;
        return is_joined
                   ? expansions[static_cast<std::size_t>(pair)][static_cast<std::size_t>(degree)]
                   : 0.0;
      });
    }
  }
  return halves;
}

}  // namespace

SinusoidTables::~SinusoidTables() { cudaFree(memory); }

Result<DeviceSinusoids> DeviceSinusoids::make(std::span<const double> turns) {
  if (turns.empty()) return invalid("sinusoids of no pair");
  if (turns.size() > kMostPairs) return unsupported("sinusoids of more than 128 pairs");
  for (const double turn : turns) {
    if (!std::isfinite(turn)) return invalid("sinusoids: turns that are not finite");
  }
  auto tables = std::make_shared<SinusoidTables>();
  // Frequencies of scaled RoPE need not descend, so the fast pairs end with the last fast one.
  std::size_t n_fast = turns.size();
  while (n_fast > 0 && std::abs(turns[n_fast - 1]) * kFullTurn * kHalfBlock <= kSlowRadians)
    --n_fast;
  tables->n_pairs = static_cast<int>(turns.size());
  tables->n_fast = static_cast<int>(n_fast);
  tables->n_steps = (2 * tables->n_fast + kPolynomials + kStepRows - 1) / kStepRows;

  const std::vector<std::uint16_t> rows = tile_factors(turns, tables->n_fast, tables->n_steps);
  const std::vector<std::uint16_t> joins = join_factors(turns, tables->n_fast, tables->n_steps);
  const std::size_t row_bytes = rows.size() * sizeof rows[0];
  const std::size_t join_bytes = joins.size() * sizeof joins[0];
  const std::size_t turn_bytes = turns.size() * sizeof(double);
  std::vector<std::byte> bytes(row_bytes + join_bytes + turn_bytes);
  std::memcpy(bytes.data(), rows.data(), row_bytes);
  if (!joins.empty()) std::memcpy(bytes.data() + row_bytes, joins.data(), join_bytes);
  std::memcpy(bytes.data() + row_bytes + join_bytes, turns.data(), turn_bytes);
  TQC_TRY(check(cudaMalloc(&tables->memory, bytes.size()), "cudaMalloc"));
  const auto* const base = static_cast<const std::byte*>(tables->memory);
  tables->rows = reinterpret_cast<const uint4*>(base);
  tables->joins = reinterpret_cast<const uint4*>(base + row_bytes);
  tables->turns = reinterpret_cast<const double*>(base + row_bytes + join_bytes);
  TQC_TRY(check(cudaMemcpy(tables->memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                "cudaMemcpy"));
  return DeviceSinusoids(std::move(tables));
}

}  // namespace tqcache::cuda
