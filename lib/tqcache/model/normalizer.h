#pragma once
// model/normalizer.h: Unicode normalization of a text before it is cut into tokens.

#include <cstdint>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::model {

enum class Normalizer : std::uint8_t { kNone, kNfc };

// "none", "nfc": part of the fingerprint.
std::string_view normalizer_name(Normalizer normalizer);

// Bytes:    NFC is stable, so characters that utf8proc's Unicode version knows (15.0 in utf8proc
//           2.8) come out the same in every later version; unassigned ones stay as they are.
// Requires: text is UTF-8.
// Errors:   kTooLarge when there is no memory for the result.
Result<std::string> normalize(Normalizer normalizer, std::string_view text);

}  // namespace tqcache::model
