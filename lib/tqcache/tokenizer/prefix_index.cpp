#include "tqcache/tokenizer/prefix_index.h"

#include <algorithm>
#include <utility>

namespace tqcache::tokenizer {

PrefixIndex::PrefixIndex(std::vector<Name> names) : names_(std::move(names)) {
  std::stable_sort(names_.begin(), names_.end(),
                   [](const Name& a, const Name& b) { return a.text < b.text; });
}

PrefixIndex::Range PrefixIndex::narrow(Range range, std::size_t at, char byte) {
  const auto wanted = static_cast<unsigned char>(byte);
  // -1 for names that end before `at`: they sort first, as in std::string.
  const auto byte_at = [at](const Name& name) {
    return at < name.text.size() ? static_cast<unsigned char>(name.text[at]) : -1;
  };
  const auto begin = std::partition_point(range.begin, range.end,
                                          [&](const Name& n) { return byte_at(n) < wanted; });
  const auto end =
      std::partition_point(begin, range.end, [&](const Name& n) { return byte_at(n) <= wanted; });
  return {begin, end};
}

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
