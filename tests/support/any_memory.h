#pragma once
// support/any_memory.h: a memory budget without limit, for tests of what is checked after it.

#include <cstdint>

#include "tqcache/access.h"

namespace tqcache::test {

inline const MemoryBudget kAnyMemory = MemoryBudget::of_user(~std::uint64_t{0});

}  // namespace tqcache::test
