#pragma once
// lib/tqcache/serve/proxy.h: a proxy before llama-server.

#include <memory>
#include <string>

#include "tqcache/error.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/upstream.h"

namespace tqcache::serve {

struct ProxyOptions {
  UpstreamOptions upstream = {};
  // Sent to the upstream server in place of the client's key. Empty: the client's is passed on.
  std::string upstream_key = {};
};

// Threads: any number.
class Proxy {
 public:
  // `metrics` and `log` must outlive it. Errors: kInvalidArgument.
  static Result<std::unique_ptr<Proxy>> open(const ProxyOptions& options, Metrics& metrics,
                                             Log& log);
  virtual ~Proxy() = default;

  // Handles what no route of the server matches, and /health. Requires: this outlives the server.
  virtual void attach(HttpServer& server) = 0;
};

}  // namespace tqcache::serve
