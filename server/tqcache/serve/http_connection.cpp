#include "tqcache/serve/http_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <optional>
#include <utility>

#include "tqcache/base/system.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How often waiting connections look whether the server is being stopped.
constexpr milliseconds kStopInterval{100};

// The head of a streamed answer goes out with its first bytes, or after this time. Until then a
// client that has closed can be told from one that waits.
constexpr milliseconds kHoldHead{1000};

// An answer of this size is copied behind its head, so that both are one packet.
constexpr std::size_t kSmallBody = std::size_t{32} << 10;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// How the client finds the end of a body.
enum class Framing { kNoBody, kLength, kChunks, kUntilClose };

Framing framing_of(const Request& request, const Response& response) {
  if (response.status == 204 || response.status == 304) return Framing::kNoBody;
  if (!response.stream || response.stream_length) return Framing::kLength;
  return request.minor_version > 0 ? Framing::kChunks : Framing::kUntilClose;
}

// Headers that this file writes itself, or that mean nothing behind it.
bool is_of_connection(const Header& header) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"Connection", "Keep-Alive", "Content-Length",
                                              "Transfer-Encoding", "Trailer", "Upgrade"},
      [&](std::string_view name) { return same_word(name, header.name); });
}

std::string head_text(const Response& response, Framing framing, const std::string& connection) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
  for (const Header& header : response.headers) {
    if (!is_well_formed(header) || is_of_connection(header)) continue;
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (framing == Framing::kLength) {
    text += fmt::format("Content-Length: {}\r\n",
                        response.stream ? *response.stream_length : response.body.size());
  }
  if (framing == Framing::kChunks) text += "Transfer-Encoding: chunked\r\n";
  return text + connection + "\r\n";
}

}  // namespace

bool BufferedBytes::grow_to(std::uint64_t n_bytes) {
  if (n_bytes <= n_bytes_) return true;
  const std::uint64_t more = n_bytes - n_bytes_;
  if (state_.buffered_bytes.fetch_add(more) + more > limit_) {
    state_.buffered_bytes -= more;
    return false;
  }
  n_bytes_ = n_bytes;
  return true;
}

// --- Reading

Connection::ReadResult Connection::read_more(Clock::time_point deadline) {
  while (true) {
    if (state_.is_cut_off) return ReadResult::kEnd;
    char bytes[std::size_t{16} << 10];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n > 0) {
      input_.append(bytes, static_cast<std::size_t>(n));
      return ReadResult::kBytes;
    }
    if (n == 0) return ReadResult::kEnd;
    if (errno == EINTR) continue;
    if (!would_block()) return ReadResult::kEnd;
    const auto now = Clock::now();
    if (now >= deadline) return ReadResult::kTimeout;
    const auto left = std::chrono::ceil<milliseconds>(deadline - now);
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, static_cast<int>(std::min(left, kStopInterval).count()));
  }
}

// Waits for the first byte of a request. Returns false if there is none.
bool Connection::wait_for_request(milliseconds idle) {
  const auto deadline = Clock::now() + idle;
  while (input_.empty()) {
    if (state_.is_stopping || Clock::now() > deadline) return false;
    if (read_more(Clock::now() + kStopInterval) == ReadResult::kEnd) return false;
    // Empty lines before a request are allowed, and some clients send one.
    while (input_.starts_with("\r\n")) input_.erase(0, 2);
  }
  return true;
}

