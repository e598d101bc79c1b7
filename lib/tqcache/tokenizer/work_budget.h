#pragma once
// tokenizer/work_budget.h: step limit for tokenizing one text, and seeded hashes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "tqcache/error.h"

namespace tqcache::tokenizer {

// Limits the steps for tokenizing one text. A step costs about as much as a byte of ordinary text.
//
// Hostile files exhaust the budget after a few seconds. Real texts and vocabularies take a few
// steps per byte.
class WorkBudget {
 public:
  // `keep_going` may be empty. It is called once per million steps.
  explicit WorkBudget(std::size_t n_bytes, std::function<bool()> keep_going = {})
      : left_(kLeast + kStepsOfByte * n_bytes), keep_going_(std::move(keep_going)) {}

  // Subtracts steps. `uncounted` is an upper bound of further steps: they do not use up the budget,
  // but make keep_going() be called.
  // Errors: kTooLarge when fewer steps are left, kInterrupted.
  Result<void> spend(std::uint64_t steps, std::uint64_t uncounted = 0) {
    if (steps > left_) return exhausted();
    left_ -= steps;
    since_asked_ += steps + uncounted;
    if (since_asked_ < kStepsUnasked) return {};
    since_asked_ = 0;
    if (keep_going_ && !keep_going_()) return interrupted_error();
    return {};
  }

 private:
  static constexpr std::uint64_t kLeast = 200'000'000;
  static constexpr std::uint64_t kStepsOfByte = 256;
  static constexpr std::uint64_t kStepsUnasked = 1 << 20;

  static Error exhausted() {
    return too_large(
        "text: the tokenizer's pattern or vocabulary takes too long with it; split the text, or "
        "use another tokenizer");
  }

  std::uint64_t left_;
  std::uint64_t since_asked_ = 0;
  std::function<bool()> keep_going_;
};

// A random number per process. It seeds hash tables whose keys come from files, so that no file can
// choose keys that collide.
std::uint64_t hash_seed();

// Hashes texts with hash_seed().
struct TextHash {
  std::size_t operator()(std::string_view text) const;
};

}  // namespace tqcache::tokenizer
