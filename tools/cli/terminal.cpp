#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "cli/text.h"
#include "tqcache/base/system.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::cli {

using tokenizer::Utf8Character;
using tokenizer::Utf8Status;

namespace {

// Signal handlers can only access globals.
volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_terminated = 0;
volatile std::sig_atomic_t g_ends_at_first = 0;
volatile std::sig_atomic_t g_continued = 0;
int g_wake_pipe[2] = {-1, -1};  // holds a byte after a signal

volatile std::sig_atomic_t g_first_second = 0, g_first_ms = 0;  // when the first signal came

// One key press or one `timeout` can send the same signal twice in a row.
bool is_another_signal() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto second = static_cast<std::sig_atomic_t>(now.tv_sec);
  const auto ms = static_cast<std::sig_atomic_t>(now.tv_nsec / 1'000'000);
  const int gap = second - g_first_second;
  if (g_interrupted != 0) return gap > 1 || gap * 1000 + ms - g_first_ms > 100;
  g_first_second = second;
  g_first_ms = ms;
  return false;
}

void handle(int signal) {
  const int saved_errno = errno;
  if (g_ends_at_first != 0 || is_another_signal())
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  g_interrupted = 1;
  if (signal == SIGTERM) g_terminated = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(g_wake_pipe[1], "", 1);
  errno = saved_errno;
}

void handle_continued(int) {
  const int saved_errno = errno;
  g_continued = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(g_wake_pipe[1], "", 1);
  errno = saved_errno;
}

void drain_wake_pipe() {
  std::array<char, 64> woken;
  while (::read(g_wake_pipe[0], woken.data(), woken.size()) > 0) {
  }
}

}  // namespace

