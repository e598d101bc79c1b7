#include "tqcache/serve/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace tqcache::serve {
namespace {

char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

// Visible characters, spaces, tabs and bytes above ASCII.
bool is_value_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Whether a list of words separated by commas has this one.
bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (same_word(trimmed(list.substr(0, comma)), word)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// At most 18 digits, so that it cannot overflow.
std::optional<std::uint64_t> parse_length(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

std::optional<Refusal> parse_request_line(std::string_view line, const HeadLimits& limits,
                                          Head& head) {
  Request& request = head.request;
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Refusal{400, "the request line is not METHOD TARGET VERSION"};
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method) || method.size() > 32) return Refusal{400, "the method is not a word"};
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Refusal{505, "only HTTP/1.1 and HTTP/1.0 are spoken"};
  }
  if (target.size() > limits.max_target_bytes) return Refusal{414, "the target is too long"};
  const bool has_bad_char = std::any_of(target.begin(), target.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte <= 0x20 || byte >= 0x7f || c == '#';
  });
  if (!target.starts_with('/') || has_bad_char) {
    return Refusal{400, "the target does not begin with / or has characters that are not allowed"};
  }
  request.method = method;
  request.target = target;
  const std::size_t mark = std::min(target.find('?'), target.size());
  request.path = target.substr(0, mark);
  request.query = target.substr(std::min(mark + 1, target.size()));
  request.minor_version = version.back() - '0';
  return std::nullopt;
}

std::optional<Refusal> parse_header_line(std::string_view line, Head& head) {
  if (line.front() == ' ' || line.front() == '\t') return Refusal{400, "a header line is folded"};
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Refusal{400, "a header line has no colon"};
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return Refusal{400, "the name of a header is not a word"};
  head.request.headers.push_back({std::string(name), std::string(trimmed(line.substr(colon + 1)))});
  return std::nullopt;
}

// The headers that decide where the body ends, each of which may appear once.
std::optional<Refusal> take_framing(Head& head) {
  const Request& request = head.request;
  int n_hosts = 0;
  for (const auto& [name, value] : request.headers) {
    if (same_word(name, "Host")) {
      if (++n_hosts > 1) return Refusal{400, "more than one Host"};
    } else if (same_word(name, "Content-Length")) {
      if (head.content_length) return Refusal{400, "more than one Content-Length"};
      head.content_length = parse_length(value);
      if (!head.content_length) return Refusal{400, "Content-Length is not a number"};
    } else if (same_word(name, "Transfer-Encoding")) {
      if (head.is_chunked) return Refusal{400, "more than one Transfer-Encoding"};
      if (!same_word(value, "chunked")) {
        return Refusal{501, "the only Transfer-Encoding that is understood is chunked"};
      }
      head.is_chunked = true;
    } else if (same_word(name, "Expect")) {
      if (!same_word(value, "100-continue")) return Refusal{417, "Expect is not 100-continue"};
      head.expects_continue = request.minor_version > 0;
    } else if (same_word(name, "Connection")) {
      if (has_word(value, "close")) head.keep_alive = false;
    }
  }
  if (head.is_chunked && head.content_length) {
    return Refusal{400, "Content-Length together with Transfer-Encoding"};
  }
  if (head.is_chunked && request.minor_version == 0) {
    return Refusal{400, "Transfer-Encoding in HTTP/1.0"};
  }
  if (n_hosts == 0 && request.minor_version > 0) return Refusal{400, "no Host"};
  if (request.minor_version == 0) head.keep_alive = false;
  return std::nullopt;
}

}  // namespace

bool is_well_formed(const Header& header) {
  return is_token(header.name) && std::ranges::all_of(header.value, is_value_char);
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower_case(x) == lower_case(y); });
}

std::string_view Request::header(std::string_view name) const {
  for (const Header& header : headers) {
    if (same_word(header.name, name)) return header.value;
  }
  return {};
}

Response Response::json(int status, std::string text) {
  return {.status = status,
          .headers = {{"Content-Type", "application/json; charset=utf-8"}},
          .body = std::move(text)};
}

Response Response::text(int status, std::string text) {
  return {.status = status,
          .headers = {{"Content-Type", "text/plain; charset=utf-8"}},
          .body = std::move(text)};
}

