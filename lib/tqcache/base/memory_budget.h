#pragma once
// base/memory_budget.h: the memory that values of one file or prompt may take.

#include <cstdint>

namespace tqcache {

// Three quarters of the memory of this machine, of its control group or of the process's limit,
// whichever is least.
std::uint64_t memory_budget();

}  // namespace tqcache
