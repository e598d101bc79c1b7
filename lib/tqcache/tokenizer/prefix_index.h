#pragma once
// tokenizer/prefix_index.h: searches for many names in a text.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::tokenizer {

// An index that finds all names which are prefixes of a text.
class PrefixIndex {
 public:
  struct Name {
    std::string text;
    std::int32_t id;
  };

  // Requires: no name is empty. The first of several equal names counts.
  explicit PrefixIndex(std::vector<Name> names);

  // Calls found(size, id) for every name that is a prefix of `text`, the shortest first.
  template <class Found>
  void find(std::string_view text, Found&& found) const;

  const std::vector<Name>& names() const { return names_; }  // sorted by text

 private:
  using Iterator = std::vector<Name>::const_iterator;
  struct Range {
    Iterator begin;
    Iterator end;
  };
  // The names of the range whose byte `at` is `byte`.
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

// Finds special tokens, which are split off before any other step.
class SpecialSplitter {
 public:
  using Name = PrefixIndex::Name;
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };

  // Requires: no name is empty. The first of several equal names counts.
  explicit SpecialSplitter(std::vector<Name> names);

  // The first name in `text` from byte `from` on; of several that begin there, the longest.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  PrefixIndex names_;
  std::array<bool, 256> is_first_byte_{};  // most positions are ruled out by their first byte
};

}  // namespace tqcache::tokenizer
