#pragma once
// store/backends/store_url.h: the URL of a store taken apart.
//
// Only for the sources of store.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::store {

struct StoreUrl {
  std::string scheme;
  std::string user, password;  // decoded; empty when it names none
  std::string host;            // without the brackets of an IPv6 address
  std::uint16_t port = 0;      // 0: it names none
  std::string path;            // decoded, with its leading '/', if any
  std::map<std::string, std::string> query;

  // The value of a query parameter, taken out, or `otherwise`.
  std::string take(const std::string& parameter, std::string_view otherwise = "");
};

// Takes SCHEME:REST apart. What stands behind "dir:" is a path, and nothing in it is decoded; all
// others are SCHEME://[USER[:PASSWORD]@][HOST[:PORT]][/PATH][?A=B&C=D] with %XX decoded.
// Errors: kInvalidArgument, never with the password in its message.
Result<StoreUrl> parse_store_url(std::string_view url);

// Errors: kInvalidArgument when a parameter is left that nobody took.
Result<void> check_all_taken(const StoreUrl& url);

// A whole number up to `limit`. Errors: kInvalidArgument, naming `what`.
Result<std::uint64_t> parse_number(std::string_view what, std::string_view text,
                                   std::uint64_t limit);

}  // namespace tqcache::store
