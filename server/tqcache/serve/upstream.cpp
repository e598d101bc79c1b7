#include "tqcache/serve/upstream.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <utility>

#include "tqcache/base/system.h"
#include "tqcache/serve/llama_request.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{50};
constexpr std::size_t kMaxHeadBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxIdleConnections = 64;
constexpr std::uint64_t kMaxLength = std::uint64_t{1} << 60;  // of a body

struct CloseEasy {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct CloseMulti {
  void operator()(CURLM* handle) const { curl_multi_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// A connection to the server, used by one request at a time.
struct Channel {
  std::unique_ptr<CURLM, CloseMulti> multi{curl_multi_init()};
  std::unique_ptr<CURL, CloseEasy> easy{curl_easy_init()};
};

std::string_view trimmed_value(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  return text;
}

class CurlUpstream;

class CurlAnswer : public UpstreamAnswer {
 public:
  CurlAnswer(CurlUpstream& upstream, std::unique_ptr<Channel> channel, Client* client)
      : upstream_(upstream), channel_(std::move(channel)), client_(client) {}
  ~CurlAnswer() override;

  Result<void> start(std::string_view method, const std::string& url,
                     const std::vector<Header>& request_headers, std::string body);
  Result<std::string> read() override;

 private:
  static std::size_t take_header(char* bytes, std::size_t size, std::size_t n, void* self);
  static std::size_t take_body(char* bytes, std::size_t size, std::size_t n, void* self);
  void header_line(std::string_view line);
  // Works until something has arrived.
  Result<void> wait(bool for_head);
  Result<void> take_length();
  Error failure(CURLcode code) const;

  CurlUpstream& upstream_;
  std::unique_ptr<Channel> channel_;
  Client* client_;
  std::unique_ptr<curl_slist, FreeList> list_;
  std::string request_body_;
  std::string arrived_;
  std::size_t head_bytes_ = 0;
  bool has_head_ = false;
  bool is_added_ = false;
  bool is_done_ = false;
  CURLcode code_ = CURLE_OK;
  Clock::time_point last_byte_ = Clock::now();
  std::array<char, CURL_ERROR_SIZE> message_{};
};

class CurlUpstream : public Upstream {
 public:
  CurlUpstream(UpstreamOptions options, std::string prefix)
      : Upstream(std::move(options), std::move(prefix)) {}

  const UpstreamOptions& options() const { return options_; }
  Clock::time_point calls_end() const { return calls_end_; }

  Result<std::unique_ptr<UpstreamAnswer>> send(std::string_view method, std::string_view target,
                                               const std::vector<Header>& headers, std::string body,
                                               Client* client) override {
    auto answer = std::make_unique<CurlAnswer>(*this, take_channel(), client);
    TQC_TRY(answer->start(method, options_.url + std::string(target), headers, std::move(body)));
    return std::unique_ptr<UpstreamAnswer>(std::move(answer));
  }

  std::unique_ptr<Channel> take_channel() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Channel>();
    std::unique_ptr<Channel> channel = std::move(idle_.back());
    idle_.pop_back();
    return channel;
  }

  void give_back(std::unique_ptr<Channel> channel) {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdleConnections) idle_.push_back(std::move(channel));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Channel>> idle_;
};

CurlAnswer::~CurlAnswer() {
  if (channel_ == nullptr) return;
  if (is_added_) curl_multi_remove_handle(channel_->multi.get(), channel_->easy.get());
  // A connection in the middle of an answer is closed by libcurl when its handle is removed.
  curl_easy_reset(channel_->easy.get());
  upstream_.give_back(std::move(channel_));
}

std::size_t CurlAnswer::take_header(char* bytes, std::size_t size, std::size_t n, void* self) {
  auto& answer = *static_cast<CurlAnswer*>(self);
  answer.head_bytes_ += size * n;
  if (answer.head_bytes_ > kMaxHeadBytes) return 0;
  answer.header_line({bytes, size * n});
  if (answer.status > 999) return 0;  // libcurl takes any number; ends the transfer
  return size * n;
}

std::size_t CurlAnswer::take_body(char* bytes, std::size_t size, std::size_t n, void* self) {
  auto& answer = *static_cast<CurlAnswer*>(self);
  answer.arrived_.append(bytes, size * n);
  return size * n;
}

void CurlAnswer::header_line(std::string_view line) {
  if (has_head_) return;  // a trailer
  if (line.starts_with("HTTP/")) {
    headers.clear();
    length.reset();
    return;
  }
  if (trimmed_value(line).empty()) {
    long code = 0;
    curl_easy_getinfo(channel_->easy.get(), CURLINFO_RESPONSE_CODE, &code);
    status = static_cast<int>(code);
    has_head_ = code >= 200 && code <= 999;
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  Header header = {std::string(line.substr(0, colon)),
                   std::string(trimmed_value(line.substr(colon + 1)))};
  if (is_well_formed(header)) headers.push_back(std::move(header));
}

Error CurlAnswer::failure(CURLcode code) const {
  const std::string_view text = message_[0] != '\0' ? message_.data() : curl_easy_strerror(code);
  return {ErrorCode::kIo, fmt::format("{}: {}", upstream_.options().url, text)};
}

Result<void> CurlAnswer::start(std::string_view method, const std::string& url,
                               const std::vector<Header>& request_headers, std::string body) {
  CURL* const easy = channel_->easy.get();
  if (easy == nullptr || channel_->multi == nullptr) {
    return Error{ErrorCode::kIo, "libcurl has no memory"};
  }
  request_body_ = std::move(body);
  const std::string method_text(method);
  curl_slist* list = nullptr;
  bool has_type = false, has_accept = false, has_agent = false;
  const auto append = [&](const std::string& line) {
    static_cast<void>(list_.release());
    list = curl_slist_append(list, line.c_str());
    list_.reset(list);
  };
  for (const auto& [name, value] : request_headers) {
    has_type = has_type || same_word(name, "Content-Type");
    has_accept = has_accept || same_word(name, "Accept");
    has_agent = has_agent || same_word(name, "User-Agent");
    // libcurl removes a header that has no value, unless it is written with a semicolon.
    append(value.empty() ? name + ";" : name + ": " + value);
  }
  append("Expect:");
  if (!has_type) append("Content-Type:");
  if (!has_accept) append("Accept:");
  if (!has_agent) append("User-Agent:");
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  // With a variable libcurl finds certificates by itself. Otherwise it knows one system's place.
  if (std::getenv("SSL_CERT_FILE") == nullptr && std::getenv("SSL_CERT_DIR") == nullptr) {
    const std::string file = certificate_file();
    if (!file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, file.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(upstream_.options().connect_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 64L << 10);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, message_.data());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  if (method_text == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (!request_body_.empty() || method_text == "POST") {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request_body_.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request_body_.size()));
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method_text.c_str());
  } else {
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method_text.c_str());
  }
  if (curl_multi_add_handle(channel_->multi.get(), easy) != CURLM_OK) {
    return Error{ErrorCode::kIo, "libcurl cannot begin a request"};
  }
  is_added_ = true;
  TQC_TRY(wait(true));
  return take_length();
}

// The length that is passed on. An answer that has two is refused: the next server could read it
// as two answers.
Result<void> CurlAnswer::take_length() {
  bool is_chunked = false;
  for (const auto& [name, value] : headers) {
    if (same_word(name, "Transfer-Encoding")) is_chunked = true;
    if (!same_word(name, "Content-Length")) continue;
    std::uint64_t n = 0;
    const auto end = value.data() + value.size();
    const auto [stop, problem] = std::from_chars(value.data(), end, n);
    if (problem != std::errc() || stop != end || n > kMaxLength || (length && *length != n)) {
      return failure(CURLE_WEIRD_SERVER_REPLY);
    }
    length = n;
  }
  if (is_chunked && length) return failure(CURLE_WEIRD_SERVER_REPLY);
  return {};
}

Result<void> CurlAnswer::wait(bool for_head) {
  CURLM* const multi = channel_->multi.get();
  while (true) {
    int n_running = 0;
    const std::size_t n_before = arrived_.size();
    if (curl_multi_perform(multi, &n_running) != CURLM_OK) return failure(CURLE_RECV_ERROR);
    if (arrived_.size() != n_before) last_byte_ = Clock::now();
    int n_left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &n_left)) {
      if (message->msg != CURLMSG_DONE) continue;
      is_done_ = true;
      code_ = message->data.result;
    }
    if (for_head ? has_head_ : !arrived_.empty()) return {};
    if (is_done_) {
      if (code_ != CURLE_OK) return failure(code_);
      if (for_head) return failure(CURLE_GOT_NOTHING);
      return {};
    }
    if (client_ != nullptr ? client_->is_gone() : Clock::now() > upstream_.calls_end()) {
      return interrupted_error();
    }
    if (Clock::now() - last_byte_ > upstream_.options().idle_timeout) {
      return failure(CURLE_OPERATION_TIMEDOUT);
    }
    curl_multi_poll(multi, nullptr, 0, static_cast<int>(kLookInterval.count()), nullptr);
  }
}

