#include "tqcache/base/processor.h"

#include <cstdlib>

namespace tqcache {

const char* wanted_isa() { return std::getenv("TQCACHE_ISA"); }

}  // namespace tqcache
