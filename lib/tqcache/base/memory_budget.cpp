#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "tqcache/access.h"
#include "tqcache/base/system.h"

namespace tqcache {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// "max", and files that are not there, are no limit.
std::uint64_t limit_in(const char* file) {
  std::uint64_t bytes = 0;
  std::ifstream in(file);
  return in >> bytes ? bytes : kUnlimited;
}

// Values of `stored` bytes may take this many.
std::uint64_t in_proportion(std::uint64_t stored, std::uint64_t least) {
  constexpr std::uint64_t kExpansion = 64;
  return std::max(stored > kUnlimited / kExpansion ? kUnlimited : stored * kExpansion, least);
}

Result<void> check_allowed(std::uint64_t bytes, std::uint64_t allowed, std::string_view what) {
  if (bytes <= allowed) return {};
  return too_large(std::string(what) + ": " + std::to_string(bytes) + " bytes of memory, " +
                   std::to_string(allowed) + " are allowed (--max-memory)");
}

}  // namespace

MemoryBudget MemoryBudget::of_machine() {
  static const std::uint64_t bytes =
      std::min({machine_memory(), limit_in("/sys/fs/cgroup/memory.max"),
                limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"), process_memory_limit()});
  return {bytes / 4 * 3, false};
}

MemoryBudget MemoryBudget::at_most(std::uint64_t bytes) const {
  return {std::min(bytes, bytes_), is_of_user_};
}

std::uint64_t MemoryBudget::limit(std::uint64_t stored, std::uint64_t least) const {
  return is_of_user_ ? bytes_ : std::min(bytes_, in_proportion(stored, least));
}

Result<void> MemoryBudget::check(std::uint64_t bytes, std::string_view what) const {
  return check_allowed(bytes, bytes_, what);
}

Result<void> MemoryBudget::check(std::uint64_t bytes, std::string_view what, std::uint64_t stored,
                                 std::uint64_t least) const {
  return check_allowed(bytes, limit(stored, least), what);
}

Result<void> MemoryBudget::check_proportion(std::uint64_t bytes, std::string_view what,
                                            std::uint64_t stored, std::uint64_t least) const {
  return check_allowed(bytes, is_of_user_ ? kUnlimited : in_proportion(stored, least), what);
}

}  // namespace tqcache