Result<std::string> CurlAnswer::read() {
  if (arrived_.empty()) {
    if (is_done_) {
      if (code_ != CURLE_OK) return failure(code_);
      return std::string();
    }
    TQC_TRY(wait(false));
  }
  return std::exchange(arrived_, {});
}

}  // namespace

Result<std::unique_ptr<Upstream>> Upstream::open(const UpstreamOptions& options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return Error{ErrorCode::kIo, "libcurl cannot be started"};
  std::string_view rest = options.url;
  while (rest.ends_with('/')) rest.remove_suffix(1);
  UpstreamOptions checked = options;
  Target prefix;
  const std::size_t scheme = rest.find("://");
  const std::size_t slash = scheme == std::string_view::npos ? scheme : rest.find('/', scheme + 3);
  if (slash != std::string_view::npos) {
    const auto refusal = read_target(rest.substr(slash), prefix);
    if (refusal || prefix.path != rest.substr(slash)) {
      return invalid(fmt::format("{}: the path is not a prefix such as /llama", options.url));
    }
    rest = rest.substr(0, slash);
  }
  checked.url = rest;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else {
    rest = {};
  }
  const bool is_host = !rest.empty() && std::all_of(rest.begin(), rest.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view(".-_:[]").find(c) != std::string_view::npos;
  });
  if (!is_host) return invalid(options.url + ": not a URL such as http://127.0.0.1:8080");
  return std::unique_ptr<Upstream>(
      std::make_unique<CurlUpstream>(std::move(checked), std::move(prefix.path)));
}

