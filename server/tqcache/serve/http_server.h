#pragma once
// server/tqcache/serve/http_server.h: an HTTP/1.1 server with a bounded number of connections.
//
//   HttpServer server({.address = "127.0.0.1:8081"}, metrics, log);
//   server.route("GET", "/v1/models", [](const Request&, Client&) {
//     return Response::json(200, "{}");
//   });
//   TQC_TRY(server.start());
//   ...
//   server.stop(std::chrono::seconds(10));
//
// Requests are read, and answers written, by http_connection.h; who may ask is in http_access.h. A
// thread accepts, and each connection has a thread of its own, so that handlers are straight-line
// code that may wait for a model.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_access.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/http_options.h"
#include "tqcache/serve/operations.h"

namespace tqcache::serve {

// "127.0.0.1:8081" -> host and port. Errors: kInvalidArgument.
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);

// GET /health and GET /metrics are answered by the server itself, unless a route replaces them.
// HEAD is answered as GET, without the body.
//
// Threads: handlers run on many threads at once. Routes must be set before start().
class HttpServer {
 public:
  using Handler = std::function<Response(const Request& request, Client& client)>;

  HttpServer(HttpOptions options, Metrics& metrics, Log& log);
  ~HttpServer();  // stops at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void route(std::string method, std::string path, Handler handler);
  // Handles what no route matches. Without it that is status 404 or 405.
  void set_fallback(Handler handler);
  // The answer to GET /health. Without it the answer is {"status": "ok"}.
  void set_health(std::function<Response()> health);

  // Binds and begins to serve on threads of its own. Errors: kInvalidArgument, kIo.
  Result<void> start();

  // The port that is bound. Requires: started.
  int port() const;

  // Replaces the keys while the server runs.
  void set_api_keys(std::vector<std::string> keys);

  // Accepts no more connections, waits up to `grace` until running requests are answered, then
  // breaks them off. Returns after the last handler has returned.
  void stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tqcache::serve
