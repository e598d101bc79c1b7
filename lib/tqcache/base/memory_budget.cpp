#include "tqcache/base/memory_budget.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

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

constexpr std::uint64_t kExpansion = 64;

MemoryBudget& budget_of_process() {
  static MemoryBudget budget = MemoryBudget::of_machine();
  return budget;
}

}  // namespace

MemoryBudget MemoryBudget::of_machine() {
  const std::uint64_t bytes =
      std::min({machine_memory(), limit_in("/sys/fs/cgroup/memory.max"),
                limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"), process_limit()});
  return {bytes / 4 * 3, false};
}

std::uint64_t MemoryBudget::limit(std::uint64_t stored, std::uint64_t least) const {
  if (is_of_user_) return bytes_;
  const std::uint64_t expanded =
      stored > kUnlimited / kExpansion ? kUnlimited : stored * kExpansion;
  return std::min(bytes_, std::max(expanded, least));
}

Result<void> MemoryBudget::check(std::uint64_t bytes, std::string_view what) const {
  return check(bytes, what, kUnlimited, 0);
}

Result<void> MemoryBudget::check(std::uint64_t bytes, std::string_view what, std::uint64_t stored,
                                 std::uint64_t least) const {
  const std::uint64_t allowed = limit(stored, least);
  if (bytes <= allowed) return {};
  return too_large(std::string(what) + ": " + std::to_string(bytes) + " bytes of memory, " +
                   std::to_string(allowed) + " are allowed (--max-memory)");
}

const MemoryBudget& memory_budget() { return budget_of_process(); }
void set_memory_budget(const MemoryBudget& budget) { budget_of_process() = budget; }

}  // namespace tqcache
