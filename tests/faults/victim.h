#pragma once
// faults/victim.h: runs fault_victim, a process that does one operation, and interferes with it.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "operations.h"
#include "tqcache/error.h"

namespace tqcache::faults {

// The path of the system call by which the victim tells that it begins.
inline constexpr const char* kMarker = "/the-operation-begins";

// How the victim ends when it may not do what it was asked to try.
inline constexpr int kNotPossibleHere = 77;

constexpr int status_of(ErrorCode code) { return 10 + static_cast<int>(code); }

// A system call of the operation: the `number`th of its name in the victim's life, counted from 1.
struct SystemCall {
  std::string name;
  int number = 0;
};

// strace sees the system calls of an emulator, and not those of the program that it runs.
#ifdef TQCACHE_TEST_EMULATED
inline constexpr bool kIsEmulated = true;
#else
inline constexpr bool kIsEmulated = false;
#endif

// Its system calls from the beginning of the operation to the end of the process, but those that
// only deal with memory and those that fail always. Throws when it does not succeed.
std::vector<SystemCall> list_system_calls(const Operation& operation);

// Runs the victim. Gives its exit status, or minus the number of the signal that ended it.
int run_victim(const Operation& operation, const std::filesystem::path& folder,
               const std::vector<std::string>& options = {});

// The same with something done to one of its system calls: "error=EIO", "signal=KILL"; and to all
// further ones of that name if `for_good`. Throws when the call did not come.
int run_victim_with(const Operation& operation, const std::filesystem::path& folder,
                    const SystemCall& call, const std::string& deed, bool for_good = false);

}  // namespace tqcache::faults