Result<Upstream::Reply> Upstream::call(std::string_view method, std::string_view target,
                                       std::string body, const std::vector<Header>& headers,
                                       Client* client, std::uint64_t max_bytes) {
  TQC_TRY_ASSIGN(const std::unique_ptr<UpstreamAnswer> answer,
                 send(method, target, headers, std::move(body), client));
  const auto start = Clock::now();
  Reply reply{.status = answer->status, .body = {}};
  while (true) {
    TQC_TRY_ASSIGN(const std::string piece, answer->read());
    if (piece.empty()) return reply;
    reply.body += piece;
    if (client == nullptr && Clock::now() > calls_end_.load()) return interrupted_error();
    if (reply.body.size() > max_bytes) {
      return too_large(fmt::format("{}: an answer of more than {} bytes", target, max_bytes));
    }
    if (Clock::now() - start >
        options_.idle_timeout + std::chrono::seconds(reply.body.size() >> 10)) {
      return Error{ErrorCode::kIo, fmt::format("{}: the answer timed out", target)};
    }
  }
}

std::vector<Header> end_to_end_headers(const std::vector<Header>& headers) {
  constexpr std::array<std::string_view, 13> kOfOneConnection = {"Connection",
                                                                 "Keep-Alive",
                                                                 "Proxy-Authenticate",
                                                                 "Proxy-Authorization",
                                                                 "Proxy-Connection",
                                                                 "TE",
                                                                 "Trailer",
                                                                 "Transfer-Encoding",
                                                                 "Upgrade",
                                                                 "Content-Length",
                                                                 "Host",
                                                                 "Expect",
                                                                 "HTTP2-Settings"};
  std::vector<std::string> named;
  for (const auto& [name, value] : headers) {
    if (!same_word(name, "Connection")) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      named.emplace_back(trimmed_value(rest.substr(0, comma)));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  const auto is_kept = [&](const Header& header) {
    const auto is_it = [&](std::string_view name) { return same_word(name, header.name); };
    return std::none_of(kOfOneConnection.begin(), kOfOneConnection.end(), is_it) &&
           std::none_of(named.begin(), named.end(), is_it);
  };
  std::vector<Header> kept;
  std::copy_if(headers.begin(), headers.end(), std::back_inserter(kept), is_kept);
  return kept;
}

Response upstream_failure(const Error& error) {
  if (error.code == ErrorCode::kInterrupted) {
    return Response::error(499, "client_closed_request", "the client closed its connection");
  }
  const bool is_late = error.message.find("imeout") != std::string::npos ||
                       error.message.find("imed out") != std::string::npos;
  return Response::error(is_late ? 504 : 502, "upstream_error",
                         is_late ? "the upstream server does not answer in time"
                                 : "the upstream server cannot be reached or broke off");
}

Response forward(Upstream& upstream, const Request& request, std::string body, Client& client) {
  auto sent = upstream.send(request.method, request.target, end_to_end_headers(request.headers),
                            std::move(body), &client);
  if (!sent) return upstream_failure(sent.error());
  const std::shared_ptr<UpstreamAnswer> answer = std::move(*sent);
  Response response;
  response.status = answer->status;
  response.headers = end_to_end_headers(answer->headers);
  response.stream_length = answer->length;
  if (answer->status == 204 || answer->status == 304) return response;
  response.stream = [answer, is_head = request.method == "HEAD"](Sink& sink) {
    std::uint64_t n_bytes = 0;
    while (true) {
      const Result<std::string> piece = answer->read();
      if (!piece) return false;
      if (piece->empty()) return is_head || n_bytes == answer->length.value_or(n_bytes);
      n_bytes += piece->size();
      if (n_bytes > answer->length.value_or(n_bytes)) return false;
      if (!sink.write(*piece)) return false;
    }
  };
  return response;
}

}  // namespace tqcache::serve
