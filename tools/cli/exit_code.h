#pragma once
// tools/cli/exit_code.h: what the process tells the shell.

#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::cli {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kDoneInPart = 3,
  kNotFound = 10,
  kBusy = 11,  // another process is writing the file
  kCorrupt = 20,
  kUnsupported = 21,  // a version, a kind or a size beyond this program
  kMismatch = 22,     // a good file, of another model
  kInterrupted = 130,
};

ExitCode exit_code(ErrorCode code);

// The word for JSON: "corrupt", "not_found", ...
std::string_view error_word(ErrorCode code);

}  // namespace tqcache::cli