Connection::Outcome Connection::read_head(milliseconds idle, milliseconds limit, Head& head,
                                          Refusal& refusal) {
  if (!wait_for_request(idle)) return Outcome::kClosed;
  n_sent_ = 0;
  waited_ = {};
  const auto deadline = Clock::now() + limit;
  std::size_t end = std::string::npos;
  std::size_t searched = 0;
  while ((end = input_.find("\r\n\r\n", searched)) == std::string::npos) {
    if (input_.size() > options_.head.max_bytes) {
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
  const std::string text = input_.substr(0, end + 4);
  input_.erase(0, end + 4);
  if (const auto refused = parse_head(text, options_.head, head)) {
    refusal = *refused;
    return Outcome::kRefused;
  }
  if (head.content_length.value_or(0) > options_.max_body_bytes) {
    refusal = {413, fmt::format("the body has more than {} bytes, the limit of this server",
                                options_.max_body_bytes)};
    return Outcome::kRefused;
  }
  minor_version_ = head.request.minor_version;
  return Outcome::kDone;
}

Connection::Outcome Connection::read_body(Head& head, BufferedBytes& buffered, Refusal& refusal) {
  if (head.expects_continue && input_.empty()) send(kContinue);
  n_sent_ = 0;  // of the answer
  const auto start = Clock::now();
  const auto latest_end = start + options_.body_timeout;
  ChunkDecoder chunks(options_.max_body_bytes);
  std::string& body = head.request.body;
  const std::uint64_t length = head.content_length.value_or(0);
  while (head.is_chunked ? !chunks.is_complete() : body.size() < length) {
    if (Clock::now() > latest_end) {
      refusal = {408, "the body did not arrive in time"};
      return Outcome::kRefused;
    }
    if (input_.empty()) {
      const auto latest = std::min(Clock::now(), start + time_for(body.size()));
      const ReadResult read = read_more(std::min(latest + options_.read_timeout, latest_end));
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
  return Outcome::kDone;
}

// --- Writing

bool Connection::is_gone() {
  const std::lock_guard lock(mutex_);
  if (state_.is_cut_off) return true;
  const PeerState state = peer_state(fd_);
  if (state == PeerState::kGone) return true;
  if (state == PeerState::kOpen) {
    const bool is_late = !held_.empty() && Clock::now() - held_since_ > kHoldHead;
    return is_late && !send_locked({});
  }
  if (is_half_closed_) return false;
  if (n_sent_ > 0 || minor_version_ == 0) return true;
  is_half_closed_ = true;
  return ::send(fd_, kContinue.data(), kContinue.size(), kNoSignal | MSG_DONTWAIT) !=
         static_cast<ssize_t>(kContinue.size());
}

// False: the client is gone, or too slow.
bool Connection::send(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  return send_locked(bytes);
}

bool Connection::send_locked(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::exchange(held_, {}) + std::string(bytes);
    bytes = joined;
  }
  auto deadline = Clock::now() + options_.write_timeout;
  while (!bytes.empty()) {
    if (state_.is_cut_off) return false;
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), kNoSignal | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      n_sent_ += static_cast<std::uint64_t>(n);
      deadline = Clock::now() + options_.write_timeout;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || !would_block()) return false;
    const auto now = Clock::now();
    if (now > deadline || waited_ > options_.write_timeout + time_for(n_sent_)) return false;
    pollfd ready = {.fd = fd_, .events = POLLOUT, .revents = 0};
    ::poll(&ready, 1, static_cast<int>(kStopInterval.count()));
    waited_ += Clock::now() - now;
  }
  return true;
}

// In which a client that is not too slow sends or takes so many bytes.
milliseconds Connection::time_for(std::uint64_t n_bytes) const {
  return milliseconds(1000 * n_bytes / options_.least_bytes_per_second);
}

// Writes a streamed body, of which the client can see whether it is complete.
class Connection::BodySink : public Sink {
 public:
  BodySink(Connection& connection, Framing framing, std::uint64_t length)
      : connection_(connection), framing_(framing), left_(length) {}

  bool write(std::string_view bytes) override {
    if (bytes.empty() || !is_good_) return is_good_;
    if (framing_ == Framing::kChunks) {
      is_good_ = connection_.send(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
    } else {
      // No byte of a longer body is taken for the next answer.
      const bool fits = framing_ != Framing::kLength || bytes.size() <= left_;
      left_ -= fits ? bytes.size() : 0;
      is_good_ = fits && connection_.send(bytes);
    }
    return is_good_;
  }

  // Ends a body that is complete as its maker sees it. Returns whether it is.
  bool finish() {
    if (framing_ == Framing::kChunks) return is_good_ && connection_.send("0\r\n\r\n");
    return is_good_ && (framing_ != Framing::kLength || left_ == 0) && connection_.send({});
  }

 private:
  Connection& connection_;
  Framing framing_;
  std::uint64_t left_;  // of kLength
  bool is_good_ = true;
};

bool Connection::answer(const Request& request, const Response& response, bool keep_alive) {
  const Framing framing = framing_of(request, response);
  const auto idle = std::chrono::floor<std::chrono::seconds>(options_.idle_timeout).count();
  std::string head = head_text(
      response, framing,
      keep_alive ? fmt::format("Keep-Alive: timeout={}\r\n", idle) : "Connection: close\r\n");
  const bool has_body = request.method != "HEAD" && framing != Framing::kNoBody;
  if (!has_body || !response.stream) {
    if (!has_body) return send(head);
    if (response.body.size() <= kSmallBody) return send(head + response.body);
    return send(head) && send(response.body);
  }
  {
    const std::lock_guard lock(mutex_);
    held_ = std::move(head);
    held_since_ = Clock::now();
  }
  BodySink body(*this, framing, response.stream_length.value_or(0));
  // Only a reset tells the client of an old version that the body is not complete.
  is_broken_off_ = framing == Framing::kUntilClose;
  if (response.stream(body) && body.finish()) {
    is_broken_off_ = false;
    return true;
  }
  send({});  // the head, if nothing followed it
  return false;
}

void Connection::end() {
  if (is_broken_off_) {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    return;
  }
  if (::shutdown(fd_, SHUT_WR) != 0) return;
  const auto deadline = Clock::now() + milliseconds(2000);
  std::uint64_t n_dropped = 0;
  input_.clear();
  while (n_dropped < (std::uint64_t{256} << 20) &&
         read_more(std::min(deadline, Clock::now() + milliseconds(500))) == ReadResult::kBytes) {
    n_dropped += input_.size();
    input_.clear();
  }
}

}  // namespace tqcache::serve
