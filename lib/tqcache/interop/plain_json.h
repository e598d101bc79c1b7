#pragma once
// interop/plain_json.h: JSON texts in foreign files, within bounds. Safe for untrusted input.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::interop {

// A text whose lists and objects are nested `max_depth` deep at most, and no object of which has a
// key twice.
//
// Errors: kCorrupt; kTooLarge when the text is longer than `max_bytes`.
Result<nlohmann::json> parse_plain_json(std::string_view text, std::size_t max_bytes,
                                        int max_depth);

// Whether a text can go into JSON as it is: printable ASCII.
bool is_plain_text(std::string_view text);

}  // namespace tqcache::interop
