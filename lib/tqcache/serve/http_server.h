#pragma once
// lib/tqcache/serve/http_server.h: an HTTP/1.1 server: cpp-httplib behind a strict reader of
// requests.
//
//   HttpServer server({.address = "127.0.0.1:8081"}, metrics, log);
//   server.route("GET", "/v1/models", [](const Request&, Client&) {
//     return Response::json(200, "{}");
//   });
//   TQC_TRY(server.start());
//   ...
//   server.stop(std::chrono::seconds(10));
//
// cpp-httplib 0.11.4 accepts connections, runs the threads and writes answers. What it reads is
// prepared by this class, because it accepts too much itself: it has no limit for the number of
// headers, takes the first of several Content-Length headers, prefers chunks where a length is
// given, accepts folded and bare line ends, and decompresses bodies without a limit. So heads and
// bodies are read and checked here (http_message.h), and cpp-httplib gets a head without any of
// that.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/operations.h"

namespace tqcache::serve {

struct HttpOptions {
  std::string address = "127.0.0.1:8081";  // HOST:PORT, [IPv6]:PORT; port 0: any free one
  HeadLimits head = {};
  std::uint64_t max_body_bytes = std::uint64_t{64} << 20;
  // Of all requests that are being read or answered.
  std::uint64_t max_buffered_bytes = std::uint64_t{1} << 30;
  std::size_t max_connections = 256;                // more get status 503
  std::chrono::milliseconds idle_timeout{60'000};   // between requests
  std::chrono::milliseconds head_timeout{10'000};   // for a whole head
  std::chrono::milliseconds read_timeout{30'000};   // without a byte of a body
  std::chrono::milliseconds write_timeout{60'000};  // in which the client takes no byte
  // A client that sends a body, or takes an answer, more slowly than this holds a connection and
  // maybe a slot: beyond the two times above, each byte gives it this much more time.
  std::uint64_t least_bytes_per_second = 1024;
  // Keys of which a request needs one (Authorization: Bearer KEY, or x-api-key: KEY). Empty: none
  // is needed. Paths in `open_paths` never need one.
  std::vector<std::string> api_keys = {};
  std::vector<std::string> open_paths = {"/health"};
};

// "127.0.0.1:8081" -> host and port. Errors: kInvalidArgument.
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);

// The page for people, which / is, too, where no other server answers there.
inline constexpr const char* kPagePath = "/tqcache";

// The key that a request carries; empty if it carries none. A request for the page may also carry
// it as the password of "Authorization: Basic", which browsers ask for.
std::string api_key_of(const Request& request);

// GET /health and GET /metrics are answered by the server itself, unless a route replaces them.
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
