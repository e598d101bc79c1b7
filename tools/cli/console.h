#pragma once
// tools/cli/console.h: all that the tool says: results on standard output, the rest on standard error.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/exit_code.h"
#include "cli/outcome.h"
#include "tqcache/base/bytes.h"

namespace tqcache::cli {

using Json = nlohmann::ordered_json;

struct Console {
  bool quiet = false;  // no progress, no summary
  bool json = false;   // results as one JSON object; errors as one too
};

// Writes to standard output at once; nothing is kept in a buffer that could be lost.
// Errors: kIo; silent when the reader closed the pipe. kInterrupted.
Outcome<Done> print(std::string_view text);
Outcome<Done> print_bytes(ByteView bytes);

// A JSON object and a line end. Bytes that are not UTF-8 become U+FFFD.
Outcome<Done> print_json(const Json& object);

// One line on standard error, unless the user asked for quiet.
void note(const Console& console, std::string_view line);

// "tqcache: FILE: message" on standard error, whatever was asked for.
void complain(std::string_view file, std::string_view message);

// "tqcache: warning: FILE: message" on standard error, whatever was asked for.
void warn(std::string_view file, std::string_view message);

// {"code": "corrupt", "exit_code": 20, "file": ..., "message": ...}
Json failure_json(const Failure& failure);

// Tells of a failure, as a line and with --json as an object, and gives the code to exit with.
ExitCode report(const Failure& failure, bool json);

}  // namespace tqcache::cli
