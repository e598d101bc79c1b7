#pragma once
// faults/failing_allocator.h: the C library's allocator, with a wish for failures. It stands in the
// place of malloc and its kin for the whole program, and so for new, zstd and OpenSSL too.
//
// Counts are each thread's own.

#include <cstdint>

namespace tqcache::faults {

// Allocations that this thread made and nobody has freed, less those of others that it freed.
std::int64_t live_allocations();

// Lets the `number`th allocation of this thread from now on fail, counted from 1; and all after it
// if `for_good`.
void fail_allocation(std::int64_t number, bool for_good);
// Whether one has failed since. No further one fails.
bool end_of_failures();

}  // namespace tqcache::faults
