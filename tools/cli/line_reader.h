#pragma once
// tools/cli/line_reader.h: lines typed at a terminal, with editing and history, or read from a
// pipe.

#include <memory>
#include <optional>
#include <string>

#include "tqcache/error.h"

namespace tqcache::cli {

class LineReader {
 public:
  LineReader();
  ~LineReader();

  // Whether the input is a terminal.
  bool interactive() const;

  // The next line without its end; nullopt at the end of input.
  // Errors: kInterrupted, kIo.
  Result<std::optional<std::string>> next();

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // only on a terminal
  std::string pending_;             // bytes of a pipe after the last returned line
  bool at_end_ = false;

  Result<std::optional<std::string>> next_from_pipe();
};

}  // namespace tqcache::cli
