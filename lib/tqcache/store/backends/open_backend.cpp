// Which engine a URL means. TQCACHE_STORE_REDIS and TQCACHE_STORE_S3 say which are built in.

#include "tqcache/store/backend.h"
#include "tqcache/store/backends/dir_backend.h"
#include "tqcache/store/backends/engine_text.h"
#include "tqcache/store/backends/memory_backend.h"
#include "tqcache/store/backends/store_url.h"
#ifdef TQCACHE_STORE_REDIS
#include "tqcache/store/backends/redis_backend.h"
#endif
#ifdef TQCACHE_STORE_S3
#include "tqcache/store/backends/s3_backend.h"
#endif

namespace tqcache::store {
namespace {

Result<std::unique_ptr<Backend>> open_memory(StoreUrl url, const BackendOptions& options) {
  TQC_TRY(check_all_taken(url));
  if (url.host.empty() && url.path.empty()) return make_memory_backend(options);
  return Error{ErrorCode::kInvalidArgument, "store URL: memory: has no name"};
}

using Open = Result<std::unique_ptr<Backend>> (*)(StoreUrl url, const BackendOptions& options);

struct Scheme {
  std::string_view scheme;
  std::string_view engine;
  Open open;  // null: not built in
};

constexpr Scheme kSchemes[] = {
    {"dir", "dir", open_dir_backend},       {"memory", "memory", open_memory},
#ifdef TQCACHE_STORE_REDIS
    {"redis", "redis", open_redis_backend}, {"redis+unix", "redis", open_redis_backend},
#else
    {"redis", "redis", nullptr},
    {"redis+unix", "redis", nullptr},
#endif
#ifdef TQCACHE_STORE_S3
    {"s3", "s3", open_s3_backend},
#else
    {"s3", "s3", nullptr},
#endif
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::string_view text,
                                              const BackendOptions& options) {
  TQC_TRY_ASSIGN(StoreUrl url, parse_store_url(text));
  for (const Scheme& known : kSchemes) {
    if (known.scheme != url.scheme) continue;
    if (known.open != nullptr) return known.open(std::move(url), options);
    return Error{ErrorCode::kUnsupported,
                 "store URL: " + url.scheme + ": is not built into this tqcache"};
  }
  return Error{ErrorCode::kInvalidArgument, "store URL: unknown scheme " + in_quotes(url.scheme) +
                                                ": dir, redis, redis+unix, s3, memory"};
}

std::vector<std::string_view> schemes() {
  std::vector<std::string_view> engines;
  for (const Scheme& known : kSchemes) {
    const bool told = !engines.empty() && engines.back() == known.engine;
    if (known.open != nullptr && !told) engines.push_back(known.engine);
  }
  return engines;
}

}  // namespace tqcache::store
