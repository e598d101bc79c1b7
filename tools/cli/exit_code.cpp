#include "cli/exit_code.h"

namespace tqcache::cli {

ExitCode exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTruncated:
    case ErrorCode::kCorrupt:
      return ExitCode::kCorrupt;
    case ErrorCode::kUnsupported:
    case ErrorCode::kTooLarge:
      return ExitCode::kUnsupported;
    case ErrorCode::kMismatch:
      return ExitCode::kMismatch;
    case ErrorCode::kInvalidArgument:
      return ExitCode::kUsage;
    case ErrorCode::kNotFound:
      return ExitCode::kNotFound;
    case ErrorCode::kIo:
      return ExitCode::kFailed;
    case ErrorCode::kBusy:
      return ExitCode::kBusy;
    case ErrorCode::kInterrupted:
      return ExitCode::kInterrupted;
  }
  return ExitCode::kFailed;
}

std::string_view error_word(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTruncated:
      return "truncated";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTooLarge:
      return "too_large";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

}  // namespace tqcache::cli
