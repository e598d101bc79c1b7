#include "cli/text_stream.h"

#include <unistd.h>

#include <utility>

#include "cli/terminal.h"

namespace tqcache::cli {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
                       bool show, bool begins)
    : tokenizer_(tokenizer),
      filter_(std::move(stops)),
      show_(show),
      terminal_(is_terminal(STDOUT_FILENO)),
      drops_space_(begins && tokenizer.drops_first_space()) {}

Outcome<bool> TextStream::add(std::int32_t id) {
  std::string_view bytes = tokenizer_.token_bytes(id);
  if (drops_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  drops_space_ = false;
  take(filter_.add(bytes));
  TQC_TRY(show(tokenizer::take_whole_characters(pending_)));
  return !filter_.stopped();
}

Outcome<Done> TextStream::end() {
  take(filter_.end());
  return show(std::exchange(pending_, {}) + "\n");
}

void TextStream::take(const std::string& bytes) {
  text_ += bytes;
  pending_ += bytes;
}

Outcome<Done> TextStream::show(const std::string& text) const {
  if (!show_ || text.empty()) return Done{};
  return print(terminal_ ? printable_lines(text) : text);
}

}  // namespace tqcache::cli
