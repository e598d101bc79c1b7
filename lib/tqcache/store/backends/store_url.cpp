
#include "tqcache/store/backends/store_url.h"

#include <fmt/format.h>

#include <charconv>

#include "tqcache/store.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/backends/encrypted_backend.h"

namespace tqcache::store {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0)
      return bad_url("a % without two hexadecimal digits");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// Removes and returns the text before the first `mark`, and removes the mark; all text if there is
// no mark.
std::string_view take_before(std::string_view& text, char mark) {
  const std::size_t end = text.find(mark);
  const std::string_view before = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return before;
}

Result<void> parse_query(std::string_view text, StoreUrl& url) {
  while (!text.empty()) {
    std::string_view item = take_before(text, '&');
    TQC_TRY_ASSIGN(const std::string name, decoded(take_before(item, '=')));
    TQC_TRY_ASSIGN(std::string value, decoded(item));
    if (!url.query.emplace(name, std::move(value)).second) {
      return bad_url("a parameter is given twice");
    }
  }
  return {};
}

Result<void> parse_login(std::string_view text, StoreUrl& url) {
  TQC_TRY_ASSIGN(url.user, decoded(take_before(text, ':')));
  TQC_TRY_ASSIGN(url.password, decoded(text));
  return {};
}

Result<void> parse_port(std::string_view text, StoreUrl& url) {
  TQC_TRY_ASSIGN(const std::uint64_t port, parse_number("port", text, 65535));
  if (port == 0) return bad_url("port 0");
  url.port = static_cast<std::uint16_t>(port);
  return {};
}

// HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.
Result<void> parse_host(std::string_view text, StoreUrl& url) {
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    if (text.find(']') == std::string_view::npos) return bad_url("a [ without a ]");
    url.host = take_before(text, ']');
    if (text.empty()) return {};
    if (!text.starts_with(':')) return bad_url("no port after the ]");
    return parse_port(text.substr(1), url);
  }
  const bool has_port = text.find(':') != std::string_view::npos;
  url.host = take_before(text, ':');
  return has_port ? parse_port(text, url) : Result<void>();
}

// A password with a '/' or '?' would be taken for a path, and shown. A path may have an '@'.
Result<void> check_login(std::string_view text) {
  if (text.starts_with('/')) return {};
  const std::size_t at = text.rfind('@');
  if (at == std::string_view::npos || text.find_first_of("/?") > at) return {};
  return bad_url(
      "an @ behind a / or ?: write %2F for / and %3F for ? in a user or password, and %40 for @");
}

Result<void> parse_authority(std::string_view text, StoreUrl& url) {
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    TQC_TRY(parse_login(text.substr(0, at), url));
    text.remove_prefix(at + 1);
  }
  return parse_host(text, url);
}

}  // namespace

std::string StoreUrl::take(const std::string& parameter, std::string_view otherwise) {
  const auto node = query.extract(parameter);
  return node.empty() ? std::string(otherwise) : node.mapped();
}

Result<StoreUrl> parse_store_url(std::string_view text) {
  StoreUrl url;
  if (text.find(':') == std::string_view::npos) return bad_url("no scheme, as in dir:PATH");
  if (text.find('\0') != std::string_view::npos) return bad_url("a zero byte");
  url.scheme = take_before(text, ':');
  if (url.scheme == "dir") {
    url.path = text;
    return url;
  }
  if (text.starts_with("//")) text.remove_prefix(2);
  TQC_TRY(check_login(text));
  std::string_view location = take_before(text, '?');
  TQC_TRY(parse_query(text, url));
  const std::size_t slash = std::min(location.find('/'), location.size());
  TQC_TRY(parse_authority(location.substr(0, slash), url));
  TQC_TRY_ASSIGN(url.path, decoded(location.substr(slash)));
  return url;
}

Result<void> check_all_taken(const StoreUrl& url) {
  if (url.query.empty()) return {};
  return bad_url("a parameter that this backend does not have");
}

Result<std::uint64_t> parse_number(std::string_view what, std::string_view text,
                                   std::uint64_t limit) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  if (status == std::errc() && stop == end && number <= limit) return number;
  return bad_url(fmt::format("{} is not a number up to {}", what, limit));
}

// The backends by scheme. TQCACHE_STORE_REDIS and TQCACHE_STORE_S3 select those that are built in.

namespace {

Result<std::unique_ptr<Backend>> open_memory(StoreUrl url, const BackendOptions& options) {
  TQC_TRY(check_all_taken(url));
  if (url.host.empty() && url.path.empty()) return make_memory_backend(options);
  return invalid("store URL: memory: has no name");
}

using Open = Result<std::unique_ptr<Backend>> (*)(StoreUrl url, const BackendOptions& options);

struct Scheme {
  std::string_view scheme;
  std::string_view backend;
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
    if (known.open != nullptr) {
      TQC_TRY_ASSIGN(auto backend, known.open(std::move(url), options));
      if (options.keys.empty()) return backend;
      return encrypted_backend(std::move(backend), options.keys, options);
    }
    return unsupported("store URL: " + url.scheme + ": is not built into this tqcache");
  }
  if (url.scheme == "rediss") {
    return unsupported(
        "store URL: rediss: Redis is reached without TLS: use redis+unix, a private network, or "
        "redis to a stunnel on this machine");
  }
  return invalid("store URL: unknown scheme " + in_quotes(url.scheme) +
                 ": dir, redis, redis+unix, s3, memory");
}

std::vector<std::string_view> schemes() {
  std::vector<std::string_view> backends;
  for (const Scheme& known : kSchemes) {
    const bool is_listed = !backends.empty() && backends.back() == known.backend;
    if (known.open != nullptr && !is_listed) backends.push_back(known.backend);
  }
  return backends;
}

}  // namespace tqcache::store
