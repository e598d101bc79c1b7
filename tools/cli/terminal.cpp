#include "cli/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cli/text.h"
#include "tqcache/base/posix.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::cli {

using tokenizer::Utf8Character;
using tokenizer::Utf8Status;

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

bool can_redraw(int fd) { return is_terminal(fd) && !environment_is("TERM", "dumb"); }

bool can_color(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return can_redraw(fd) && (no_color == nullptr || *no_color == '\0');
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
    case Unit::kLayers:
      return fmt::format("{}/{} layers", grouped(done), grouped(total));
    case Unit::kBlocks:
      return fmt::format("{}/{} blocks", grouped(done), grouped(total));
    case Unit::kBlobs:
      return fmt::format("{}/{} blobs", grouped(done), grouped(total));
    case Unit::kShare:
      return {};
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
  [[maybe_unused]] const ssize_t ignored = posix::write(STDERR_FILENO, text.data(), text.size());
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
  std::string tail = amount(unit_, done, total);
  if (spent > 0) tail += rate(unit_, static_cast<double>(done) / spent);
  if (share > 0) {
    tail += fmt::format("{}{:.0f} s left", tail.empty() ? "" : ", ", spent * (1 - share) / share);
  }
  tail.insert(0, 1, ' ');

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
