#include "tqcache/serve/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How often waiting connections look whether the server is being stopped.
constexpr milliseconds kLookInterval{100};

// State that all connections of a server share.
struct Shared {
  HttpOptions options;
  Metrics& metrics;
  Log& log;
  std::atomic<bool> is_stopping = false;  // no new requests
  std::atomic<bool> is_cut_off = false;   // running requests end, too
  std::atomic<std::uint64_t> buffered_bytes = 0;
  std::atomic<std::size_t> n_connections = 0;
  std::mutex keys_mutex;
};

// Bytes of a body that count against max_buffered_bytes.
class BufferedBytes {
 public:
  explicit BufferedBytes(Shared& shared) : shared_(shared) {}
  ~BufferedBytes() { shared_.buffered_bytes -= n_bytes_; }
  BufferedBytes(const BufferedBytes&) = delete;
  BufferedBytes& operator=(const BufferedBytes&) = delete;

  // Returns false if that is too much.
  bool grow_to(std::uint64_t n_bytes) {
    if (n_bytes <= n_bytes_) return true;
    const std::uint64_t more = n_bytes - n_bytes_;
    if (shared_.buffered_bytes.fetch_add(more) + more > shared_.options.max_buffered_bytes) {
      shared_.buffered_bytes -= more;
      return false;
    }
    n_bytes_ = n_bytes;
    return true;
  }

 private:
  Shared& shared_;
  std::uint64_t n_bytes_ = 0;
};