Response Response::error(int status, std::string_view type, std::string_view message) {
  const nlohmann::ordered_json object = {
      {"error", {{"message", message}, {"type", type}, {"code", status}}}};
  return json(status, object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string_view reason_of(int status) {
  constexpr std::array<std::pair<int, std::string_view>, 28> kReasons = {
      {{200, "OK"},
       {201, "Created"},
       {202, "Accepted"},
       {204, "No Content"},
       {206, "Partial Content"},
       {301, "Moved Permanently"},
       {302, "Found"},
       {304, "Not Modified"},
       {307, "Temporary Redirect"},
       {400, "Bad Request"},
       {401, "Unauthorized"},
       {403, "Forbidden"},
       {404, "Not Found"},
       {405, "Method Not Allowed"},
       {408, "Request Timeout"},
       {411, "Length Required"},
       {413, "Content Too Large"},
       {414, "URI Too Long"},
       {417, "Expectation Failed"},
       {429, "Too Many Requests"},
       {431, "Request Header Fields Too Large"},
       {499, "Client Closed Request"},
       {500, "Internal Server Error"},
       {501, "Not Implemented"},
       {502, "Bad Gateway"},
       {503, "Service Unavailable"},
       {504, "Gateway Timeout"},
       {505, "HTTP Version Not Supported"}}};
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "Unknown";
}

std::optional<Refusal> parse_head(std::string_view text, const HeadLimits& limits, Head& head) {
  if (text.size() > limits.max_bytes) return Refusal{431, "the head is too large"};
  bool is_first = true;
  while (true) {
    const std::size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return Refusal{400, "the head does not end"};
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (line.empty() && !is_first) break;
    if (!std::all_of(line.begin(), line.end(), is_value_char)) {
      return Refusal{400, "the head has a control character or a line end other than CR LF"};
    }
    if (head.request.headers.size() == limits.max_headers) {
      return Refusal{431, "the head has too many headers"};
    }
    const std::optional<Refusal> refusal =
        is_first ? parse_request_line(line, limits, head) : parse_header_line(line, head);
    if (refusal) return refusal;
    is_first = false;
  }
  if (!text.empty()) return Refusal{400, "bytes behind the head"};
  return take_framing(head);
}

void ChunkDecoder::refuse(int status, std::string message) {
  refusal_ = Refusal{status, std::move(message)};
}

std::size_t ChunkDecoder::feed(std::string_view bytes, std::string& body) {
  std::size_t i = 0;
  const auto expect = [&](char wanted, State next) {
    if (bytes[i] != wanted) return refuse(400, "a chunk does not end with CR LF");
    i += 1;
    state_ = next;
  };
  while (i < bytes.size() && !refusal_ && state_ != State::kDone) {
    switch (state_) {
      case State::kSize: {
        const char c = lower_case(bytes[i]);
        if (c == '\r' && n_digits_ > 0) {
          state_ = State::kSizeEnd;
          i += 1;
          break;
        }
        const bool is_digit = c >= '0' && c <= '9';
        if ((!is_digit && !(c >= 'a' && c <= 'f')) || n_digits_ == 15) {
          refuse(400, "the size of a chunk is not a hexadecimal number");
          break;
        }
        left_ = left_ * 16 + static_cast<std::uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
        n_digits_ += 1;
        i += 1;
        break;
      }
      case State::kSizeEnd:
        expect('\n', left_ == 0 ? State::kLastCr : State::kData);
        if (left_ > max_bytes_ - n_bytes_) refuse(413, "the body is too large");
        break;
      case State::kData: {
        const std::size_t n = std::min<std::size_t>(bytes.size() - i, left_);
        body.append(bytes.substr(i, n));
        i += n;
        n_bytes_ += n;
        left_ -= n;
        if (left_ == 0) state_ = State::kDataCr;
        break;
      }
      case State::kDataCr:
        expect('\r', State::kDataLf);
        break;
      case State::kDataLf:
        expect('\n', State::kSize);
        n_digits_ = 0;
        break;
      case State::kLastCr:
        expect('\r', State::kLastLf);
        break;
      case State::kLastLf:
        expect('\n', State::kDone);
        break;
      case State::kDone:
        break;
    }
  }
  return i;
}

}  // namespace tqcache::serve
