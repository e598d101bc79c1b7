#pragma once
// tqcache/version.h: the version of the library.
//
//   std::printf("tqcache %.*s\n", int(tqcache::version().size()), tqcache::version().data());

#include <string_view>

namespace tqcache {

// "0.2.0". Until 1.0 every minor version may change the interface. The file format has its own
// version: docs/reference/format.md.
std::string_view version();

}  // namespace tqcache
