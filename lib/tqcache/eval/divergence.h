#pragma once
// eval/divergence.h: how far apart two predictions of the next token are.
//
// A prediction is a row of logits; its probabilities are their softmax.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tqcache::eval {

// What of a row's softmax is needed again and again.
struct Softmax {
  float max = 0;       // of the logits
  double log_sum = 0;  // the logarithm of the sum of their exponentials
};

// Shapes: logits [vocab_size]. `scratch` is overwritten, and made as large as it has to be.
Softmax softmax_of(std::span<const float> logits, std::vector<float>& scratch);

// Minus the logarithm of a token's probability. Units: nats.
double surprise(std::span<const float> logits, const Softmax& softmax, std::int32_t token);

// The Kullback-Leibler divergence of `other` from `reference`: sum of p (log p - log q), p being
// the reference's probabilities. Rounding does not take it below 0, and equal rows have 0.
//
// Shapes: logits [vocab_size] both.
// Units:  nats.
double divergence(std::span<const float> reference, const Softmax& of_reference,
                  std::span<const float> other, const Softmax& of_other,
                  std::vector<float>& scratch);

// The first token of the largest logit.
std::size_t most_probable(std::span<const float> logits, const Softmax& softmax);

}  // namespace tqcache::eval
