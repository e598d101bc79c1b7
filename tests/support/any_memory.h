#pragma once
// support/any_memory.h: a memory budget without limit, for tests of what is checked after it.

#include <cstdint>

#include "tqcache/base/memory_budget.h"

namespace tqcache::test {

// The budget of the process has no limit while this object lives. Not for tests that run at the
// same time in other threads.
class AnyMemory {
 public:
  AnyMemory() : before_(memory_budget()) {
    set_memory_budget(MemoryBudget::of_user(~std::uint64_t{0}));
  }
  ~AnyMemory() { set_memory_budget(before_); }
  AnyMemory(const AnyMemory&) = delete;
  AnyMemory& operator=(const AnyMemory&) = delete;

 private:
  MemoryBudget before_;
};

}  // namespace tqcache::test
