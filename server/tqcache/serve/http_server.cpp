#include "tqcache/serve/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "tqcache/base/system.h"
#include "tqcache/serve/http_connection.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How often the thread that accepts looks whether the server is being stopped.
constexpr milliseconds kAcceptInterval{100};

// Connections beyond the limits, for GET /health and GET /metrics. When there are more, the one
// that has waited longest for its client is closed: a client that wants an answer sends its request
// at once, so no number of others keeps it from being answered.
constexpr std::size_t kReserve = 64;
constexpr milliseconds kReserveTimeout{2000};

// The client of an accepted socket.
struct PeerAddress {
  std::string text = "unknown";
  std::string network;  // what counts as one address
  bool is_this_machine = false;
};

PeerAddress read_address(const sockaddr_storage& from) {
  PeerAddress peer;
  in_addr v4 = {};
  bool is_v4 = from.ss_family == AF_INET;
  if (is_v4) std::memcpy(&v4, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, sizeof(v4));
  char text[INET6_ADDRSTRLEN] = {};
  if (from.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    is_v4 = IN6_IS_ADDR_V4MAPPED(&v6);
    std::memcpy(&v4, v6.s6_addr + 12, sizeof(v4));
    if (!is_v4 && ::inet_ntop(AF_INET6, &v6, text, sizeof(text)) != nullptr) peer.text = text;
    peer.network.assign(reinterpret_cast<const char*>(v6.s6_addr), 8);
    peer.is_this_machine = IN6_IS_ADDR_LOOPBACK(&v6);
  }
  if (is_v4) {
    if (::inet_ntop(AF_INET, &v4, text, sizeof(text)) != nullptr) peer.text = text;
    peer.network = peer.text;
    peer.is_this_machine = (ntohl(v4.s_addr) >> 24) == 127;
  }
  return peer;
}

// A connection. The mutex of the server guards what changes.
struct Peer {
  int fd = -1;
  PeerAddress address;
  const char* refusal = nullptr;  // why only /health and /metrics are answered
  bool is_waiting = true;         // for the client
  bool is_displaced = false;
  bool is_taken = false;  // by a thread
};

struct PathHandler {
  std::string method;
  std::string path;
  HttpServer::Handler handler;
};

bool is_read(const Request& request) { return request.method == "GET" || request.method == "HEAD"; }

