#pragma once
// tools/cli/console.h: the program's output and its exit codes.
//
// Results go to standard output, everything else to standard error.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kDoneInPart = 3,
  kNotFound = 10,
  kBusy = 11,  // another process is writing the file
  kCorrupt = 20,
  kUnsupported = 21,  // a version, kind or size that this program does not support
  kMismatch = 22,     // a valid file, but of another model, or without its key
  kInterrupted = 130,
};

ExitCode exit_code(ErrorCode code);

// The error's name in JSON: "corrupt", "not_found", ...
std::string_view error_word(ErrorCode code);

using Json = nlohmann::ordered_json;

struct Console {
  bool quiet = false;    // no progress, no summary
  bool json = false;     // results and errors as JSON objects
  std::string key_file;  // --key-file
  // The keys of the key file, none: files are plain; --max-memory; TQCACHE_PROFILES.
  format::Access access;
  bool require_encrypted = false;  // --require-encrypted; then there are keys
};

// Writes to standard output at once, without a buffer that could be lost.
// Errors: kIo, without a message if the reader closed the pipe. kInterrupted.
Result<void> print(std::string_view text);
Result<void> print_bytes(ByteView bytes);

// Prints a JSON object and a line end. Bytes that are not UTF-8 become U+FFFD.
Result<void> print_json(const Json& object);

// Prints one line on standard error, unless --quiet is given.
void note(const Console& console, std::string_view line);

// Prints "tqcache: FILE: message" on standard error, also with --quiet.
void complain(std::string_view file, std::string_view message);

// Prints "tqcache: warning: FILE: message" on standard error, also with --quiet.
void warn(std::string_view file, std::string_view message);

// {"code": "corrupt", "exit_code": 20, "file": ..., "message": ...}
Json failure_json(const Error& failure);

// Reports a failure on standard error, as a line or as a JSON object, and returns the exit code.
ExitCode report(const Error& failure, bool json);

class Tally {
 public:
  void done() { n_done_ += 1; }

  // Reports the failure as a line, because the result has it too; an interruption only once.
  void failed(const Error& failure);

  // 0; 3 if some items failed; the code of the first failure if all failed. Always 130 after an
  // interruption.
  ExitCode exit_code() const;

  std::size_t n_failed() const { return n_failed_; }
  std::size_t n_interrupted() const { return n_interrupted_; }  // not started or not finished

 private:
  std::size_t n_done_ = 0;
  std::size_t n_failed_ = 0;
  std::size_t n_interrupted_ = 0;
  std::optional<ExitCode> first_;
};

}  // namespace tqcache::cli