bool equal_keys(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// The page for people. Browsers ask for a password there, which they then send by themselves, so it
// opens nothing else: other pages could make a browser send requests.
bool is_page(const Request& request) {
  return request.method == "GET" && (request.path == "/" || request.path == kPagePath);
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

std::string address_of(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = &reinterpret_cast<sockaddr_in*>(&address)->sin_addr;
  if (address.ss_family == AF_INET6) {
    bytes = &reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr;
  }
  if (::inet_ntop(address.ss_family, bytes, text, sizeof(text)) == nullptr) return "unknown";
  return text;
}

// The socket of one client.
class Connection : public Client {
 public:
  Connection(int fd, Shared& shared) : fd_(fd), shared_(shared), remote_(address_of(fd)) {}

  enum class Outcome { kRequest, kRefused, kClosed };

  // Reads the next request. A refusal is in `refusal`; kClosed: there is none.
  Outcome read_request(Head& head, BufferedBytes& buffered, Refusal& refusal) {
    std::optional<Refusal> refused;
    std::size_t head_end = std::string::npos;
    if (!wait_for_request()) return Outcome::kClosed;
    n_sent_ = 0;
    waited_ = {};
    const auto deadline = Clock::now() + shared_.options.head_timeout;
    std::size_t searched = 0;
    while ((head_end = input_.find("\r\n\r\n", searched)) == std::string::npos) {
      if (input_.size() > shared_.options.head.max_bytes) {
        refusal = {431, "the head is too large"};
        return Outcome::kRefused;
      }
      searched = input_.size() < 3 ? 0 : input_.size() - 3;
      const ReadResult read = read_more(deadline);
      if (read == ReadResult::kTimeout) {
        refusal = {408, "the head did not arrive in time"};
        return Outcome::kRefused;
      }
      if (read == ReadResult::kEnd) return Outcome::kClosed;
    }
    const std::string text = input_.substr(0, head_end + 4);
    input_.erase(0, head_end + 4);
    refused = parse_head(text, shared_.options.head, head);
    if (!refused) refused = check_key(head.request);
    if (!refused) refused = check_length(head);
    if (refused) {
      refusal = *refused;
      return Outcome::kRefused;
    }
    head.request.remote = remote_;
    if (head.expects_continue && input_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
    return read_body(head, buffered, refusal);
  }

  bool is_gone() override {
    if (shared_.is_cut_off) return true;
    char byte = 0;
    const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  // False: the client is gone, or too slow.
  bool send(std::string_view bytes) {
    auto deadline = Clock::now() + shared_.options.write_timeout;
    while (!bytes.empty()) {
      if (shared_.is_cut_off) return false;
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(n));
        n_sent_ += static_cast<std::uint64_t>(n);
        deadline = Clock::now() + shared_.options.write_timeout;
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
      const auto now = Clock::now();
      if (now > deadline || waited_ > shared_.options.write_timeout + time_for(n_sent_)) {
        return false;
      }
      pollfd ready = {.fd = fd_, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, static_cast<int>(kLookInterval.count()));
      waited_ += Clock::now() - now;
    }
    return true;
  }

  // Answers a request that cpp-httplib does not get to see, and lets the client read the answer: a
  // socket that is closed with unread bytes would drop it.
  void refuse(const Refusal& refusal) {
    const Response response =
        Response::error(refusal.status, "invalid_request_error", refusal.message);
    const std::string challenge =
        refusal.challenge.empty() ? "" : "WWW-Authenticate: " + refusal.challenge + "\r\n";
    const bool sent = send(fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n"
        "{}Connection: close\r\n\r\n{}",
        refusal.status, reason_of(refusal.status), response.body.size(), challenge, response.body));
    if (!sent || ::shutdown(fd_, SHUT_WR) != 0) return;
    const auto deadline = Clock::now() + milliseconds(2000);
    std::uint64_t n_dropped = 0;
    input_.clear();
    while (n_dropped < (std::uint64_t{256} << 20) &&
           read_more(std::min(deadline, Clock::now() + milliseconds(500))) == ReadResult::kBytes) {
      n_dropped += input_.size();
      input_.clear();
    }
  }

  int fd() const { return fd_; }
  const std::string& remote() const { return remote_; }

 private:
  enum class ReadResult { kBytes, kEnd, kTimeout };

  ReadResult read_more(Clock::time_point deadline) {
    while (true) {
      if (shared_.is_cut_off) return ReadResult::kEnd;
      char bytes[std::size_t{16} << 10];
      const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (n > 0) {
        input_.append(bytes, static_cast<std::size_t>(n));
        return ReadResult::kBytes;
      }
      if (n == 0) return ReadResult::kEnd;
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return ReadResult::kEnd;
      const auto now = Clock::now();
      if (now >= deadline) return ReadResult::kTimeout;
      const auto left = std::chrono::ceil<milliseconds>(deadline - now);
      pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
      ::poll(&ready, 1, static_cast<int>(std::min(left, kLookInterval).count()));
    }
  }

  // Waits for the first byte of a request. Returns false if there is none.
  bool wait_for_request() {
    const auto deadline = Clock::now() + shared_.options.idle_timeout;
    while (input_.empty()) {
      if (shared_.is_stopping || Clock::now() > deadline) return false;
      if (read_more(Clock::now() + kLookInterval) == ReadResult::kEnd) return false;
      // Empty lines before a request are allowed, and some clients send one.
      while (input_.starts_with("\r\n")) input_.erase(0, 2);
    }
    return true;
  }

  std::optional<Refusal> check_key(Request& request) {
    request.api_key = api_key_of(request);
    const std::vector<std::string>& open = shared_.options.open_paths;
    if (std::find(open.begin(), open.end(), request.path) != open.end()) return std::nullopt;
    const std::lock_guard lock(shared_.keys_mutex);
    if (shared_.options.api_keys.empty()) return std::nullopt;
    bool is_known = false;
    for (const std::string& key : shared_.options.api_keys) {
      is_known = equal_keys(key, request.api_key) || is_known;
    }
    if (is_known) return std::nullopt;
    return Refusal{401, "a valid API key is needed: Authorization: Bearer KEY",
                   is_page(request) ? "Basic realm=\"tqcache\", charset=\"UTF-8\"" : "Bearer"};
  }

  std::optional<Refusal> check_length(const Head& head) const {
    if (head.content_length.value_or(0) <= shared_.options.max_body_bytes) return std::nullopt;
    return Refusal{413, fmt::format("the body has more than {} bytes, the limit of this server",
                                    shared_.options.max_body_bytes)};
  }

  Outcome read_body(Head& head, BufferedBytes& buffered, Refusal& refusal) {
    const auto start = Clock::now();
    ChunkDecoder chunks(shared_.options.max_body_bytes);
    std::string& body = head.request.body;
    const std::uint64_t length = head.content_length.value_or(0);
    while (head.is_chunked ? !chunks.is_complete() : body.size() < length) {
      if (input_.empty()) {
        const auto latest = std::min(Clock::now(), start + time_for(body.size()));
        const ReadResult read = read_more(latest + shared_.options.read_timeout);
        if (read == ReadResult::kEnd) return Outcome::kClosed;
        if (read == ReadResult::kTimeout) {
          refusal = {408, "the body did not arrive in time"};
          return Outcome::kRefused;
        }
      }
      if (!buffered.grow_to(body.size() + input_.size())) {
        refusal = {503, "too many bytes of requests are in memory"};
        return Outcome::kRefused;
      }
      std::size_t n_used = 0;
      if (head.is_chunked) {
        n_used = chunks.feed(input_, body);
        if (chunks.refusal()) {
          refusal = *chunks.refusal();
          return Outcome::kRefused;
        }
      } else {
        n_used = std::min<std::size_t>(input_.size(), length - body.size());
        body.append(input_, 0, n_used);
      }
      input_.erase(0, n_used);
    }
    return Outcome::kRequest;
  }

  // In which a client that is not too slow sends or takes so many bytes.
  milliseconds time_for(std::uint64_t n_bytes) const {
    return milliseconds(1000 * n_bytes / shared_.options.least_bytes_per_second);
  }

  int fd_;
  Shared& shared_;
  std::string remote_;
  std::string input_;  // read from the socket, not yet used
  // Of this answer.
  std::uint64_t n_sent_ = 0;
  Clock::duration waited_{};  // for the client to take bytes
};

// What cpp-httplib sees of a connection: a head that this file wrote, and the socket to write to.
class PreparedStream : public httplib::Stream {
 public:
  PreparedStream(std::string head, Connection& connection)
      : head_(std::move(head)), connection_(connection) {}

  bool is_readable() const override { return n_read_ < head_.size(); }
  bool is_writable() const override { return !connection_.is_gone(); }
  ssize_t read(char* bytes, std::size_t size) override {
    const std::size_t n = std::min(size, head_.size() - n_read_);
    std::copy_n(head_.data() + n_read_, n, bytes);
    n_read_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* bytes, std::size_t size) override {
    return connection_.send({bytes, size}) ? static_cast<ssize_t>(size) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = connection_.remote();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return connection_.fd(); }

 private:
  std::string head_;
  std::size_t n_read_ = 0;
  Connection& connection_;
};

class ProviderSink : public Sink {
 public:
  explicit ProviderSink(httplib::DataSink& sink) : sink_(sink) {}
  bool write(std::string_view bytes) override {
    if (!bytes.empty()) is_good_ = is_good_ && sink_.write(bytes.data(), bytes.size());
    return is_good_;
  }
  bool is_good() const { return is_good_; }

 private:
  httplib::DataSink& sink_;
  bool is_good_ = true;
};

// A stream whose failure must not look like a complete answer.
void set_stream(httplib::Response& to, Response& from, const std::string& type, bool may_chunk) {
  if (from.stream_length.value_or(1) == 0) return to.set_content("", type);
  if (from.stream_length) {
    // cpp-httplib asks again when bytes are missing.
    const auto with_length = [stream = std::move(from.stream), was_called = false](
                                 std::size_t, std::size_t, httplib::DataSink& sink) mutable {
      if (std::exchange(was_called, true)) return false;
      ProviderSink body(sink);
      return stream(body) && body.is_good();
    };
    to.set_content_provider(*from.stream_length, type, with_length);
    return;
  }
  const auto without_length = [stream = std::move(from.stream)](std::size_t,
                                                                httplib::DataSink& sink) {
    ProviderSink body(sink);
    if (!stream(body) || !body.is_good()) return false;
    sink.done();
    return true;
  };
  if (may_chunk) {
    to.set_chunked_content_provider(type, without_length);
  } else {
    to.set_content_provider(type, without_length);
  }
}

struct Route {
  std::string method;
  std::string path;
  HttpServer::Handler handler;
};

// The request that this thread hands to cpp-httplib.
struct Current {
  const Request* request = nullptr;
  Connection* connection = nullptr;
};
thread_local Current current_request;

}  // namespace

class HttpServer::Impl : private httplib::Server {
 public:
  Impl(HttpOptions options, Metrics& metrics, Log& log)
      : shared_{.options = std::move(options), .metrics = metrics, .log = log, .keys_mutex = {}} {
    using Type = Metrics::Type;
    metrics.define("tqcache_requests_total", Type::kCounter, "Requests answered.", false);
    metrics.define("tqcache_requests_refused_total", Type::kCounter,
                   "Requests refused before they were handled.", false);
    metrics.define("tqcache_connections", Type::kGauge, "Open connections of clients.");
    metrics.define("tqcache_requests_running", Type::kGauge, "Requests being answered.");
    set_tcp_nodelay(true);
    // What the header Keep-Alive says.
    set_keep_alive_timeout(
        std::chrono::floor<std::chrono::seconds>(shared_.options.idle_timeout).count());
    set_keep_alive_max_count(1'000'000);
    // The default is SO_REUSEPORT, with which two servers can share a port without noticing.
    set_socket_options([](socket_t fd) {
      const int yes = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    // Some more threads than connections, so that there is always one that can say 503.
    const std::size_t n_threads = shared_.options.max_connections + 4;
    new_task_queue = [n_threads] { return new httplib::ThreadPool(n_threads); };
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      answer(response);
      return HandlerResponse::Handled;
    });
    set_exception_handler(
        [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          shared_.log.error("exception", {});
          count_answer(500);
          response.status = 500;
          response.set_content(Response::error(500, "server_error", "internal error").body,
                               "application/json; charset=utf-8");
        });
  }

  ~Impl() override { stop_within(milliseconds(0)); }

  Result<void> start() {
    TQC_TRY_ASSIGN(const HostPort at, parse_host_port(shared_.options.address));
    const auto cannot_bind = [&] {
      return Error{ErrorCode::kIo, fmt::format("cannot listen on {}: {}", shared_.options.address,
                                               std::strerror(errno == 0 ? EADDRNOTAVAIL : errno))};
    };
    errno = 0;
    if (at.port == 0) {
      port_ = bind_to_any_port(at.host);
      if (port_ < 0) return cannot_bind();
    } else {
      if (!bind_to_port(at.host, at.port)) return cannot_bind();
      port_ = at.port;
    }
    // cpp-httplib's backlog of 5 is too short for clients that come all at once.
    if (::listen(svr_sock_, 1024) != 0) return cannot_bind();
    // Signals are for the thread that waits for them: accept() would end with EINTR.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { listen_until_stopped(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

  void stop_within(milliseconds grace) {
    if (!thread_.joinable()) return;
    shared_.is_stopping = true;
    // stop() does nothing before the listening has begun.
    while (!is_running() && !has_ended_) std::this_thread::sleep_for(milliseconds(1));
    stop();
    {
      std::unique_lock lock(mutex_);
      ended_.wait_for(lock, grace, [this] { return has_ended_.load(); });
    }
    shared_.is_cut_off = true;
    thread_.join();
  }

  void set_keys(std::vector<std::string> keys) {
    const std::lock_guard lock(shared_.keys_mutex);
    shared_.options.api_keys = std::move(keys);
  }

  int port_ = 0;
  std::vector<Route> routes_;
  HttpServer::Handler fallback_;
  std::function<Response()> health_;

 private:
  void listen_until_stopped() {
    if (!listen_after_bind() && !shared_.is_stopping) {
      shared_.log.error("listen", {{"message", "the listening socket failed"}});
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    ended_.notify_all();
  }

  bool process_and_close_socket(socket_t fd) override {
    Connection connection(fd, shared_);
    const std::size_t n = ++shared_.n_connections;
    shared_.metrics.set("tqcache_connections", static_cast<double>(n));
    if (n > shared_.options.max_connections) {
      refuse(connection, {503, "too many connections"});
    } else {
      try {
        while (serve_one(connection)) {
        }
      } catch (const std::exception& error) {  // no memory
        shared_.log.error("exception", {{"message", error.what()}});
      }
    }
    shared_.metrics.set("tqcache_connections", static_cast<double>(--shared_.n_connections));
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
    return true;
  }

  void refuse(Connection& connection, const Refusal& refusal) {
    shared_.metrics.add("tqcache_requests_refused_total", 1,
                        {{"status", std::to_string(refusal.status)}});
    shared_.log.warning("refused", {{"status", std::to_string(refusal.status)},
                                    {"client", connection.remote()},
                                    {"message", refusal.message}});
    connection.refuse(refusal);
  }

  // Reads a request and answers it. Returns whether the connection goes on.
  bool serve_one(Connection& connection) {
    Head head;
    BufferedBytes buffered(shared_);
    Refusal refusal;
    switch (connection.read_request(head, buffered, refusal)) {
      case Connection::Outcome::kClosed:
        return false;
      case Connection::Outcome::kRefused:
        refuse(connection, refusal);
        return false;
      case Connection::Outcome::kRequest:
        break;
    }
    const auto start = Clock::now();
    const bool close = !head.keep_alive || shared_.is_stopping;
    const bool is_head = head.request.method == "HEAD";
    PreparedStream stream(
        fmt::format("{} / HTTP/1.{}\r\nConnection: {}\r\n\r\n", is_head ? "HEAD" : "GET",
                    head.request.minor_version, close ? "close" : "Keep-Alive"),
        connection);
    current_request = {&head.request, &connection};
    status_ = 0;
    shared_.metrics.set("tqcache_requests_running", static_cast<double>(++n_running_));
    bool is_closed = false;
    const bool is_sent = process_request(stream, close, is_closed, nullptr);
    shared_.metrics.set("tqcache_requests_running", static_cast<double>(--n_running_));
    current_request = {};
    const auto took = std::chrono::duration<double>(Clock::now() - start).count();
    shared_.log.info("request", {{"method", head.request.method},
                                 {"path", head.request.path},
                                 {"status", std::to_string(status_)},
                                 {"complete", is_sent ? "yes" : "no"},
                                 {"seconds", fmt::format("{:.3f}", took)},
                                 {"client", connection.remote()}});
    return is_sent && !close && !is_closed;
  }

  Response handle(const Request& request, Connection& connection) {
    bool knows_path = false;
    for (const Route& route : routes_) {
      if (route.path != request.path) continue;
      if (route.method == request.method) return route.handler(request, connection);
      knows_path = true;
    }
    const bool is_get = request.method == "GET" || request.method == "HEAD";
    if (request.path == "/health" && is_get) {
      return health_ ? health_() : Response::json(200, R"({"status":"ok"})");
    }
    if (request.path == "/metrics" && is_get) {
      Response response = Response::text(200, shared_.metrics.text());
      response.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
      return response;
    }
    if (fallback_) return fallback_(request, connection);
    const int status = knows_path ? 405 : 404;
    return Response::error(status, "invalid_request_error", reason_of(status));
  }

  // Counts the answer of this thread before its first byte is sent: a client that has an answer and
  // asks for /metrics finds it there.
  void count_answer(int status) {
    status_ = status;
    shared_.metrics.add("tqcache_requests_total", 1, {{"status", std::to_string(status)}});
  }

  // Fills in the answer to the request of this thread.
  void answer(httplib::Response& to) {
    const Request& request = *current_request.request;
    Response response = handle(request, *current_request.connection);
    count_answer(response.status);
    to.status = response.status;
    to.reason = reason_of(response.status);
    std::string type;
    for (const auto& [name, value] : response.headers) {
      if (same_word(name, "Content-Type")) {
        type = value;
      } else {
        to.headers.emplace(name, value);
      }
    }
    if (response.stream && request.method != "HEAD") {
      set_stream(to, response, type, request.minor_version > 0);
    } else {
      to.set_content(response.body, type);
    }
  }

  Shared shared_;
  std::atomic<int> n_running_ = 0;
  static thread_local int status_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> has_ended_ = false;
};

thread_local int HttpServer::Impl::status_ = 0;

Result<HostPort> parse_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return invalid(fmt::format("{}: the address is not HOST:PORT", text));
  }
  HostPort at;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return invalid(fmt::format("{}: write an IPv6 address as [ADDRESS]:PORT", text));
  }
  at.host = host;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), at.port);
  if (at.host.empty() || error != std::errc() || end != port.data() + port.size() || at.port < 0 ||
      at.port > 65535) {
    return invalid(fmt::format("{}: the address is not HOST:PORT", text));
  }
  return at;
}

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

HttpServer::HttpServer(HttpOptions options, Metrics& metrics, Log& log)
    : impl_(std::make_unique<Impl>(std::move(options), metrics, log)) {}
HttpServer::~HttpServer() = default;

void HttpServer::route(std::string method, std::string path, Handler handler) {
  impl_->routes_.push_back({std::move(method), std::move(path), std::move(handler)});
}
void HttpServer::set_fallback(Handler handler) { impl_->fallback_ = std::move(handler); }
void HttpServer::set_health(std::function<Response()> health) {
  impl_->health_ = std::move(health);
}
Result<void> HttpServer::start() { return impl_->start(); }
int HttpServer::port() const { return impl_->port_; }
void HttpServer::set_api_keys(std::vector<std::string> keys) { impl_->set_keys(std::move(keys)); }
void HttpServer::stop(milliseconds grace) { impl_->stop_within(grace); }

}  // namespace tqcache::serve