// Listens on the first address of the host that can be bound. Errors: kIo.
Result<int> listen_on(const HostPort& at, const std::string& name) {
  addrinfo wanted{};
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &wanted, &found);
  if (failure != 0) {
    return Error{ErrorCode::kIo,
                 fmt::format("cannot listen on {}: {}", name, ::gai_strerror(failure))};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = open_socket(each->ai_family);
    if (fd < 0) {
      error = errno;
      continue;
    }
    // No SO_REUSEPORT: with it two servers could share a port without noticing.
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    constexpr int kBacklog = 1024;  // for clients that come all at once
    if (::bind(fd, each->ai_addr, each->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return fd;
    error = errno;
    ::close(fd);
  }
  return Error{ErrorCode::kIo, fmt::format("cannot listen on {}: {}", name, std::strerror(error))};
}

Result<int> port_of(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Error{ErrorCode::kIo, fmt::format("getsockname: {}", std::strerror(errno))};
  }
  // The port is at the same place in both.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, Metrics& metrics, Log& log)
      : options_(std::move(options)), metrics_(metrics), log_(log) {
    using Type = Metrics::Type;
    metrics.define("tqcache_requests_total", Type::kCounter, "Requests answered.", false);
    metrics.define("tqcache_requests_refused_total", Type::kCounter,
                   "Requests refused before they were handled.", false);
    metrics.define("tqcache_connections", Type::kGauge, "Open connections of clients.");
    metrics.define("tqcache_requests_running", Type::kGauge, "Requests being answered.");
  }

  ~Impl() {
    stop_within(milliseconds(0));
    if (listen_fd_ >= 0) ::close(listen_fd_);
  }

  Result<void> start() {
    TQC_TRY_ASSIGN(const HostPort at, parse_host_port(options_.address));
    TQC_TRY_ASSIGN(listen_fd_, listen_on(at, options_.address));
    TQC_TRY_ASSIGN(port_, port_of(listen_fd_));
    fit_open_files();
    // Signals are for the thread that waits for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    acceptor_ = std::thread([this] { accept_until_stopped(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

  void stop_within(milliseconds grace) {
    if (!acceptor_.joinable()) return;
    state_.is_stopping = true;
    ::shutdown(listen_fd_, SHUT_RDWR);  // wakes the thread
    acceptor_.join();
    ::close(std::exchange(listen_fd_, -1));
    std::unique_lock lock(mutex_);
    const auto have_all_ended = [this] { return peers_.empty(); };
    changed_.wait_for(lock, grace, have_all_ended);
    state_.is_cut_off = true;
    changed_.wait(lock, have_all_ended);
    has_ended_ = true;
    arrived_.notify_all();
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void set_keys(std::vector<std::string> keys) {
    const std::lock_guard lock(mutex_);
    options_.api_keys = std::move(keys);
  }

  int port_ = 0;
  std::vector<PathHandler> routes_;
  HttpServer::Handler fallback_;
  std::function<Response()> health_;

 private:
  // --- Connections

  // Sockets that cannot be accepted for want of file descriptors would keep even /health waiting.
  // Half of those that are left are for connections; others are for the upstream server and stores.
  void fit_open_files() {
    rlimit limit = {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    const auto n_open = static_cast<rlim_t>(listen_fd_) + 1;
    const rlim_t n_left = limit.rlim_cur > n_open ? limit.rlim_cur - n_open : 0;
    n_reserve_ = static_cast<std::size_t>(std::clamp<rlim_t>(n_left / 8, 2, kReserve));
    const auto n_most = static_cast<std::size_t>(std::clamp<rlim_t>(n_left / 2, 1, SIZE_MAX / 2));
    if (options_.max_connections <= n_most) return;
    log_.warning("open-files",
                 {{"message", fmt::format("{} open files are allowed: at most {} connections at a "
                                          "time, not {} (ulimit -n raises this)",
                                          limit.rlim_cur, n_most, options_.max_connections)}});
    options_.max_connections = n_most;
  }

  void accept_until_stopped() {
    while (!state_.is_stopping) {
      pollfd ready = {.fd = listen_fd_, .events = POLLIN, .revents = 0};
      ::poll(&ready, 1, static_cast<int>(kAcceptInterval.count()));
      sockaddr_storage from = {};
      socklen_t size = sizeof(from);
      const int fd = accept_connection(listen_fd_, reinterpret_cast<sockaddr*>(&from), &size);
      if (fd >= 0) {
        try {
          admit(fd, read_address(from));
        } catch (const std::bad_alloc&) {
          ::close(fd);
        }
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        wait_for_resources(errno);
      }
    }
  }

  void wait_for_resources(int error) {
    constexpr std::chrono::seconds kBetweenWarnings{10};
    const auto now = Clock::now();
    if (warned_ == Clock::time_point() || now - warned_ > kBetweenWarnings) {
      log_.error("accept", {{"message", std::strerror(error)}});
      warned_ = now;
    }
    std::unique_lock lock(mutex_);
    displace_oldest();
    changed_.wait_for(lock, milliseconds(10));
  }

  std::size_t n_in_reserve() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(peers_, [](const Peer& peer) { return peer.refusal != nullptr; }));
  }

  // Closes the connection of the reserve that has waited longest for its client, if one waits.
  bool displace_oldest() {
    for (Peer& peer : peers_) {  // in the order in which they came
      if (peer.refusal == nullptr || !peer.is_waiting || peer.is_displaced) continue;
      peer.is_displaced = true;
      ::shutdown(peer.fd, SHUT_RDWR);
      return true;
    }
    return false;
  }

  // Why a client gets no more than a connection of the reserve; null: it gets one of its own.
  const char* refusal_for(const PeerAddress& address) const {
    std::size_t n_all = 0;
    std::size_t n_same = 0;
    for (const Peer& peer : peers_) {
      if (peer.refusal != nullptr) continue;
      n_all += 1;
      n_same += peer.address.network == address.network ? 1 : 0;
    }
    if (n_all >= options_.max_connections) return "too many connections";
    const std::size_t given = options_.max_connections_per_address;
    const std::size_t limit =
        given > 0 ? given : std::max<std::size_t>(8, options_.max_connections / 4);
    const bool is_limited = given > 0 || !address.is_this_machine;
    return is_limited && n_same >= limit ? "too many connections from this address" : nullptr;
  }

  void admit(int fd, PeerAddress address) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    std::unique_lock lock(mutex_);
    const char* refusal = refusal_for(address);
    if (refusal != nullptr && n_in_reserve() >= n_reserve_) {
      const auto has_room = [this] { return n_in_reserve() < n_reserve_; };
      if (!displace_oldest() || !changed_.wait_for(lock, kAcceptInterval, has_room)) {
        metrics_.add("tqcache_requests_refused_total", 1, {{"status", "503"}});
        ::close(fd);
        return;
      }
    }
    const auto peer = peers_.insert(peers_.end(), Peer{});
    peer->fd = fd;
    peer->address = std::move(address);
    peer->refusal = refusal;
    metrics_.set("tqcache_connections", static_cast<double>(peers_.size()));
    n_untaken_ += 1;
    if (n_idle_ >= n_untaken_) {
      arrived_.notify_one();
      return;
    }
    // There are never more threads than there were connections at a time.
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::exception& error) {
      log_.error("thread", {{"message", error.what()}});
      n_untaken_ -= 1;
      close_connection(peer);
    }
  }

  void close_connection(std::list<Peer>::iterator peer) {
    ::close(peer->fd);
    peers_.erase(peer);
    metrics_.set("tqcache_connections", static_cast<double>(peers_.size()));
    changed_.notify_all();
  }

  // Serves one connection after another.
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      n_idle_ += 1;
      arrived_.wait(lock, [this] { return has_ended_ || n_untaken_ > 0; });
      n_idle_ -= 1;
      if (n_untaken_ == 0) return;
      n_untaken_ -= 1;
      const auto peer = std::ranges::find(peers_, false, &Peer::is_taken);
      peer->is_taken = true;
      lock.unlock();
      serve(*peer);
      lock.lock();
      close_connection(peer);
    }
  }

  void serve(Peer& peer) {
    Connection connection(peer.fd, options_, state_);
    try {
      while (serve_one(connection, peer)) {
      }
      set_waiting(peer, true);
      connection.end();
    } catch (const std::exception& error) {  // no memory
      log_.error("exception", {{"message", error.what()}});
    }
  }

  void set_waiting(Peer& peer, bool is_waiting) {
    const std::lock_guard lock(mutex_);
    peer.is_waiting = is_waiting;
  }

  // --- Requests

  // Reads a request and answers it. Returns whether the connection goes on.
  bool serve_one(Connection& connection, Peer& peer) {
    Head head;
    BufferedBytes buffered(state_, options_.max_buffered_bytes);
    Refusal refusal;
    set_waiting(peer, true);
    const Connection::Outcome outcome = read_request(connection, peer, head, buffered, refusal);
    if (outcome == Connection::Outcome::kClosed) return false;
    set_waiting(peer, false);
    if (outcome == Connection::Outcome::kRefused) {
      refuse(connection, peer, head.request, refusal);
      return false;
    }
    const Request& request = head.request;
    const bool keep_alive = head.keep_alive && !state_.is_stopping && peer.refusal == nullptr;
    const auto start = Clock::now();
    metrics_.set("tqcache_requests_running", static_cast<double>(++n_running_));
    int status = 0;
    bool is_complete = false;
    try {
      const Response response = respond(request, connection);
      status = response.status;
      // Before its first byte is sent: a client that has an answer and asks for /metrics finds it
      // there.
      metrics_.add("tqcache_requests_total", 1, {{"status", std::to_string(status)}});
      is_complete = connection.answer(request, response, keep_alive);
    } catch (const std::exception& error) {  // in the middle of a streamed answer
      log_.error("exception", {{"message", error.what()}});
    }
    metrics_.set("tqcache_requests_running", static_cast<double>(--n_running_));
    const auto took = std::chrono::duration<double>(Clock::now() - start).count();
    log_.info("request", {{"method", request.method},
                          {"path", request.path},
                          {"status", std::to_string(status)},
                          {"complete", is_complete ? "yes" : "no"},
                          {"seconds", fmt::format("{:.3f}", took)},
                          {"client", peer.address.text}});
    return is_complete && keep_alive;
  }

  Connection::Outcome read_request(Connection& connection, const Peer& peer, Head& head,
                                   BufferedBytes& buffered, Refusal& refusal) {
    const bool is_reserve = peer.refusal != nullptr;
    const auto limit =
        is_reserve ? std::min(kReserveTimeout, options_.head_timeout) : options_.head_timeout;
    const auto outcome =
        connection.read_head(is_reserve ? limit : options_.idle_timeout, limit, head, refusal);
    if (outcome != Connection::Outcome::kDone) return outcome;
    head.request.remote = peer.address.text;
    head.request.api_key = api_key_of(head.request);
    std::optional<Refusal> refused;
    if (is_reserve && !(is_read(head.request) &&
                        (head.request.path == "/health" || head.request.path == "/metrics"))) {
      refused = Refusal{503, peer.refusal};
    } else {
      const std::lock_guard lock(mutex_);  // of the keys
      refused = check_access(head.request, options_);
    }
    if (refused) {
      refusal = *refused;
      return Connection::Outcome::kRefused;
    }
    return connection.read_body(head, buffered, refusal);
  }

  void refuse(Connection& connection, const Peer& peer, const Request& request,
              const Refusal& refusal) {
    metrics_.add("tqcache_requests_refused_total", 1, {{"status", std::to_string(refusal.status)}});
    log_.warning("refused", {{"status", std::to_string(refusal.status)},
                             {"client", peer.address.text},
                             {"message", refusal.message}});
    Response response = Response::error(
        refusal.status, refusal.status == 403 ? "permission_error" : "invalid_request_error",
        refusal.message);
    if (!refusal.challenge.empty()) {
      response.headers.push_back({"WWW-Authenticate", refusal.challenge});
    }
    add_cors_headers(request, options_, response.headers);
    connection.answer(request, response, false);
  }

  Response respond(const Request& request, Connection& connection) {
    Response response;
    try {
      response =
          is_preflight(request, options_) ? answer_preflight(request) : handle(request, connection);
    } catch (const std::exception& error) {
      log_.error("exception", {{"message", error.what()}});
      response = Response::error(500, "server_error", "internal error");
    }
    add_cors_headers(request, options_, response.headers);
    return response;
  }

  Response handle(const Request& request, Connection& connection) {
    std::string known;  // methods of the path
    for (const PathHandler& route : routes_) {
      if (route.path != request.path) continue;
      const bool is_head_of_get = request.method == "HEAD" && route.method == "GET";
      if (route.method == request.method || is_head_of_get) {
        return route.handler(request, connection);
      }
      known += (known.empty() ? "" : ", ") + route.method;
    }
    if (request.path == "/health" && is_read(request)) {
      return health_ ? health_() : Response::json(200, R"({"status":"ok"})");
    }
    if (request.path == "/metrics" && is_read(request)) {
      Response response = Response::text(200, metrics_.text());
      response.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
      return response;
    }
    if (fallback_) return fallback_(request, connection);
    const int status = known.empty() ? 404 : 405;
    Response response = Response::error(status, "invalid_request_error", reason_of(status));
    if (!known.empty()) response.headers.push_back({"Allow", known});
    return response;
  }

  HttpOptions options_;  // the keys: guarded by mutex_
  Metrics& metrics_;
  Log& log_;
  ServerState state_;
  std::atomic<int> n_running_ = 0;
  int listen_fd_ = -1;
  std::size_t n_reserve_ = kReserve;
  Clock::time_point warned_;
  std::thread acceptor_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::list<Peer> peers_;  // in the order in which they came
  std::vector<std::thread> threads_;
  std::size_t n_untaken_ = 0;  // connections that wait for a thread
  std::size_t n_idle_ = 0;     // threads that wait for a connection
  bool has_ended_ = false;
  std::condition_variable arrived_;  // a connection, or the end
  std::condition_variable changed_;  // a connection has ended
};

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
