#include "tqcache/tokenizer/special_splitter.h"

#include <utility>

namespace tqcache::tokenizer {

SpecialSplitter::SpecialSplitter(std::vector<Name> names) : names_(std::move(names)) {
  for (const Name& name : names_.names()) {
    is_first_byte_[static_cast<unsigned char>(name.text[0])] = true;
  }
}

std::optional<SpecialSplitter::Match> SpecialSplitter::find(std::string_view text,
                                                            std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_byte_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    names_.find(text.substr(begin), [&](std::size_t size, std::int32_t id) {
      longest = Match{begin, begin + size, id};
    });
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace tqcache::tokenizer
