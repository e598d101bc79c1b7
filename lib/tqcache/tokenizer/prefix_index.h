#pragma once
// tokenizer/prefix_index.h: which of many names a text begins with.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::tokenizer {

class PrefixIndex {
 public:
  struct Name {
    std::string text;
    std::int32_t id;
  };

  // Requires: no name is empty. Of equal names the first counts.
  explicit PrefixIndex(std::vector<Name> names);

  // Calls found(size, id) for every name that `text` begins with, the shortest first.
  template <class Found>
  void find(std::string_view text, Found&& found) const;

  const std::vector<Name>& names() const { return names_; }  // sorted by text

 private:
  using Iterator = std::vector<Name>::const_iterator;
  struct Range {
    Iterator begin;
    Iterator end;
  };
  // Those of the range whose byte `at` is this one.
  static Range narrow(Range range, std::size_t at, char byte);

  std::vector<Name> names_;
};

template <class Found>
void PrefixIndex::find(std::string_view text, Found&& found) const {
  Range range{names_.begin(), names_.end()};
  for (std::size_t i = 0; i < text.size() && range.begin != range.end; ++i) {
    range = narrow(range, i, text[i]);
    if (range.begin != range.end && range.begin->text.size() == i + 1) {
      found(i + 1, range.begin->id);
    }
  }
}

}  // namespace tqcache::tokenizer
