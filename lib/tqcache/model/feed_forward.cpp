#include "tqcache/model/feed_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {

namespace {

constexpr std::int64_t kRowsPerPiece = 16;  // enough tokens to pay for a task switch

// GELU with its tanh: x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
// Source: arXiv 1606.08415, section 2.
constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
constexpr float kCubic = 0.044715f;
constexpr float kLeast = -80.0f;  // x / e^80 is effectively 0

void gelu_multiply(const float* up, std::size_t n, float* gate) {
  for (std::size_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u = std::max(kTwoSqrtTwoOverPi * (x + kCubic * x * x * x), kLeast);
    gate[i] = x / (1.0f + loops::exp_f32(-u)) * up[i];
  }
}

// Source: huggingface/transformers models/gpt_oss, GptOssExperts.
constexpr float kSwigluLimit = 7.0f;
constexpr float kSwigluAlpha = 1.702f;

void clamped_swiglu(const float* up, std::size_t n, float* gate) {
  for (std::size_t i = 0; i < n; ++i) {
    // Written so that NaN stays NaN.
    const float g = gate[i] > kSwigluLimit ? kSwigluLimit : gate[i];
    const float u =
        up[i] > kSwigluLimit ? kSwigluLimit : (up[i] < -kSwigluLimit ? -kSwigluLimit : up[i]);
    const float turned = kSwigluAlpha * g;
    const float bounded = turned < kLeast ? kLeast : turned;
    gate[i] = g / (1.0f + loops::exp_f32(-bounded)) * (u + 1.0f);
  }
}

// Adds the bias to every row of x [n, bias.size()]. An empty bias adds 0.
void add_bias(const AlignedFloats& bias, std::int64_t n, float* x) {
  if (bias.empty()) return;
  for (std::int64_t row = 0; row < n; ++row, x += bias.size()) {
    for (std::size_t i = 0; i < bias.size(); ++i) x[i] += bias[i];
  }
}

}  // namespace

void activate_and_multiply(Activation activation, const float* up, std::size_t n, float* gate) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gelu_multiply(up, n, gate);
    case Activation::kClampedSwiglu:
      return clamped_swiglu(up, n, gate);
    case Activation::kSilu:
      break;
  }
  best_kernels().silu_multiply(up, n, gate);
}

void cut_off(float cutoff, std::span<float> gates) {
  const auto n = static_cast<double>(gates.size());
  double mean = 0, variance = 0;
  for (const float gate : gates) mean += gate;
  mean /= n;
  for (const float gate : gates) variance += (gate - mean) * (gate - mean);
  const auto least = static_cast<float>(mean + double{cutoff} * std::sqrt(variance / n));
  for (float& gate : gates) gate = gate < least ? 0.0f : gate - least;  // NaN stays NaN
}

void GatedMlp::run(const FeedForwardWeights& weights, std::int64_t n, std::span<const float> x,
                   float* out, const Workers& workers) {
  const std::int64_t d_ff = weights.gate.n_rows;
  // A decode step must not take the memory of a chunk, and chunks must not grow it bit by bit.
  grow(gate_, (n == 1 ? 1 : cache::kTokenBlock) * d_ff);
  grow(up_, (n == 1 ? 1 : cache::kTokenBlock) * d_ff);
  multiply_rows(n, x, {{&weights.gate, gate_.data()}, {&weights.up, up_.data()}}, bits_, workers);
  const std::int64_t n_pieces = (n + kRowsPerPiece - 1) / kRowsPerPiece;
  workers.run(static_cast<std::size_t>(n_pieces), [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * kRowsPerPiece;
    for (std::int64_t row = first; row < std::min(first + kRowsPerPiece, n); ++row) {
      add_bias(weights.gate_bias, 1, gate_.data() + row * d_ff);
      add_bias(weights.up_bias, 1, up_.data() + row * d_ff);
      if (std::isfinite(weights.cutoff)) {
        cut_off(weights.cutoff, std::span(gate_).subspan(to_size(row * d_ff), to_size(d_ff)));
      }
      activate_and_multiply(activation_, up_.data() + row * d_ff, static_cast<std::size_t>(d_ff),
                            gate_.data() + row * d_ff);
    }
  });
  multiply_rows(n, gate_, {{&weights.down, out}}, bits_, workers);
  add_bias(weights.down_bias, n, out);
}

namespace {

// Sorts NaN first, so that the order is defined and the output becomes NaN.
float rank(float p) { return std::isnan(p) ? std::numeric_limits<float>::infinity() : p; }

// y += factor * x, row by row. Shapes: x, y [size].
void add_scaled(float factor, const float* x, std::int64_t size, float* y) {
  const std::span values(x, to_size(size));
  best_kernels().add_scaled_f32(factor, std::as_bytes(values).data(), values.size(), y);
}

}  // namespace

