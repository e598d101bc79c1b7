#include "cli/console.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "cli/terminal.h"
#include "tqcache/base/posix.h"

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
    case ErrorCode::kNoKey:
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
    case ErrorCode::kNoKey:
      return "no_key";
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

namespace {

// Failures to write to standard error cannot be reported.
void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = posix::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

Error stdout_failure(int error) {
  // If the reader closed the pipe, nobody reads messages; report() prints no empty ones.
  const std::string reason = error == EPIPE ? "" : std::generic_category().message(error);
  return {ErrorCode::kIo, reason, "standard output"};
}

std::string dump(const Json& object) {
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<void> print_bytes(ByteView bytes) {
  while (!bytes.empty()) {
    const ssize_t n = posix::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) {
      if (interrupted()) return interrupted_error();
      continue;
    }
    if (n < 0) return stdout_failure(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> print(std::string_view text) { return print_bytes(as_bytes(text)); }

Result<void> print_json(const Json& object) { return print(dump(object)); }

void note(const Console& console, std::string_view line) {
  if (!console.quiet) write_stderr(printable(line) + "\n");
}

void complain(std::string_view file, std::string_view message) {
  const std::string place = file.empty() ? "" : fmt::format("{}: ", file);
  write_stderr(printable(fmt::format("tqcache: {}{}", place, message)) + "\n");
}

void warn(std::string_view file, std::string_view message) {
  complain("warning", fmt::format("{}: {}", file, message));
}

Json failure_json(const Error& failure) {
  Json json;
  json["code"] = error_word(failure.code);
  json["exit_code"] = static_cast<int>(exit_code(failure.code));
  json["file"] = failure.file.empty() ? Json(nullptr) : Json(failure.file);
  json["message"] = failure.message;
  return json;
}

ExitCode report(const Error& failure, bool json) {
  const ExitCode code = exit_code(failure.code);
  if (failure.message.empty()) return code;
  if (code == ExitCode::kInterrupted && failure.message != interrupted_error().message) {
    return report(interrupted_error(), json);  // whatever was interrupted
  }
  if (!json) {
    complain(failure.file, failure.message);
    return code;
  }
  Json object;
  object["schema"] = 1;
  object["error"] = failure_json(failure);
  write_stderr(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  return code;
}

void Tally::failed(const Error& failure) {
  if (failure.code == ErrorCode::kInterrupted) {
    n_interrupted_ += 1;
    if (n_interrupted_ == 1) report(interrupted_error(), false);
    return;
  }
  n_failed_ += 1;
  const ExitCode code = report(failure, false);
  if (!first_) first_ = code;
}

ExitCode Tally::exit_code() const {
  if (n_interrupted_ > 0) return ExitCode::kInterrupted;
  if (!first_) return ExitCode::kDone;
  return n_done_ == 0 ? *first_ : ExitCode::kDoneInPart;
}

}  // namespace tqcache::cli
