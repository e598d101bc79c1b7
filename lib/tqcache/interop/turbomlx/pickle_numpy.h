#pragma once
// interop/turbomlx/pickle_numpy.h: the few names that a pickle of NumPy arrays calls, done without calling
// anything. Safe for untrusted input.

#include <cstdint>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

// What a pickle may name. Errors: kUnsupported for every other: `would import "os.system"`.
Result<Value> pickle_global(std::string_view module, std::string_view name);

// What a call of such a name with these arguments gives. `texts_left` is what is still free for
// bytes that protocol 2 spells as text.
//
// Errors: kCorrupt (arguments that it does not take), kUnsupported, kTooLarge.
Result<Value> pickle_call(const ValueTree& tree, const Value& global, const Value& arguments,
                          std::uint64_t& texts_left);

// Gives an array or a dtype its state. Errors: as above.
Result<void> pickle_build(ValueTree& tree, Value& object, const Value& state);

}  // namespace tqcache::interop
