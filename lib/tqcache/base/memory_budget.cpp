#include "tqcache/base/memory_budget.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace tqcache {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t machine_memory() {
  const long n_pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (n_pages <= 0 || page_bytes <= 0) return kUnlimited;
  return static_cast<std::uint64_t>(n_pages) * static_cast<std::uint64_t>(page_bytes);
}

// "max", and files that are not there, are no limit.
std::uint64_t limit_in(const char* file) {
  std::uint64_t bytes = 0;
  std::ifstream in(file);
  return in >> bytes ? bytes : kUnlimited;
}

std::uint64_t process_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return limit.rlim_cur;
}

std::uint64_t find_budget() {
  const std::uint64_t bytes =
      std::min({machine_memory(), limit_in("/sys/fs/cgroup/memory.max"),
                limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"), process_limit()});
  return bytes / 4 * 3;
}

}  // namespace

std::uint64_t memory_budget() {
  static const std::uint64_t budget = find_budget();
  return budget;
}

}  // namespace tqcache
