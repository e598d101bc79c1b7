#include "tqcache/model/gated_unit.h"

#include <algorithm>

#include "tqcache/base/aligned.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/kernels.h"
#include "tqcache/model/linear/products.h"

namespace tqcache::model {
namespace {

constexpr std::int64_t kRowsPerPiece = 16;  // tokens whose sums are worth a task switch

// GELU with its tanh: x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
// Source: arXiv 1606.08415, section 2.
constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
constexpr float kCubic = 0.044715f;
constexpr float kLeast = -80.0f;  // x / e^80 is as good as 0

void gelu_multiply(const float* up, std::size_t n, float* gate) {
  for (std::size_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u = std::max(kTwoSqrtTwoOverPi * (x + kCubic * x * x * x), kLeast);
    gate[i] = x / (1.0f + loops::exp_f32(-u)) * up[i];
  }
}

}  // namespace

void activate_and_multiply(Activation activation, const float* up, std::size_t n, float* gate) {
  if (activation == Activation::kGeluTanh) return gelu_multiply(up, n, gate);
  best_kernels().silu_multiply(up, n, gate);
}

void GatedUnit::run(const FeedForwardWeights& weights, std::int64_t n, std::span<const float> x,
                    float* out, const Workers& workers) {
  const std::int64_t d_ff = weights.gate.n_rows;
  // A decode step must not take a chunk's memory, and a chunk's must not grow_scratch step by step.
  grow(gate_, (n == 1 ? 1 : cache::kTokenBlock) * d_ff);
  grow(up_, (n == 1 ? 1 : cache::kTokenBlock) * d_ff);
  multiply_rows(n, x, {{&weights.gate, gate_.data()}, {&weights.up, up_.data()}}, workers);
  const std::int64_t n_pieces = (n + kRowsPerPiece - 1) / kRowsPerPiece;
  workers.run(static_cast<std::size_t>(n_pieces), [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * kRowsPerPiece;
    for (std::int64_t row = first; row < std::min(first + kRowsPerPiece, n); ++row) {
      activate_and_multiply(activation_, up_.data() + row * d_ff, static_cast<std::size_t>(d_ff),
                            gate_.data() + row * d_ff);
    }
  });
  multiply_rows(n, gate_, {{&weights.down, out}}, workers);
}

}  // namespace tqcache::model
