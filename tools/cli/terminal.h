#pragma once
// tools/cli/terminal.h: what stands at the other end of a descriptor, and text that is safe to show.

#include <cstddef>
#include <string>
#include <string_view>

namespace tqcache::cli {

bool is_terminal(int fd);

// Whether a line on this descriptor can be drawn over: a terminal that is not dumb.
bool can_redraw(int fd);

// The same, and the user has not set NO_COLOR (https://no-color.org).
bool can_color(int fd);

std::size_t terminal_columns(int fd);  // 80 when unknown

// One line without control characters: "a\nb" becomes "a\x0ab". A file name must not be able to
// move the cursor or to forge a second message.
std::string printable(std::string_view text);

// The same for text of several lines: keeps line ends and tabs.
std::string printable_lines(std::string_view text);

}  // namespace tqcache::cli
