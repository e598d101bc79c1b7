#include "cli/line_reader.h"

#include <fmt/format.h>
#ifdef TQCACHE_LINE_EDITING
#include <histedit.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cwchar>
#include <cwctype>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/console.h"
#include "cli/terminal.h"
#include "tqcache/base/posix.h"

namespace tqcache::cli {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = ". ";  // of the further lines of a turn

}  // namespace

#ifdef TQCACHE_LINE_EDITING

namespace {

// With bracketed paste, the terminal marks pasted text, so that its line ends are not the key
// Enter.
constexpr const char* kPasteOn = "\x1b[?2004h";
constexpr const char* kPasteOff = "\x1b[?2004l";

constexpr wchar_t kInvalid = 0xfffd;       // for bytes that are not UTF-8
constexpr wchar_t kCtrlU = 0x15;           // the key that deletes the line
constexpr unsigned char kEditorEnds = 2;   // CC_EOF of libedit, whose header has no names for them
constexpr unsigned char kEditorDraws = 4;  // CC_REFRESH

bool is_line_empty(EditLine* edit) {
  const LineInfo* const line = el_line(edit);
  return line->lastchar == line->buffer;
}

}  // namespace

struct LineReader::Editor {
  Editor();
  ~Editor() {
    el_end(edit);
    history_end(past);
  }
  // Null where the terminal's own editing has to do.
  static std::unique_ptr<Editor> make();
  void remember(const std::string& turn) const;
  Result<std::optional<std::string>> read_line(const char* with_prompt);

  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static Editor& of(EditLine* edit) {
    Editor* editor = nullptr;
    el_get(edit, EL_CLIENTDATA, &editor);
    return *editor;
  }
  static char* prompt_of(EditLine* edit) { return const_cast<char*>(of(edit).prompt); }
  void show_again() const;
  static int read_character(EditLine* edit, wchar_t* character);
  static unsigned char paste(EditLine* edit, int key);

  EditLine* edit;
  History* past;
  const char* prompt = kPrompt;
  std::optional<char> unread;  // a byte after an incomplete character
};

LineReader::Editor::Editor()
    : edit(el_init("tqcache", stdin, stdout, stderr)), past(history_init()) {
  HistEvent event;
  history(past, &event, H_SETSIZE, 1000);
  el_set(edit, EL_CLIENTDATA, this);
  el_set(edit, EL_PROMPT, prompt_of);
  el_set(edit, EL_EDITOR, "emacs");
  el_set(edit, EL_HIST, history, past);
  el_set(edit, EL_GETCFN, read_character);
  el_set(edit, EL_ADDFN, "tqcache-paste", "Insert pasted text", paste);
  el_set(edit, EL_BIND, "\\e[200~", "tqcache-paste", nullptr);
}

// Takes the terminal back from the shell that had it while the program was stopped, and shows the
// prompt and what has been typed.
void LineReader::Editor::show_again() const {
  el_set(edit, EL_PREP_TERM, 0);  // without this libedit believes that it has the terminal
  el_set(edit, EL_PREP_TERM, 1);
  if (!print(fmt::format("\r\x1b[K{}", kPasteOn))) return;  // over what the shell has left there
  el_set(edit, EL_REFRESH);
}

// Replaces libedit's own reader, which retries after a signal and so ignores Ctrl-C.
int LineReader::Editor::read_character(EditLine* edit, wchar_t* character) {
  Editor& editor = of(edit);
  std::mbstate_t state = {};
  for (bool is_first = true;; is_first = false) {
    if (!editor.unread && !wait_readable(STDIN_FILENO, [&] { editor.show_again(); })) {
      if (terminated() || is_line_empty(edit)) return -1;
      acknowledge_interrupt();
      *character = kCtrlU;
      return 1;
    }
    char byte = 0;
    if (editor.unread) {
      byte = *std::exchange(editor.unread, std::nullopt);
    } else {
      const ssize_t n = posix::read(STDIN_FILENO, &byte, 1);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return static_cast<int>(n);
    }
    const std::size_t used = std::mbrtowc(character, &byte, 1, &state);
    if (used == static_cast<std::size_t>(-2)) continue;  // incomplete character
    if (used != static_cast<std::size_t>(-1)) return 1;
    *character = kInvalid;
    if (!is_first) editor.unread = byte;
    return 1;
  }
}

