#pragma once
// faults/operations.h: what may be cut short: each operation of the library that writes files, on a
// tiny cache and with one thread, so that its system calls are the same every time.

#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::faults {

// The file that every operation works on, in its folder.
inline constexpr std::string_view kTarget = "cache.tqkv";

struct Operation {
  std::string_view name;
  // What stands in the folder before.
  std::map<std::string, Bytes> (*before)();
  Result<void> (*run)(const std::filesystem::path& folder);
  // "old" when the target is what it was before, "new" when it is what the operation makes of it,
  // whole in either case; otherwise what is wrong.
  std::string (*state)(const std::filesystem::path& folder);
  // The names in the folder after it. Those before are those of before().
  std::set<std::string> names_after;
  // The operation by which a user goes on after this one was cut short.
  std::string_view again;
  // System calls that are to fail from the beginning on, as they do on some file systems: strace's
  // "NAME:error=ERRNO", or empty.
  std::string_view always;
};

inline void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

const std::vector<Operation>& operations();
// Requires: there is one of this name.
const Operation& operation(std::string_view name);

// Runs it once in another folder, with all that the process does once in its life: caches made,
// tables built, libraries set up. Throws when it does not work.
void prepare(const Operation& operation);

std::set<std::string> names_in(const std::filesystem::path& folder);
std::set<std::string> names_before(const Operation& operation);
void set_up(const Operation& operation, const std::filesystem::path& folder);

}  // namespace tqcache::faults
