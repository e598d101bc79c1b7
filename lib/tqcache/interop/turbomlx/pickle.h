#pragma once
// interop/turbomlx/pickle.h: Python pickles of plain values and NumPy arrays, read by an
// interpreter of the opcodes that CPython writes for them. Safe for untrusted input: nothing is
// imported or called, and bytes stay in the file.
//
// It reads protocols 2 to 5 with None, bool, int, float, str, bytes, bytearray, tuple, list, dict
// and numpy.ndarray, and stops at the name of any other kind of object.
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

// Memory: the texts, at most 64 MiB, and some hundred bytes for each of at most 2^18 values.
// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported (`would import "os.system"`; opcodes of
//         other objects; arrays of other types or orders), those of the file.
Result<Pickle> read_pickle(const ByteSource& file);

// A name that a pickle may use. Errors: kUnsupported for every other: `would import "os.system"`.
Result<Value> pickle_global(std::string_view module, std::string_view name);

// The result of calling such a name with these arguments. `texts_left` limits the bytes that
// protocol 2 writes as text.
//
// Errors: kCorrupt (arguments that it does not take), kUnsupported, kTooLarge.
Result<Value> pickle_call(const ValueTree& tree, const Value& global, const Value& arguments,
                          std::uint64_t& texts_left);

// Gives an array or a dtype its state. Errors: as above.
Result<void> pickle_build(ValueTree& tree, Value& object, const Value& state);

}  // namespace tqcache::interop