void Experts::run(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
                  std::span<const float> router_x, std::span<float> out, const Workers& workers) {
  choose(weights, n, router_x, workers);
  std::ranges::fill(out, 0.0f);
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    if (!uses_[i].empty()) add_expert(weights.each[i], uses_[i], x, out, workers);
  }
  if (config_.shared_d_ff > 0) add_shared(weights, n, x, out, workers);
}

void Experts::choose(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
                     const Workers& workers) {
  grow(scores_, n * config_.count);
  multiply_rows(n, x, {{&weights.router, scores_.data()}}, bits_, workers);
  add_bias(weights.router_bias, n, scores_.data());
  uses_.resize(to_size(config_.count));
  for (std::vector<Use>& uses : uses_) uses.clear();
  for (std::int64_t row = 0; row < n; ++row) choose_for(row, weights);
}

void Experts::choose_for(std::int64_t row, const ExpertsWeights& weights) {
  const AlignedFloats& choice_bias = weights.choice_bias;
  const std::span<float> p =
      std::span(scores_).subspan(to_size(row * config_.count), to_size(config_.count));
  const Kernels& kernels = best_kernels();
  float sum = 1;
  if (config_.sigmoid) {
    for (float& each : p) each = loops::sigmoid(each);
  } else {
    sum = kernels.exp_sum(kernels.max_value(p.data(), p.size()), p.size(), p.data());
  }
  ranks_.assign(p.begin(), p.end());
  for (std::size_t i = 0; i < choice_bias.size(); ++i) ranks_[i] += choice_bias[i];
  for (float& each : ranks_) each = rank(each);
  if (config_.used_groups < config_.groups) leave_out_groups();
  order_.resize(p.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto used = order_.begin() + config_.used;
  std::partial_sort(order_.begin(), used, order_.end(), [&](std::int64_t a, std::int64_t b) {
    const float of_a = ranks_[to_size(a)], of_b = ranks_[to_size(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  });
  if (config_.normalized) {
    sum = config_.sigmoid ? 1e-20f : 0;  // sigmoids may all be 0
    for (auto each = order_.begin(); each != used; ++each) sum += p[to_size(*each)];
  }
  for (auto each = order_.begin(); each != used; ++each) {
    const float factor = weights.factors.empty() ? 1 : weights.factors[to_size(*each)];
    uses_[to_size(*each)].push_back({row, factor * config_.scale * (p[to_size(*each)] / sum)});
  }
}

// Ranks the experts of all groups but the best behind every other.
void Experts::leave_out_groups() {
  constexpr float kLeft = -std::numeric_limits<float>::infinity();
  const auto size = ranks_.size() / to_size(config_.groups);
  std::vector<std::pair<float, std::size_t>> groups;  // less the score, so that the best is first
  for (std::size_t first = 0; first < ranks_.size(); first += size) {
    float best = kLeft, second = kLeft;
    for (const float each : std::span(ranks_).subspan(first, size)) {
      second = std::max(second, std::min(best, each));
      best = std::max(best, each);
    }
    groups.emplace_back(config_.group_pairs ? -(best + second) : -best, first);
  }
  std::ranges::sort(groups);
  for (std::size_t i = to_size(config_.used_groups); i < groups.size(); ++i) {
    std::ranges::fill(std::span(ranks_).subspan(groups[i].second, size), kLeft);
  }
}

void Experts::add_expert(const FeedForwardWeights& expert, std::span<const Use> uses,
                         std::span<const float> x, std::span<float> out, const Workers& workers) {
  const std::int64_t d_model = expert.gate.n_cols;
  const auto n = std::ssize(uses);
  grow(gathered_, n * d_model);
  grow(results_, n * d_model);
  for (std::int64_t i = 0; i < n; ++i) {
    std::copy_n(x.data() + uses[to_size(i)].row * d_model, d_model, gathered_.data() + i * d_model);
  }
  mlp_.run(expert, n, gathered_, results_.data(), workers);
  for (std::int64_t i = 0; i < n; ++i) {
    const Use& use = uses[to_size(i)];
    add_scaled(use.weight, results_.data() + i * d_model, d_model, out.data() + use.row * d_model);
  }
}

void Experts::add_shared(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
                         std::span<float> out, const Workers& workers) {
  const std::int64_t d_model = weights.shared.gate.n_cols;
  grow(results_, n * d_model);
  grow(scores_, n);
  mlp_.run(weights.shared, n, x, results_.data(), workers);
  if (config_.shared_gate) {
    multiply_rows(n, x, {{&weights.shared_gate, scores_.data()}}, bits_, workers);
  }
  for (std::int64_t row = 0; row < n; ++row) {
    const float factor = config_.shared_gate ? loops::sigmoid(scores_[to_size(row)]) : 1;
    add_scaled(factor, results_.data() + row * d_model, d_model, out.data() + row * d_model);
  }
}

std::uint64_t Experts::scratch_bytes() const {
  return (scores_.size() + ranks_.size() + gathered_.size() + results_.size()) * sizeof(float) +
         mlp_.scratch_bytes();
}

}  // namespace tqcache::model
