#include "text_stream.h"

#include <unistd.h>

#include <utility>

#include "terminal.h"

namespace tqcache::cli {

TextStream::TextStream(const model::Tokenizer& tokenizer, std::vector<std::string> stops, bool show)
    : tokenizer_(tokenizer),
      filter_(std::move(stops)),
      show_(show),
      terminal_(is_terminal(STDOUT_FILENO)) {}

Outcome<bool> TextStream::add(std::int32_t id) {
  take(filter_.add(tokenizer_.token_bytes(id)));
  TQC_TRY(show(model::take_whole_characters(pending_)));
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
