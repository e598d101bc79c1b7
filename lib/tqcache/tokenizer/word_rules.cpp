#include "tqcache/tokenizer/word_rules.h"

#include <algorithm>

#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

using Word = std::function<void(std::string_view)>;

// Source: huggingface/tokenizers pre_tokenizers/metaspace.rs.
void emit(const WordRules& rules, std::string_view text, bool begins, const Word& word) {
  const bool wants_space =
      rules.prefix == SpacePrefix::kEach || (rules.prefix == SpacePrefix::kFirst && begins);
  std::string spaced;
  if (rules.mark_spaces && text.find(kSpaceMark) != std::string_view::npos) {
    spaced = spaces_for_marks(text);
    text = spaced;
  }
  if (wants_space && !text.starts_with(' ')) {
    spaced = " " + std::string(text);
    text = spaced;
  }
  while (rules.cut_at_spaces && !text.empty()) {
    const std::size_t size = std::min(text.find(' ', 1), text.size());
    word(text.substr(0, size));
    text.remove_prefix(size);
  }
  if (!text.empty()) word(text);
}

std::size_t size_of_word(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const Utf8Character character = first_character(text.substr(n));
    if (is_white_space(character.code_point)) break;
    n += character.n_bytes;
  }
  return n;
}

}  // namespace

std::size_t find_word_end(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return text.size();
  return std::min(text.find(' ', begin), text.size());
}

void split_words(const WordRules& rules, std::string_view text, bool begins, const Word& word) {
  if (!rules.drop_white_space) {
    if (!text.empty()) emit(rules, text, begins, word);
    return;
  }
  for (bool is_first = begins;; is_first = false) {
    const std::size_t space = leading_white_space(text);
    text.remove_prefix(space);
    const std::size_t size = size_of_word(text);
    if (size == 0) return;
    emit(rules, text.substr(0, size), is_first && space == 0, word);
    text.remove_prefix(size);
  }
}

}  // namespace tqcache::tokenizer
