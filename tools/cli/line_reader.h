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

  // Whether a person types at a terminal.
  bool interactive() const { return is_interactive_; }

  // The next turn without its line end; nullopt at the end of input. A turn is a line, or several:
  // lines that end with a backslash continue on the next one, """ begins a text that ends with """,
  // and a text pasted into a terminal is one turn. Ctrl-C at a terminal drops what has been typed.
  // Errors: kInterrupted (at a terminal only if nothing has been typed), kIo.
  Result<std::optional<std::string>> next_turn();

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // on a terminal that can redraw a line of UTF-8
  bool is_interactive_;
  std::string pending_;  // bytes that follow the last returned line
  bool at_end_ = false;

  Result<std::optional<std::string>> next_line(const char* prompt);
  Result<std::optional<std::string>> read_line();
  // Appends further lines to the first line of a turn. Returns false if Ctrl-C drops the turn.
  Result<bool> continue_turn(std::string& turn);
};

}  // namespace tqcache::cli
