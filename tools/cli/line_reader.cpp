#include "cli/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cwchar>
#include <system_error>
#include <utility>

#include "cli/terminal.h"

namespace tqcache::cli {
namespace {

char* prompt(EditLine*) {
  static char text[] = "> ";  // the library needs it writable
  return text;
}

// Replaces libedit's own reader, which retries after a signal and so ignores Ctrl-C.
int read_character(EditLine*, wchar_t* character) {
  std::mbstate_t state = {};
  for (;;) {
    if (!wait_readable(STDIN_FILENO)) return -1;
    char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return static_cast<int>(n);
    const std::size_t used = std::mbrtowc(character, &byte, 1, &state);
    if (used == static_cast<std::size_t>(-2)) continue;  // incomplete character
    if (used != static_cast<std::size_t>(-1)) return 1;
    state = {};  // invalid byte: dropped
  }
}

}  // namespace

struct LineReader::Editor {
  Editor() : edit(el_init("tqcache", stdin, stdout, stderr)), past(history_init()) {
    HistEvent event;
    history(past, &event, H_SETSIZE, 1000);
    el_set(edit, EL_PROMPT, prompt);
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, history, past);
    el_set(edit, EL_GETCFN, read_character);
  }
  ~Editor() {
    el_end(edit);
    history_end(past);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  EditLine* edit;
  History* past;
};

LineReader::LineReader() {
  if (can_redraw(STDIN_FILENO) && is_terminal(STDOUT_FILENO)) editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

bool LineReader::interactive() const { return editor_ != nullptr; }

Result<std::optional<std::string>> LineReader::next() {
  if (!editor_) return next_from_pipe();
  int n = 0;
  const char* typed = el_gets(editor_->edit, &n);
  if (typed == nullptr || n <= 0) {
    std::fputs("\n", stdout);  // ends the line of the prompt
    std::fflush(stdout);
    if (interrupted()) return interrupted_error();
    return std::optional<std::string>();
  }
  std::string line(typed, static_cast<std::size_t>(n));
  if (line.ends_with('\n')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(editor_->past, &event, H_ENTER, line.c_str());
  return std::optional<std::string>(std::move(line));
}

Result<std::optional<std::string>> LineReader::next_from_pipe() {
  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return std::optional<std::string>(std::move(line));
    }
    if (at_end_) {
      if (pending_.empty()) return std::optional<std::string>();
      return std::optional<std::string>(std::exchange(pending_, {}));
    }
    std::array<char, 4096> piece;
    if (!wait_readable(STDIN_FILENO)) return interrupted_error();
    const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{ErrorCode::kIo, std::generic_category().message(errno)};
    if (n == 0) at_end_ = true;
    pending_.append(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
}

}  // namespace tqcache::cli
