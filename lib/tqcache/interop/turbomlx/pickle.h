#pragma once
// interop/turbomlx/pickle.h: Python pickles of plain values and NumPy arrays, read by an interpreter of the
// opcodes that CPython writes for them. Safe for untrusted input: nothing is imported, nothing is
// called, and bytes stay in the file.
//
// Understood are protocols 2 to 5 with None, bool, int, float, str, bytes, bytearray, tuple, list,
// dict and numpy.ndarray. A name that another kind of object would need ends the reading.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: CPython Lib/pickletools.py; numpy/core/src/multiarray/methods.c (array_reduce_ex).

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

struct Pickle {
  int protocol = 0;
  ValueTree tree;
};

// Memory: the texts, at most 64 MiB, and some hundred bytes for each of at most 2^18 values.
// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported (`would import "os.system"`; opcodes of
//         other objects; arrays of other types or orders), those of the file.
Result<Pickle> read_pickle(const ByteSource& file);

}  // namespace tqcache::interop
