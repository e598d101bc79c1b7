#pragma once
// tensors/foreign_json.h: parser, with limits, for JSON texts in foreign files. Safe for untrusted
// input.

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tqcache/error.h"

namespace tqcache::tensors {

struct JsonLimits {
  std::size_t max_bytes = 0;
  int max_depth = 0;  // of nested lists and objects; 1: a list or object of plain values
  std::size_t max_values = std::size_t{1} << 18;  // lists and objects count as well
  std::size_t max_keys = std::numeric_limits<std::size_t>::max();  // of each object
  bool takes_repeated_keys = false;  // the last value is taken; parse_ordered_json() never does
};

// Time: that of the text's length. Memory: about 100 bytes for each of at most max_values values.
// Errors: kCorrupt (not JSON, or an object with a duplicate key), kTooLarge (a limit).
Result<nlohmann::json> parse_json(std::string_view text, const JsonLimits& limits);

// The same with the order of keys kept. To look for a key in such an object takes as long as it has
// keys: give a limit where each of them is looked for.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const JsonLimits& limits);

// Whether a text is printable ASCII, so that JSON escapes only its quotes and backslashes.
bool is_plain_text(std::string_view text);

}  // namespace tqcache::tensors
