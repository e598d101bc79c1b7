#include "tqcache/model/special_splitter.h"

#include <algorithm>
#include <utility>

namespace tqcache::model {

SpecialSplitter::SpecialSplitter(std::vector<Name> names) : names_(std::move(names)) {
  std::stable_sort(names_.begin(), names_.end(),
                   [](const Name& a, const Name& b) { return a.text < b.text; });
  for (const Name& name : names_) is_first_byte_[static_cast<unsigned char>(name.text[0])] = true;
}

std::optional<SpecialSplitter::Match> SpecialSplitter::find(std::string_view text,
                                                            std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_byte_[static_cast<unsigned char>(text[begin])]) continue;
    if (const std::optional<Match> match = longest_at(text, begin)) return match;
  }
  return std::nullopt;
}

// Narrows the sorted names, byte by byte, to those that the text goes on to spell.
std::optional<SpecialSplitter::Match> SpecialSplitter::longest_at(std::string_view text,
                                                                  std::size_t begin) const {
  std::optional<Match> longest;
  auto low = names_.begin();
  auto high = names_.end();
  for (std::size_t i = 0; begin + i < text.size() && low != high; ++i) {
    const auto byte = static_cast<unsigned char>(text[begin + i]);
    // -1 for names that end before byte i: they sort first, as std::string has it.
    const auto byte_at = [i](const Name& name) {
      return i < name.text.size() ? static_cast<unsigned char>(name.text[i]) : -1;
    };
    low = std::partition_point(low, high, [&](const Name& n) { return byte_at(n) < byte; });
    high = std::partition_point(low, high, [&](const Name& n) { return byte_at(n) <= byte; });
    if (low != high && low->text.size() == i + 1) longest = Match{begin, begin + i + 1, low->id};
  }
  return longest;
}

}  // namespace tqcache::model
