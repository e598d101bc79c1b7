#include "text_stream.h"

#include <unistd.h>

#include "terminal.h"

namespace tqcache::cli {

TextStream::TextStream(const model::Tokenizer& tokenizer, bool show, bool begins)
    : tokenizer_(tokenizer),
      show_(show),
      terminal_(is_terminal(STDOUT_FILENO)),
      drops_space_(begins && tokenizer.drops_first_space()) {}

Outcome<Done> TextStream::add(std::int32_t id) {
  std::string_view bytes = tokenizer_.token_bytes(id);
  if (drops_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  drops_space_ = false;
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
