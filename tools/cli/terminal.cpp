#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace tqcache::cli {
namespace {

bool environment_is(const char* name, std::string_view value) {
  const char* found = std::getenv(name);
  return found != nullptr && value == found;
}

// C0, DEL, and the two-byte UTF-8 form of C1 (which some terminals obey like ESC).
bool is_control(std::string_view text, std::size_t i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x20 || byte == 0x7f) return true;
  if (byte != 0xc2 || i + 1 == text.size()) return false;
  const auto next = static_cast<unsigned char>(text[i + 1]);
  return next >= 0x80 && next < 0xa0;
}

std::string escape(std::string_view text, std::string_view kept) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_control(text, i) && kept.find(text[i]) == std::string_view::npos) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      if (static_cast<unsigned char>(text[i]) == 0xc2) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
      }
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

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

std::string printable(std::string_view text) { return escape(text, ""); }

std::string printable_lines(std::string_view text) { return escape(text, "\n\t"); }

}  // namespace tqcache::cli
