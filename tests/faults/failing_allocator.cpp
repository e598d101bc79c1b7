#include "failing_allocator.h"

#include <cerrno>
#include <cstddef>

#include "support/libc.h"

// glibc's own names of what this file replaces.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);
}

namespace tqcache::faults {
namespace {

thread_local std::int64_t live = 0;
thread_local std::int64_t until_failure = 0;  // 0: none is to fail
thread_local bool fails_for_good = false;
thread_local bool has_failed = false;

bool is_to_fail() {
  if (until_failure == 0) return false;
  if (until_failure > 1) {
    --until_failure;
    return false;
  }
  if (!fails_for_good) until_failure = 0;
  has_failed = true;
  errno = ENOMEM;
  return true;
}

template <class Allocate>
void* allocated(Allocate allocate) {
  if (is_to_fail()) return nullptr;
  void* const memory = allocate();
  if (memory != nullptr) ++live;
  return memory;
}

}  // namespace

std::int64_t live_allocations() { return live; }

void fail_allocation(std::int64_t number, bool for_good) {
  until_failure = number;
  fails_for_good = for_good;
  has_failed = false;
}

bool end_of_failures() {
  until_failure = 0;
  return has_failed;
}

}  // namespace tqcache::faults

using tqcache::faults::allocated;

extern "C" {

void* malloc(std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  return allocated([&] { return __libc_malloc(size); });
}

void* calloc(std::size_t count, std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  return allocated([&] { return __libc_calloc(count, size); });
}

void free(void* memory) TQCACHE_LIBC_NOEXCEPT {
  if (memory != nullptr) --tqcache::faults::live;
  __libc_free(memory);
}

void* realloc(void* memory, std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  if (memory == nullptr) return malloc(size);
  if (size == 0) {
    free(memory);
    return nullptr;
  }
  return tqcache::faults::is_to_fail() ? nullptr : __libc_realloc(memory, size);
}

void* memalign(std::size_t alignment, std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  return allocated([&] { return __libc_memalign(alignment, size); });
}

void* aligned_alloc(std::size_t alignment, std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  return memalign(alignment, size);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t size) TQCACHE_LIBC_NOEXCEPT {
  *memory = memalign(alignment, size);
  return *memory != nullptr ? 0 : ENOMEM;
}

}  // extern "C"
