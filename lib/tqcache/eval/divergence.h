#pragma once
// eval/divergence.h: the distance between two predictions of the next token.
//
// A prediction is a row of logits; its probabilities are their softmax.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tqcache::eval {

// The parts of a row's softmax that several functions need.
struct Softmax {
  float max = 0;       // of the logits
  double log_sum = 0;  // the logarithm of the sum of their exponentials
};

// Shapes: logits [vocab_size]. `scratch` is resized and overwritten.
Softmax softmax_of(std::span<const float> logits, std::vector<float>& scratch);

// Minus the logarithm of a token's probability. Units: nats.
double negative_log_likelihood(std::span<const float> logits, const Softmax& softmax,
                               std::int32_t token);

// The Kullback-Leibler divergence of `other` from `reference`: sum of p (log p - log q), where p
// are the reference's probabilities. Never negative despite rounding; 0 for equal rows.
//
// Shapes: logits [vocab_size] both.
// Units:  nats.
double divergence(std::span<const float> reference, const Softmax& of_reference,
                  std::span<const float> other, const Softmax& of_other,
                  std::vector<float>& scratch);

// The first token with the largest logit.
std::size_t most_probable(std::span<const float> logits, const Softmax& softmax);

}  // namespace tqcache::eval
