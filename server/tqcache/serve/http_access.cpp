#include "tqcache/serve/http_access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

namespace tqcache::serve {
namespace {

bool equal_keys(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool has(const std::vector<std::string>& list, std::string_view text) {
  return std::ranges::find(list, text) != list.end();
}

bool is_safe(const Request& request) { return request.method == "GET" || request.method == "HEAD"; }

// The page for people. Browsers ask for a password there, which they then send by themselves, so it
// opens nothing else: other pages could make a browser send requests.
bool is_page(const Request& request) {
  return is_safe(request) && (request.path == "/" || request.path == kPagePath);
}

// The password of "USER:PASSWORD" in base64; empty if it is malformed.
std::string password_of(std::string_view encoded) {
  constexpr std::size_t kMaxBytes = 8192;
  if (encoded.size() % 4 != 0 || encoded.size() > kMaxBytes) return {};
  std::string text(encoded.size() / 4 * 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                reinterpret_cast<const unsigned char*>(encoded.data()),
                                static_cast<int>(encoded.size()));
  if (n < 0) return {};
  // The padding was decoded as zeros.
  while (encoded.ends_with('=') && text.ends_with('\0')) {
    encoded.remove_suffix(1);
    text.pop_back();
  }
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? std::string() : text.substr(colon + 1);
}

// "host", "host:80" or "[::1]:80" without the port; empty if the port is not a number.
std::string_view without_port(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  const std::size_t n = host.starts_with('[') && end != std::string_view::npos ? end + 1 : end;
  const std::string_view rest = host.substr(std::min(n, host.size()));
  if (!rest.empty() &&
      (rest[0] != ':' || rest.find_first_not_of("0123456789", 1) != std::string_view::npos)) {
    return {};
  }
  return host.substr(0, n);
}

bool is_address(std::string_view host) {
  in6_addr parsed = {};
  if (host.starts_with('[') && host.ends_with(']')) {
    return ::inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &parsed) ==
           1;
  }
  return ::inet_pton(AF_INET, std::string(host).c_str(), &parsed) == 1;
}

bool is_allowed_origin(std::string_view origin, const HttpOptions& options) {
  return !origin.empty() && std::ranges::any_of(options.allowed_origins, [&](const auto& allowed) {
    return allowed == "*" || same_word(allowed, origin);
  });
}

// Whether a browser sends this request for a page of another origin, which is not allowed.
bool is_foreign(const Request& request, const HttpOptions& options) {
  const std::string_view origin = request.header("Origin");
  if (is_allowed_origin(origin, options)) return false;
  if (origin.empty()) return same_word(request.header("Sec-Fetch-Site"), "cross-site");
  const std::size_t slashes = origin.find("://");
  // The scheme may be another one: a proxy before this server may speak TLS.
  return slashes == std::string_view::npos ||
         !same_word(origin.substr(slashes + 3), request.header("Host"));
}

Refusal foreign_host(std::string_view host) {
  return {403,
          fmt::format("the host {} is no known name of this server, which has no keys: ask for "
                      "it by its address or as localhost, or start it with --allow-host {}",
                      host, without_port(host))};
}

Refusal foreign_origin(const Request& request) {
  const std::string_view origin = request.header("Origin");
  return {403, fmt::format("a page of another site ({}) asks: start the server with --allow-origin "
                           "{} if that site may",
                           origin.empty() ? "unnamed" : origin, origin.empty() ? "SITE" : origin)};
}

}  // namespace

std::string api_key_of(const Request& request) {
  const std::string_view authorization = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (same_word(authorization.substr(0, kBearer.size()), kBearer)) {
    return std::string(authorization.substr(kBearer.size()));
  }
  constexpr std::string_view kBasic = "Basic ";
  if (is_page(request) && same_word(authorization.substr(0, kBasic.size()), kBasic)) {
    return password_of(authorization.substr(kBasic.size()));
  }
  return std::string(request.header("x-api-key"));
}

bool is_local_host(std::string_view host, std::span<const std::string> names) {
  const std::string_view name = without_port(host);
  if (is_address(name) || same_word(name, "localhost")) return true;
  return !name.empty() && std::ranges::any_of(names, [&](const std::string& allowed) {
    return same_word(allowed, name) || same_word(allowed, host);
  });
}

std::optional<Refusal> check_access(const Request& request, const HttpOptions& options) {
  const bool has_host = std::ranges::any_of(
      request.headers, [](const Header& header) { return same_word(header.name, "Host"); });
  const std::string_view host = request.header("Host");
  if (options.api_keys.empty() && has_host && !is_local_host(host, options.allowed_hosts)) {
    return foreign_host(host);
  }
  const bool is_open = has(options.open_paths, request.path);
  const bool may_be_linked = is_page(request) || (is_safe(request) && is_open);
  if (!may_be_linked && is_foreign(request, options)) return foreign_origin(request);
  if (is_open || options.api_keys.empty() || is_preflight(request, options)) return std::nullopt;
  bool is_known = false;
  for (const std::string& key : options.api_keys) {
    is_known = equal_keys(key, request.api_key) || is_known;
  }
  if (is_known) return std::nullopt;
  return Refusal{401, "a valid API key is needed: Authorization: Bearer KEY",
                 is_page(request) ? "Basic realm=\"tqcache\", charset=\"UTF-8\"" : "Bearer"};
}

bool is_preflight(const Request& request, const HttpOptions& options) {
  return request.method == "OPTIONS" && !request.header("Access-Control-Request-Method").empty() &&
         is_allowed_origin(request.header("Origin"), options);
}

Response answer_preflight(const Request& request) {
  std::string allowed = "authorization, content-type, x-api-key";
  const std::string_view asked = request.header("Access-Control-Request-Headers");
  if (!asked.empty()) allowed += fmt::format(", {}", asked);
  return {.status = 204,
          .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE"},
                      {"Access-Control-Allow-Headers", std::move(allowed)},
                      {"Access-Control-Max-Age", "600"}},
          .body = {}};
}

void add_cors_headers(const Request& request, const HttpOptions& options,
                      std::vector<Header>& headers) {
  constexpr std::string_view kOrigin = "Access-Control-Allow-Origin";
  constexpr std::string_view kCredentials = "Access-Control-Allow-Credentials";
  std::erase_if(headers, [&](const Header& header) {
    return same_word(header.name, kOrigin) || same_word(header.name, kCredentials);
  });
  if (options.allowed_origins.empty() || is_page(request)) return;
  headers.push_back({"Vary", "Origin"});
  const std::string_view origin = request.header("Origin");
  if (!is_allowed_origin(origin, options)) return;
  headers.push_back({std::string(kOrigin), std::string(origin)});
  if (request.method != "OPTIONS") headers.push_back({"Access-Control-Expose-Headers", "*"});
}

}  // namespace tqcache::serve
