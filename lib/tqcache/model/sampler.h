#pragma once
// model/sampler.h: chooses the next token from logits.

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::model {

// The filters apply in this order: temperature, top-k, top-p, min-p; then one draw. Each filter
// keeps at least one token.
struct SamplerOptions {
  float temperature = 0;   // 0: greedy, the largest logit (the lowest id among equals)
  std::int64_t top_k = 0;  // keep this many; 0: all
  float top_p = 1;         // keep the fewest whose probabilities reach this sum; 1: all
  float min_p = 0;         // keep those of at least this share of the largest probability; 0: all
  std::uint64_t seed = 0;
};

// Errors: kInvalidArgument, naming the option, when a number is out of range or not finite.
Result<void> validate(const SamplerOptions& options);

class Sampler {
 public:
  // Requires: validate(options).
  explicit Sampler(const SamplerOptions& options);

  // Bytes: the same seed and logits give the same tokens on every machine.
  // Requires: logits not empty; NaN counts as minus infinity.
  std::int32_t next(std::span<const float> logits);

 private:
  struct Candidate {
    float weight;  // probability, up to a common factor
    std::int32_t id;
  };
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
};

}  // namespace tqcache::model
