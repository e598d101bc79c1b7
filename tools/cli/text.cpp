#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "tqcache/base/posix.h"

namespace tqcache::cli {

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
                       bool show, bool begins)
    : tokenizer_(tokenizer),
      filter_(std::move(stops)),
      show_(show),
      terminal_(is_terminal(STDOUT_FILENO)),
      drops_space_(begins && tokenizer.drops_first_space()) {
  if (begins) answer_.emplace(tokenizer);
}

Result<bool> TextStream::add(std::int32_t id) {
  const std::string shown = answer_ ? answer_->add(id) : tokenizer_.token_bytes(id);
  std::string_view bytes = shown;
  if (drops_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  drops_space_ = false;
  take(filter_.add(bytes));
  TQC_TRY(show(tokenizer::take_whole_characters(pending_)));
  return !filter_.stopped();
}

Result<void> TextStream::end() {
  take(filter_.end());
  return show(std::exchange(pending_, {}) + "\n");
}

void TextStream::take(const std::string& bytes) {
  text_ += bytes;
  pending_ += bytes;
}

Result<void> TextStream::show(const std::string& text) const {
  if (!show_ || text.empty()) return {};
  return print(terminal_ ? printable_lines(text) : text);
}

}  // namespace tqcache::cli
