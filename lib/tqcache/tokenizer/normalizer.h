#pragma once
// tokenizer/normalizer.h: normalization of a text before it is split into tokens.
//
// SentencePiece vocabularies write a space as U+2581. Here both are spaces: what a file's
// normalizer does to spaces, this one does to U+2581, and tokens are read the same way.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::tokenizer {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

enum class Normalizer : std::uint8_t {
  kNfc,
  kPrependSpace,  // one space before the text
  kMarkSpaces,    // U+2581 becomes a space
  kJoinSpaces,    // two or more spaces become one
  kStripLeft,     // no white space at the beginning
  kStripRight,
  kStripSpaces,  // no spaces at either end
};
using Normalizers = std::vector<Normalizer>;  // applied in this order

// "none", "nfc", "prepend+spaces": part of the fingerprint.
std::string normalizers_name(const Normalizers& steps);

// Bytes:    NFC is stable, so characters known to utf8proc's Unicode version (15.0 in utf8proc 2.8)
//           normalize identically in every later version; unassigned ones are unchanged.
// Requires: text is UTF-8.
// Errors:   kTooLarge when there is no memory for the result.
Result<std::string> normalize(const Normalizers& steps, std::string_view text);

// `text` with a space for every U+2581.
std::string spaces_for_marks(std::string_view text);

}  // namespace tqcache::tokenizer
