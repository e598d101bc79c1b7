#include "text_stream.h"

#include <unistd.h>

#include "terminal.h"

namespace tqcache::cli {

TextStream::TextStream(const model::Tokenizer& tokenizer, bool show)
    : tokenizer_(tokenizer), show_(show), terminal_(is_terminal(STDOUT_FILENO)) {}

Outcome<Done> TextStream::add(std::int32_t id) {
  const std::string& bytes = tokenizer_.token_bytes(id);
  text_ += bytes;
  pending_ += bytes;
  return show(model::take_whole_characters(pending_));
}

Outcome<Done> TextStream::end() {
  const std::string rest = std::move(pending_) + "\n";
  pending_.clear();
  return show(rest);
}

Outcome<Done> TextStream::show(const std::string& text) const {
  if (!show_ || text.empty()) return Done{};
  return print(terminal_ ? printable_lines(text) : text);
}

}  // namespace tqcache::cli
