#pragma once
// interop/turbomlx/pickles.h: tells pickles of Python from other files. Python never reads one without
// running it, for a pickle is a program; here they are named and refused, but for TurboMLX's
// (turbomlx.h).

#include <optional>
#include <string>

#include "tqcache/base/file.h"

namespace tqcache::interop {

// What a pickle is called, and what to do instead of reading it: the message of an error. Nothing:
// the file is no pickle, or cannot be read.
std::optional<std::string> name_of_pickle(const ByteSource& file);

}  // namespace tqcache::interop
