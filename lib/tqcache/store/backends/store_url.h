#pragma once
// store/backends/store_url.h: the URL of a store, and the backends by scheme.
//
// Only for the sources of store.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/store.h"

namespace tqcache::store {

struct StoreUrl {
  std::string scheme;
  std::string user, password;  // decoded; empty if absent
  std::string host;            // without the brackets of an IPv6 address
  std::uint16_t port = 0;      // 0: absent
  std::string path;            // decoded, with its leading '/', if present
  std::map<std::string, std::string> query;

  // Removes and returns the value of a query parameter, or `otherwise` if absent.
  std::string take(const std::string& parameter, std::string_view otherwise = "");
};

// kInvalidArgument: "store URL: " + what.
inline Error bad_url(const std::string& what) { return invalid("store URL: " + what); }

// Parses SCHEME:REST. The text after "dir:" is a path and is not decoded. All others are
// SCHEME://[USER[:PASSWORD]@][HOST[:PORT]][/PATH][?A=B&C=D], with %XX decoded.
// Errors: kInvalidArgument. The message contains no part of the URL that could belong to a
//         password: it shows the scheme alone.
Result<StoreUrl> parse_store_url(std::string_view url);

// Errors: kInvalidArgument if a parameter was not taken.
Result<void> check_all_taken(const StoreUrl& url);

// A whole number up to `limit`. Errors: kInvalidArgument, naming `what` but not the text.
Result<std::uint64_t> parse_number(std::string_view what, std::string_view text,
                                   std::uint64_t limit);

// A store in a folder of files. put() writes a file under a temporary name, flushes and renames it,
// and flushes its folder. Several processes of one machine may use it at once.
// Errors: as DirLayout::open.
Result<std::unique_ptr<Backend>> open_dir_backend(StoreUrl url, const BackendOptions& options);

// A store in memory that lives as long as its object, for tests and simulations.
std::unique_ptr<Backend> make_memory_backend(const BackendOptions& options);

// A store in a Redis or Valkey server, or in a cluster. It connects on first use. If the URL has no
// password, that of the environment variable REDISCLI_AUTH is used, as in redis-cli.
// Errors: kInvalidArgument.
Result<std::unique_ptr<Backend>> open_redis_backend(StoreUrl url, const BackendOptions& options);

// A store in a bucket of an S3 service. It connects on first use. The environment variables
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are the credentials; AWS_REGION is the region if the
// URL has none.
// Errors: kInvalidArgument, also if a variable is missing.
Result<std::unique_ptr<Backend>> open_s3_backend(StoreUrl url, const BackendOptions& options);

}  // namespace tqcache::store
