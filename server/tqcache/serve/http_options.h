#pragma once
// server/tqcache/serve/http_options.h: the address, the limits and the access rules of an HTTP
// server.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/serve/http_message.h"

namespace tqcache::serve {

struct HttpOptions {
  std::string address = "127.0.0.1:8081";  // HOST:PORT, [IPv6]:PORT; port 0: any free one

  // Who may ask: http_access.h.
  // Keys of which a request needs one (Authorization: Bearer KEY, or x-api-key: KEY). Empty: none
  // is needed. Paths in `open_paths` never need one.
  std::vector<std::string> api_keys = {};
  std::vector<std::string> open_paths = {"/health"};
  std::vector<std::string> allowed_hosts = {};    // names of this server besides localhost
  std::vector<std::string> allowed_origins = {};  // "https://chat.example:8443"; "*": all

  HeadLimits head = {};
  std::uint64_t max_body_bytes = std::uint64_t{64} << 20;
  // Of all requests that are being read or answered.
  std::uint64_t max_buffered_bytes = std::uint64_t{1} << 30;

  // More connections than these are refused with status 503. Some more stay for GET /health and GET
  // /metrics, which are answered even then.
  std::size_t max_connections = 256;
  // Of one address (IPv6: of one network of 64 bits). 0: a quarter of all, at least 8, and no limit
  // for the machine itself, where a reverse proxy may have the connections of many clients.
  std::size_t max_connections_per_address = 0;

  std::chrono::milliseconds idle_timeout{60'000};   // between requests
  std::chrono::milliseconds head_timeout{10'000};   // for a whole head
  std::chrono::milliseconds read_timeout{30'000};   // without a byte of a body
  std::chrono::milliseconds body_timeout{600'000};  // for a whole body
  std::chrono::milliseconds write_timeout{60'000};  // in which the client takes no byte
  // A client that sends a body, or takes an answer, more slowly than this holds a connection and
  // maybe a slot: beyond read_timeout and write_timeout, each byte gives it this much more time.
  std::uint64_t least_bytes_per_second = 1024;
};

}  // namespace tqcache::serve
