#pragma once
// tensors/json.h: JSON texts in foreign files, parsed within limits. Safe for untrusted input.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tqcache/error.h"

namespace tqcache::tensors {

struct JsonLimits {
  std::size_t max_bytes = 0;
  int max_depth = 0;  // of nested lists and objects; 1: a list or object of plain values
  std::size_t max_values = std::size_t{1} << 18;  // lists and objects count as well
};

// Memory: some 100 bytes for each of at most max_values values.
// Errors: kCorrupt (not JSON, an object with a key given twice), kTooLarge (a limit).
Result<nlohmann::json> parse_json(std::string_view text, const JsonLimits& limits);

// Whether a text is printable ASCII: it needs no escapes in JSON but for quotes and backslashes.
bool is_plain_text(std::string_view text);

}  // namespace tqcache::tensors
