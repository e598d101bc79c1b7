#pragma once
// damage/limited_child.h: hostile files are read in a process of its own that gets little memory.
//
// What allocates by a number that a file claims ends there, and nothing depends on time.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <string>

#include "damage.h"

namespace tqcache::test {

inline constexpr std::uint64_t kAllowance = std::uint64_t{64} << 20;

// What a count, a length or an offset of a small file can lie.
inline constexpr std::array<std::uint64_t, 12> kClaims = {
    0,
    (std::uint64_t{1} << 31) - 1,
    std::uint64_t{1} << 31,
    (std::uint64_t{1} << 31) + 1,
    (std::uint64_t{1} << 32) - 1,
    std::uint64_t{1} << 32,
    (std::uint64_t{1} << 32) + 1,
    std::uint64_t{1} << 40,
    (std::uint64_t{1} << 63) - 1,
    std::uint64_t{1} << 63,
    std::numeric_limits<std::uint64_t>::max() - 63,
    std::numeric_limits<std::uint64_t>::max()};

// From now on this process gets so many bytes beyond what it has. Not under a sanitizer, which
// needs more address space than there is memory; it has limits of its own.
inline void limit_memory([[maybe_unused]] std::uint64_t bytes) {
#ifndef TQCACHE_TEST_SANITIZED
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const ::rlimit limit{used + bytes, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(3);
#endif
}

// What `work` says in a child process, and how that ended if not well.
inline std::string said_in_child(const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const ::pid_t child = ::fork();
  if (child == 0) {
    const std::string said = work();
    const bool told = ::write(ends[1], said.data(), said.size()) >= 0;
    ::_exit(told ? 0 : 2);
  }
  ::close(ends[1]);
  std::string said;
  std::array<char, 512> part{};
  for (::ssize_t n = 0; (n = ::read(ends[0], part.data(), part.size())) > 0;) {
    said.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "no child";
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) said += "; the process was ended";
  return said;
}

// A test of one file after another: `visit` reads the one that it is given, under the name `what`.
using Visit = std::function<void(const std::string& what, const Bytes& file)>;
// Reads a file in every way there is. True: it gave a value.
using ReadFile = std::function<bool(const Bytes& file)>;

// No file that `make_files` makes takes more memory than the allowance, or is taken for whole.
inline void expect_harmless(const ReadFile& read,
                            const std::function<void(const Visit&)>& make_files) {
  const auto first_harmful = [&] {
    std::string complaint = "no file at all";
    const Visit visit = [&](const std::string& what, const Bytes& file) {
      if (complaint == "no file at all") complaint.clear();
      if (!complaint.empty()) return;
      try {
        if (read(file)) complaint.assign(what).append(": is read");
      } catch (const std::bad_alloc&) {
        complaint.assign(what).append(": takes too much memory");
      }
    };
    limit_memory(kAllowance);
    make_files(visit);
    return complaint;
  };
  EXPECT_EQ(said_in_child(first_harmful), "");
}

// Reads a .tqkv file. Gives false, too, for one that says the same as `original`.
inline ReadFile read_unless_same(const Bytes& original, const MemoryBudget& memory = {}) {
  return [cache = must(load_view(original)), memory](const Bytes& file) {
    is_reported(file, memory);
    const auto loaded = load_view(file, memory);
    return loaded && !difference(*loaded, cache).empty();
  };
}

}  // namespace tqcache::test
