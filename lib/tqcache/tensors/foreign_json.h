#pragma once
// tensors/foreign_json.h: parser, with limits, for JSON texts in foreign files. Safe for untrusted
// input.

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

// Memory: about 100 bytes for each of at most max_values values.
// Errors: kCorrupt (not JSON, or an object with a duplicate key), kTooLarge (a limit).
Result<nlohmann::json> parse_json(std::string_view text, const JsonLimits& limits);

// Whether a text is printable ASCII, so that JSON escapes only its quotes and backslashes.
bool is_plain_text(std::string_view text);

}  // namespace tqcache::tensors
