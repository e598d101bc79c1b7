#pragma once
// tqcache/sampler.h: the choice of the next token from logits.
//
//   tqcache::model::Sampler sampler({.temperature = 0.7f, .top_p = 0.9f, .seed = 1});
//   std::int32_t next = sampler.next(logits);

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::model {

// A number that is added to the logit of one token; minus infinity forbids the token.
struct LogitBias {
  std::int32_t id = 0;
  float bias = 0;
};

// Logits are first changed: biases are added, then tokens that were seen are penalized. The filters
// apply in this order: temperature, top-k, top-p, min-p; then one token is drawn. Each filter keeps
// at least one token.
//
// Source: penalty: arXiv 1909.05858, section 4.1; a logit below 0 is multiplied by it, as in
//         Hugging Face's RepetitionPenaltyLogitsProcessor.
struct SamplerOptions {
  std::vector<LogitBias> logit_bias = {};
  float repeat_penalty = 1;         // logits of seen tokens are divided by it; 1: no penalty
  std::int64_t repeat_last_n = 64;  // tokens that count as seen; -1: all
  float temperature = 0;            // 0: greedy, the largest logit (the lowest id among equals)
  std::int64_t top_k = 0;           // keep this many; 0: all
  float top_p = 1;                  // keep the fewest whose probabilities reach this sum; 1: all
  float min_p = 0;  // keep tokens with at least this share of the largest probability; 0: all
  std::uint64_t seed = 0;
};

// Errors: kInvalidArgument, naming the option, when a number is out of range or not finite.
Result<void> validate(const SamplerOptions& options);

class Sampler {
 public:
  // Requires: validate(options).
  explicit Sampler(const SamplerOptions& options);

  // Appends tokens to the text, which the penalty counts as seen; or starts a new text.
  void saw(std::span<const std::int32_t> ids);
  void forget() { seen_.clear(); }

  // Bytes: the same seed, logits and seen tokens give the same tokens on every machine.
  // Requires: logits not empty; NaN counts as minus infinity.
  std::int32_t next(std::span<const float> logits);

 private:
  struct Candidate {
    float weight;  // probability, up to a common factor
    std::int32_t id;
  };
  std::span<const float> adjusted(std::span<const float> logits);
  void penalize_seen();
  static bool is_likelier(const Candidate& a, const Candidate& b);
  void weigh(std::span<const float> logits, float largest);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  std::int32_t draw();
  double total_weight() const;

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
  std::vector<float> adjusted_;     // logits after biases and penalties
  std::vector<std::int32_t> seen_;  // at least the newest repeat_last_n, in order
};

}  // namespace tqcache::model
