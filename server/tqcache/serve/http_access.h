#pragma once
// server/tqcache/serve/http_access.h: who may send a request: API keys, names of the server, and
// pages of other sites.
//
// A browser lets every page send requests to every server that the machine can reach. A page of a
// foreign site may do so openly, and then the browser sends the header Origin. Or its own name may
// be given the address of this server (DNS rebinding): then its requests look like those of the
// server's own page, except that the header Host has a foreign name. A server without keys has no
// other way to tell its user from such a page.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/http_options.h"

namespace tqcache::serve {

// The page for people, which / is, too, where no other server answers there.
inline constexpr const char* kPagePath = "/tqcache";

// The key that a request carries; empty if it carries none. A request for the page may also carry
// it as the password of "Authorization: Basic", which browsers ask for.
std::string api_key_of(const Request& request);

// Whether the value of a header Host is an address, localhost or one of `names`, with any port.
bool is_local_host(std::string_view host, std::span<const std::string> names);

// The rules in this order:
// 1. Without configured keys the host must be local (403), whatever key the client sends.
// 2. A request of a page of another origin, unless that is allowed, is refused (403). Only links to
//    the page and to `open_paths` work from everywhere.
// 3. With configured keys, paths other than `open_paths` need one (401). A CORS preflight of an
//    allowed origin does not: browsers send no key with it.
// A request without Host (HTTP/1.0) or without Origin is not from a browser's page, and passes.
std::optional<Refusal> check_access(const Request& request, const HttpOptions& options);

// Whether the request asks what a page of an allowed origin may send, and nothing else (CORS).
bool is_preflight(const Request& request, const HttpOptions& options);
Response answer_preflight(const Request& request);

// Adds the headers with which a browser lets a page of an allowed origin read the answer, in place
// of those that another server has made. Does nothing if no origin is allowed. The page for people
// is for no other page.
void add_cors_headers(const Request& request, const HttpOptions& options,
                      std::vector<Header>& headers);

}  // namespace tqcache::serve
