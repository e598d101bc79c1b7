#pragma once
// tokenizer/work_budget.h: a bound on the work of one text, and hashes that no file can foresee.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "tqcache/error.h"

namespace tqcache::tokenizer {

// The steps that tokenizing a text may take. A step is about what a byte of ordinary text costs.
//
// Files that are made to be slow reach the end of it after seconds, however long the text is; the
// texts and vocabularies in use take a few steps a byte.
class WorkBudget {
 public:
  // `keep_going` may be empty. It is asked once in a million steps.
  explicit WorkBudget(std::size_t n_bytes, std::function<bool()> keep_going = {})
      : left_(kLeast + kStepsOfByte * n_bytes), keep_going_(std::move(keep_going)) {}

  // Takes steps off. `unknown` steps may have been taken beside them, which nobody has counted:
  // they are no reason to give up, but one to ask.
  // Errors: kTooLarge when there are not as many, kInterrupted.
  Result<void> spend(std::uint64_t steps, std::uint64_t unknown = 0) {
    if (steps > left_) return exhausted();
    left_ -= steps;
    since_asked_ += steps + unknown;
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

// A number that is another one in each process, for hash tables of what files hold: who writes a
// file cannot choose entries that collide.
std::uint64_t hash_seed();

// The same for texts.
struct TextHash {
  std::size_t operator()(std::string_view text) const;
};

}  // namespace tqcache::tokenizer
