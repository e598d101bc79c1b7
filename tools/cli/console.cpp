#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace tqcache::cli {
namespace {

// Standard error that cannot be written has nobody to be told.
void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

Failure stdout_failure(int error) {
  const std::string reason = std::generic_category().message(error);
  return Failure{Error{ErrorCode::kIo, reason}, "standard output", error == EPIPE};
}

std::string dump(const Json& object) {
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Outcome<Done> print_bytes(ByteView bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) {
      if (interrupted()) return interrupted_error();
      continue;
    }
    if (n < 0) return stdout_failure(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return Done{};
}

Outcome<Done> print(std::string_view text) { return print_bytes(as_bytes(text)); }

Outcome<Done> print_json(const Json& object) { return print(dump(object)); }

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

Json failure_json(const Failure& failure) {
  Json json;
  json["code"] = error_word(failure.error.code);
  json["exit_code"] = static_cast<int>(exit_code(failure.error.code));
  json["file"] = failure.file.empty() ? Json(nullptr) : Json(failure.file);
  json["message"] = failure.error.message;
  return json;
}

ExitCode report(const Failure& failure, bool json) {
  const ExitCode code = exit_code(failure.error.code);
  if (failure.silent) return code;
  if (code == ExitCode::kInterrupted && failure.error.message != interrupted_error().message) {
    return report(Failure{interrupted_error(), {}, false}, json);  // no matter where
  }
  complain(failure.file, failure.error.message);
  if (!json) return code;
  Json object;
  object["schema"] = 1;
  object["error"] = failure_json(failure);
  write_stderr(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  return code;
}

}  // namespace tqcache::cli
