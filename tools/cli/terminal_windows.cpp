// Interruptions, waiting, and the size of a console on Windows.

#ifdef _WIN32

#include <windows.h>
// after windows.h
#include <io.h>

#include <atomic>
#include <cstdlib>

#include "cli/terminal.h"
#include "tqcache/base/posix.h"

namespace tqcache::cli {
namespace {

// Windows calls the handler in a thread of its own.
std::atomic<bool> g_interrupted = false;
std::atomic<bool> g_terminated = false;
std::atomic<bool> g_ends_at_first = false;

BOOL WINAPI handle(DWORD event) {
  if (g_ends_at_first || g_interrupted) ExitProcess(static_cast<UINT>(ExitCode::kInterrupted));
  g_interrupted = true;
  // The window is closed, or the user logs off: Windows ends the process some seconds after this
  // returns, so it does not.
  if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) {
    g_terminated = true;
    Sleep(INFINITE);
  }
  return TRUE;
}

HANDLE handle_of(int fd) { return reinterpret_cast<HANDLE>(_get_osfhandle(fd)); }

}  // namespace

void install_signal_handlers() { SetConsoleCtrlHandler(handle, TRUE); }

// Windows Error Reporting keeps memory of a program that crashes, unless it is told not to.
void forbid_core_dumps() {
  SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX | SEM_NOOPENFILEERRORBOX);
}

EndsAtFirstSignal::EndsAtFirstSignal() { g_ends_at_first = true; }
EndsAtFirstSignal::~EndsAtFirstSignal() { g_ends_at_first = false; }

bool interrupted() { return g_interrupted; }
bool terminated() { return g_terminated; }
void acknowledge_interrupt() { g_interrupted = false; }

// Ctrl-C ends a read of the console, which posix::read() reports as EINTR.
bool wait_readable(int, const std::function<void()>&) { return !interrupted(); }

// Text is UTF-8 for consoles, too, which show colors and redraw lines if they are asked to.
void choose_locale() {
  SetConsoleOutputCP(CP_UTF8);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    DWORD mode = 0;
    if (!GetConsoleMode(handle_of(fd), &mode)) continue;
    SetConsoleMode(handle_of(fd), mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
  }
}

bool has_utf8() { return true; }

bool is_terminal(int fd) { return posix::isatty(fd) == 1; }

std::size_t terminal_columns(int fd) {
  CONSOLE_SCREEN_BUFFER_INFO info{};
  if (!GetConsoleScreenBufferInfo(handle_of(fd), &info)) return 80;
  const int columns = info.srWindow.Right - info.srWindow.Left + 1;
  return columns > 0 ? static_cast<std::size_t>(columns) : 80;
}

}  // namespace tqcache::cli

#endif  // _WIN32
