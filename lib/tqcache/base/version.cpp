#include "tqcache/version.h"

namespace tqcache {

std::string_view version() { return TQCACHE_VERSION; }

}  // namespace tqcache