// Reads up to the mark that ends a pasted text.
unsigned char LineReader::Editor::paste(EditLine* edit, int) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  std::wstring text;
  while (!text.ends_with(kEnd)) {
    wchar_t character = 0;
    if (el_wgetc(edit, &character) != 1) return kEditorEnds;
    if (character == L'\n' && text.ends_with(L'\r')) text.pop_back();
    text += character;
  }
  text.resize(text.size() - kEnd.size());
  std::ranges::replace(text, L'\r', L'\n');
  while (text.ends_with(L'\n')) text.pop_back();
  std::erase_if(text, [](wchar_t c) {
    return c != L'\n' && c != L'\t' && std::iswcntrl(static_cast<std::wint_t>(c)) != 0;
  });
  if (!text.empty()) el_winsertstr(edit, text.c_str());
  return kEditorDraws;
}

// Without UTF-8, libedit would drop characters; the terminal's own editing keeps all bytes.
std::unique_ptr<LineReader::Editor> LineReader::Editor::make() {
  return can_redraw(STDIN_FILENO) && has_utf8() ? std::make_unique<Editor>() : nullptr;
}

void LineReader::Editor::remember(const std::string& turn) const {
  HistEvent event;
  history(past, &event, H_ENTER, turn.c_str());
}

Result<std::optional<std::string>> LineReader::Editor::read_line(const char* with_prompt) {
  prompt = with_prompt;
  TQC_TRY(print(kPasteOn));
  int n = 0;
  const wchar_t* typed = el_wgets(edit, &n);
  TQC_TRY(print(kPasteOff));
  if (typed == nullptr || n <= 0) {
    TQC_TRY(print("\n"));  // ends the line of the prompt
    if (interrupted()) return interrupted_error();
    return std::optional<std::string>();
  }
  std::wstring_view line(typed, static_cast<std::size_t>(n));
  if (line.ends_with(L'\n')) line.remove_suffix(1);
  std::string bytes;
  std::array<char, MB_LEN_MAX> character;
  std::mbstate_t state = {};
  for (const wchar_t each : line) {
    const std::size_t size = std::wcrtomb(character.data(), each, &state);
    if (size != static_cast<std::size_t>(-1)) bytes.append(character.data(), size);
  }
  return std::optional(std::move(bytes));
}

#else  // without libedit

struct LineReader::Editor {
  static std::unique_ptr<Editor> make() { return nullptr; }
  void remember(const std::string&) const {}
  Result<std::optional<std::string>> read_line(const char*) { return std::optional<std::string>(); }
};

#endif  // TQCACHE_LINE_EDITING

LineReader::LineReader()
    : is_interactive_(is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO)) {
  if (is_interactive_) editor_ = Editor::make();
}

LineReader::~LineReader() = default;

Result<std::optional<std::string>> LineReader::next_turn() {
  TQC_TRY_ASSIGN(std::optional<std::string> turn, next_line(kPrompt));
  if (!turn) return turn;
  TQC_TRY_ASSIGN(const bool is_kept, continue_turn(*turn));
  if (!is_kept) return std::optional(std::string());
  if (editor_ && !turn->empty()) editor_->remember(*turn);
  return turn;
}

Result<bool> LineReader::continue_turn(std::string& turn) {
  const bool is_quoted = turn.starts_with(kQuotes);
  if (is_quoted) turn.erase(0, kQuotes.size());
  for (;;) {
    if (is_quoted && turn.ends_with(kQuotes)) {
      turn.resize(turn.size() - kQuotes.size());
      if (turn.starts_with('\n')) turn.erase(0, 1);
      if (turn.ends_with('\n')) turn.pop_back();
      return true;
    }
    if (!is_quoted && !turn.ends_with('\\')) return true;
    auto more = next_line(kMorePrompt);
    if (!more) {
      if (more.error().code != ErrorCode::kInterrupted || !is_interactive_ || terminated()) {
        return std::move(more).error();
      }
      acknowledge_interrupt();
      return false;
    }
    if (!is_quoted) turn.pop_back();
    if (!*more) return true;
    turn += "\n" + **more;
  }
}

Result<std::optional<std::string>> LineReader::next_line(const char* prompt) {
  if (editor_) return editor_->read_line(prompt);
  if (is_interactive_) TQC_TRY(print(prompt));
  return read_line();
}

Result<std::optional<std::string>> LineReader::read_line() {
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
    const ssize_t n = posix::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{ErrorCode::kIo, std::generic_category().message(errno)};
    if (n == 0) at_end_ = true;
    pending_.append(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
}

}  // namespace tqcache::cli
