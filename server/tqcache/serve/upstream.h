#pragma once
// server/tqcache/serve/upstream.h: an HTTP client for the server behind a proxy, over libcurl.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_message.h"

namespace tqcache::serve {

struct UpstreamOptions {
  // A path is the prefix of all routes of the server (llama-server's --api-prefix).
  std::string url = "http://127.0.0.1:8080";
  std::chrono::milliseconds connect_timeout{5'000};
  // Until the whole head of an answer, and then without a byte. A long prompt is read for minutes
  // before the first one.
  std::chrono::milliseconds idle_timeout{600'000};
};

// An answer whose head has arrived. Its body is read in pieces, as they arrive.
class UpstreamAnswer {
 public:
  virtual ~UpstreamAnswer() = default;

  int status = 0;
  std::vector<Header> headers;          // all
  std::optional<std::uint64_t> length;  // of the body, if it is known

  // The next bytes of the body; empty at its end. Waits for them.
  // Errors: kIo (the connection broke; nothing arrived in time), kInterrupted (the client is gone).
  virtual Result<std::string> read() = 0;
};

// Connections are kept open and used again.
//
// Threads: any number.
class Upstream {
 public:
  // Errors: kInvalidArgument: not a URL such as http://HOST:PORT or http://HOST:PORT/PREFIX.
  static Result<std::unique_ptr<Upstream>> open(const UpstreamOptions& options);
  virtual ~Upstream() = default;

  // What all paths of the server begin with: "/prefix", or empty.
  const std::string& prefix() const { return prefix_; }

  // Sends a request and waits for the head of its answer. `target` has the prefix. `client` may be
  // null; if it is gone, the connection is closed, which ends the work of the upstream server.
  // Errors: kIo (no connection; an answer that is not HTTP; nothing in time), kInterrupted (also
  // without a client: end_calls_at()).
  virtual Result<std::unique_ptr<UpstreamAnswer>> send(std::string_view method,
                                                       std::string_view target,
                                                       const std::vector<Header>& headers,
                                                       std::string body, Client* client) = 0;

  // Requests without a client, which nobody else can end, end at this time: the program ends.
  void end_calls_at(std::chrono::steady_clock::time_point time) { calls_end_ = time; }

  // A request whose answer is small. It has to arrive within idle_timeout and a second more for
  // each KiB.
  // Errors: as send() and UpstreamAnswer::read(); kTooLarge.
  struct Reply {
    int status = 0;
    std::string body;
  };
  Result<Reply> call(std::string_view method, std::string_view target, std::string body,
                     const std::vector<Header>& headers, Client* client,
                     std::uint64_t max_bytes = std::uint64_t{64} << 20);

 protected:
  // The URL of `options` has no path.
  Upstream(UpstreamOptions options, std::string prefix)
      : options_(std::move(options)), prefix_(std::move(prefix)) {}

  std::atomic<std::chrono::steady_clock::time_point> calls_end_ =
      std::chrono::steady_clock::time_point::max();
  const UpstreamOptions options_;
  const std::string prefix_;
};

// The headers that a proxy passes on: without those that are about one connection only
// (Connection and what it names, Keep-Alive, Transfer-Encoding, Upgrade, ...), Host, Expect and
// Content-Length.
std::vector<Header> end_to_end_headers(const std::vector<Header>& headers);

// Passes a request on and its answer back, byte for byte. `body` replaces that of the request.
// Failures become status 502 or 504.
// Requires: `upstream` outlives the response's stream.
Response forward(Upstream& upstream, const Request& request, std::string body, Client& client);

// The status for a failure of the upstream server.
Response upstream_failure(const Error& error);

}  // namespace tqcache::serve