void install_signal_handlers() {
  // Without a pipe, poll() ignores the negative descriptor, and only the flag remains.
  [[maybe_unused]] const int ignored = open_pipe(g_wake_pipe);
  struct sigaction action = {};
  action.sa_handler = handle;  // without SA_RESTART, so that a waiting call returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = handle_continued;
  action.sa_flags = SA_RESTART;
  sigaction(SIGCONT, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

void forbid_core_dumps() {
#ifdef __linux__
  // The limit alone does not hold for a program that the kernel's core_pattern names.
  [[maybe_unused]] const int not_set = ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
  const rlimit none = {0, 0};
  [[maybe_unused]] const int ignored = ::setrlimit(RLIMIT_CORE, &none);
}

EndsAtFirstSignal::EndsAtFirstSignal() { g_ends_at_first = 1; }
EndsAtFirstSignal::~EndsAtFirstSignal() { g_ends_at_first = 0; }

bool interrupted() { return g_interrupted != 0; }

bool terminated() { return g_terminated != 0; }

void acknowledge_interrupt() {
  drain_wake_pipe();
  g_interrupted = 0;
}

bool wait_readable(int fd, const std::function<void()>& on_continued) {
  std::array<pollfd, 2> waiting = {{{fd, POLLIN, 0}, {g_wake_pipe[0], POLLIN, 0}}};
  while (!interrupted()) {
    if (g_continued != 0) {
      // An interrupt whose byte goes as well has set its flag before.
      g_continued = 0;
      drain_wake_pipe();
      if (on_continued) on_continued();
      continue;
    }
    const int n = ::poll(waiting.data(), waiting.size(), -1);
    if (n < 0 && errno != EINTR) return true;  // read() will report the error
    if (n > 0 && waiting[0].revents != 0) return !interrupted();
  }
  return false;
}

namespace {

bool environment_is(const char* name, std::string_view value) {
  const char* found = std::getenv(name);
  return found != nullptr && value == found;
}

// Some terminals obey a C1 control like ESC, as one byte (invalid UTF-8) or as two.
bool is_shown(const Utf8Character& character, bool in_lines) {
  const char32_t c = character.code_point;
  if (character.status != Utf8Status::kWhole) return false;
  if (in_lines && (c == '\n' || c == '\t')) return true;
  // In a text, marks without nesting belong to the spelling of Arabic and Hebrew.
  if (in_lines && (c == 0x061c || c == 0x200e || c == 0x200f)) return true;
  return !tokenizer::is_control(c) && !tokenizer::changes_direction(c);
}

std::string escape(std::string_view text, bool in_lines) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character character = tokenizer::first_character(text);
    for (const char byte : text.substr(0, character.n_bytes)) {
      if (is_shown(character, in_lines)) {
        out += byte;
      } else {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    text.remove_prefix(character.n_bytes);
  }
  return out;
}

}  // namespace

void choose_locale() {
  // Numbers keep the format of the C locale.
  std::setlocale(LC_CTYPE, "");
  for (const char* name : {"C.UTF-8", "en_US.UTF-8"}) {
    if (has_utf8()) return;
    std::setlocale(LC_CTYPE, name);
  }
}

bool has_utf8() { return std::string_view(::nl_langinfo(CODESET)) == "UTF-8"; }

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

bool can_redraw(int fd) { return is_terminal(fd) && !environment_is("TERM", "dumb"); }

bool can_color(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return can_redraw(fd) && (no_color == nullptr || *no_color == '\0');
}

std::size_t terminal_columns(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string printable(std::string_view text) { return escape(text, false); }

std::string printable_lines(std::string_view text) { return escape(text, true); }

namespace {

constexpr std::chrono::milliseconds kDrawInterval{100};
constexpr std::size_t kMaxBarColumns = 30;
constexpr std::string_view kClearLine = "\r\x1b[K";

std::string amount(Unit unit, std::uint64_t done, std::uint64_t total) {
  switch (unit) {
    case Unit::kTokens:
      return fmt::format("{}/{} tokens", grouped(done), grouped(total));
    case Unit::kBytes:
      return fmt::format("{}/{}", human_bytes(done), human_bytes(total));
    case Unit::kVectors:
      return fmt::format("{}/{} vectors", grouped(done), grouped(total));
    case Unit::kSides:
      return fmt::format("{}/{} sides", grouped(done), grouped(total));
    case Unit::kLayers:
      return fmt::format("{}/{} layers", grouped(done), grouped(total));
    case Unit::kBlocks:
      return fmt::format("{}/{} blocks", grouped(done), grouped(total));
    case Unit::kBlobs:
      return fmt::format("{}/{} blobs", grouped(done), grouped(total));
  }
  return {};
}

// Only for units whose speed is of interest.
std::string rate(Unit unit, double each_second) {
  if (unit == Unit::kBytes) {
    return fmt::format(", {}/s", human_bytes(static_cast<std::uint64_t>(each_second)));
  }
  return unit == Unit::kTokens ? fmt::format(", {:.0f}/s", each_second) : std::string();
}

std::string bar(double share, std::size_t columns, bool color) {
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(columns));
  const std::string done(filled, '#');
  const std::string left(columns - filled, '.');
  return color ? fmt::format("[\x1b[32m{}\x1b[0m{}]", done, left)
               : fmt::format("[{}{}]", done, left);
}

void put_on_screen(std::string_view text) {
  // A bar that cannot be drawn is not reported.
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

ProgressBar::ProgressBar(const Console& console, std::string label, Unit unit)
    : label_(std::move(label)),
      unit_(unit),
      visible_(!console.quiet && can_redraw(STDERR_FILENO)),
      next_draw_(start_ + kDrawInterval) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::clear() {
  if (drawn_) put_on_screen(kClearLine);
  drawn_ = false;
}

Progress ProgressBar::callback() {
  return [this](std::uint64_t done, std::uint64_t total) {
    if (visible_ && Clock::now() >= next_draw_) draw(done, total);
    return !interrupted();
  };
}

void ProgressBar::draw(std::uint64_t done, std::uint64_t total) {
  if (total == 0) return;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const std::string head = fmt::format("{} {:3.0f}% ", label_, share * 100);
  std::string tail = fmt::format(" {}", amount(unit_, done, total));
  if (spent > 0) tail += rate(unit_, static_cast<double>(done) / spent);
  if (share > 0) tail += fmt::format(", {:.0f} s left", spent * (1 - share) / share);

  // The last column stays empty: a full line would wrap on some terminals.
  const std::size_t columns = terminal_columns(STDERR_FILENO);
  const std::size_t text = head.size() + tail.size() + 3;
  std::string line = head;
  if (columns > text + 5) {
    line += bar(share, std::min(kMaxBarColumns, columns - text), can_color(STDERR_FILENO)) + tail;
  } else {
    line = (head + tail).substr(0, columns - 1);
  }
  put_on_screen(std::string(kClearLine) + line);
  drawn_ = true;
  next_draw_ = Clock::now() + kDrawInterval;
}

}  // namespace tqcache::cli
