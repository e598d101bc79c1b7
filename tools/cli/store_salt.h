#pragma once
// tools/cli/store_salt.h: the salt that parts the tenants of a store.
//
// It is never a flag itself: everybody on a machine sees the command lines of all programs.

#include <string>

#include "tqcache/base/result.h"

namespace tqcache::cli {

// The text of the file, without line ends behind it; without a file, TQCACHE_STORE_SALT, which may
// be missing or empty: that is the tenant of all who have no salt.
// Errors: those of reading; kInvalidArgument (a file without a salt), kTooLarge (4,096 bytes).
Result<std::string> tenant_salt(const std::string& file);

}  // namespace tqcache::cli
