#pragma once
// interop/json_tree.h: a JSON text as a tree of plain values. Safe for untrusted input.

#include <string_view>

#include "tqcache/base/result.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

// Requires: a text of moderate size; values take many times its memory, up to 2^18 of them.
// Errors:   kCorrupt (no JSON), kTooLarge (more values, or nested deeper than 32).
Result<ValueTree> parse_json_tree(std::string_view text);

}  // namespace tqcache::interop
