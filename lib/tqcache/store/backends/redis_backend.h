#pragma once
// store/backends/redis_backend.h: a store in a Redis or Valkey server, or in a cluster of them.
//
// Only for the sources of store. Spec: docs/reference/store.md, 4.

#include <memory>

#include "tqcache/store/backend.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {

// Connects to nothing yet. Without a password in the URL that of the environment variable
// REDISCLI_AUTH is taken, as redis-cli does.
// Errors: kInvalidArgument.
Result<std::unique_ptr<Backend>> open_redis_backend(StoreUrl url, const BackendOptions& options);

}  // namespace tqcache::store
