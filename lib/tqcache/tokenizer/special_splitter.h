#pragma once
// tokenizer/special_splitter.h: finds the tokens that are cut out of a text before anything else.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/tokenizer/prefix_index.h"

namespace tqcache::tokenizer {

class SpecialSplitter {
 public:
  using Name = PrefixIndex::Name;
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };

  // Requires: no name is empty. Of equal names the first counts.
  explicit SpecialSplitter(std::vector<Name> names);

  // The first name in `text` from byte `from` on; the longest of those that begin there.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  PrefixIndex names_;
  std::array<bool, 256> is_first_byte_{};  // most places are ruled out by their first byte
};

}  // namespace tqcache::tokenizer
