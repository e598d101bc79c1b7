#pragma once
// interop/turbomlx/pickle.h: a reader of Python pickles with plain values and NumPy arrays. It
// interprets the opcodes that CPython writes for them. Safe for untrusted input: it imports and
// calls no Python objects, and bytes stay in the file.
//
// It reads protocols 2 to 5 with None, bool, int, float, str, bytes, bytearray, tuple, list, dict
// and numpy.ndarray, and fails at the name of any other kind of object.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: CPython Lib/pickletools.py; numpy/core/src/multiarray/methods.c (array_reduce_ex).

#include <cstdint>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/turbomlx/value_tree.h"

namespace tqcache::interop {

struct Pickle {
  int protocol = 0;
  ValueTree tree;
};

// Memory: the texts, at most 64 MiB, and a few hundred bytes for each of at most 2^18 values.
// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported (`would import "os.system"`; opcodes of
//         other objects; arrays of other types or orders), those of the file.
Result<Pickle> read_pickle(const ByteSource& file);

// A name that a pickle may use. Errors: kUnsupported for all others: `would import "os.system"`.
Result<Value> pickle_global(std::string_view module, std::string_view name);

// The result of calling such a name with these arguments. `texts_left` limits the bytes that
// protocol 2 writes as text.
//
// Errors: kCorrupt (invalid arguments), kUnsupported, kTooLarge.
Result<Value> pickle_call(const ValueTree& tree, const Value& global, const Value& arguments,
                          std::uint64_t& texts_left);

// Sets the state of an array or a dtype. Errors: as above.
Result<void> pickle_build(ValueTree& tree, Value& object, const Value& state);

}  // namespace tqcache::interop
