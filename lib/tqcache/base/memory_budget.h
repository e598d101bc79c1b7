#pragma once
// base/memory_budget.h: the limit of memory for values of files and stores.
//
// Small files can describe large values, so nothing large is allocated before it has been compared
// with the model, with the bytes that are stored, or with this limit.

#include <cstdint>
#include <string_view>

#include "tqcache/error.h"

namespace tqcache {

class MemoryBudget {
 public:
  // Three quarters of the memory of this machine, of its control group or of the process's limit,
  // whichever is least.
  static MemoryBudget of_machine();
  // A limit that the user has set. It also allows values that compress extremely well.
  static MemoryBudget of_user(std::uint64_t bytes) { return {bytes, true}; }

  std::uint64_t bytes() const { return bytes_; }

  // The limit for values that are stored in `stored` bytes: 64 times as much, but at least `least`.
  // Values of real caches compress to a half or a third; zeros compress to a ten-thousandth.
  std::uint64_t limit(std::uint64_t stored, std::uint64_t least) const;

  // Errors: kTooLarge; the message begins with `what` and names the limit.
  Result<void> check(std::uint64_t bytes, std::string_view what) const;
  Result<void> check(std::uint64_t bytes, std::string_view what, std::uint64_t stored,
                     std::uint64_t least) const;

 private:
  MemoryBudget(std::uint64_t bytes, bool is_of_user) : bytes_(bytes), is_of_user_(is_of_user) {}

  std::uint64_t bytes_;
  bool is_of_user_;
};

// What a section and a whole file may take however few bytes they are stored in. Each thread may
// hold a section and a second buffer for it.
inline constexpr std::uint64_t kSmallSectionBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kSmallFileBytes = std::uint64_t{256} << 20;

// The budget of this process. Threads: set it before others read it.
const MemoryBudget& memory_budget();
void set_memory_budget(const MemoryBudget& budget);

}  // namespace tqcache
