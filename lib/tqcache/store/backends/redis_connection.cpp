
#include "tqcache/store/backends/redis_connection.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tqcache/base/system.h"
#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {

namespace {

std::string_view text_of(const redisReply& reply) { return {reply.str, reply.len}; }

ErrorCode refusal_code(std::string_view word) {
  for (const std::string_view later :
       {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY"}) {
    if (word == later) return ErrorCode::kBusy;
  }
  if (word == "OOM") return ErrorCode::kIo;  // as a full disk
  // The server refuses this user, whatever the command says.
  if (word == "WRONGPASS" || word == "NOAUTH" || word == "NOPERM") return ErrorCode::kIo;
  return ErrorCode::kInvalidArgument;
}

Error unexpected(const redisReply& reply) {
  if (const auto text = refusal(reply)) return refusal_error(*text);
  return {ErrorCode::kCorrupt, fmt::format("an answer of kind {} was not expected", reply.type)};
}

}  // namespace

void FreeRedisReply::operator()(redisReply* reply) const { freeReplyObject(reply); }

std::optional<std::string_view> refusal(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR) return std::nullopt;
  return text_of(reply);
}

Error refusal_error(std::string_view text) {
  std::string message = "refused: " + printable(text);
  if (text.starts_with("NOAUTH ")) {
    message += " The password goes into the URL or into REDISCLI_AUTH";
  }
  if (text.starts_with("ERR unknown command")) return {ErrorCode::kUnsupported, message};
  return {refusal_code(text.substr(0, text.find(' '))), message};
}

Result<std::optional<ByteView>> reply_value(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_NIL) return std::optional<ByteView>();
  if (reply.type == REDIS_REPLY_STRING) return std::optional(as_bytes(text_of(reply)));
  return unexpected(reply);
}

Result<std::int64_t> reply_number(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_INTEGER) return std::int64_t{reply.integer};
  return unexpected(reply);
}

Result<bool> reply_ok(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_NIL) return false;
  if (reply.type == REDIS_REPLY_STATUS && text_of(reply) == "OK") return true;
  return unexpected(reply);
}

namespace {

// Added to the size of a value: its length field, and the brackets of a reply.
constexpr std::uint64_t kReplyOverhead = 64 << 10;
// Shorter arguments are copied.
constexpr std::size_t kShortBytes = 4096;
constexpr std::size_t kPiecesAtOnce = 512;

// A store is asked this often whether it was interrupted.
constexpr std::chrono::milliseconds kLook{100};
// An answer with arrays, such as a page of keys, may be larger than the largest value.
constexpr std::uint64_t kMaxArrayBytes = 16 << 20;

using Clock = std::chrono::steady_clock;

Result<void> check_interrupted(const RedisSettings& settings) {
  return settings.interrupted && settings.interrupted() ? interrupted_error() : Result<void>();
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Waits for a socket, as long as bytes keep coming or going: no pause is longer than the idle
// timeout, all of them come at the least rate, and within the limit of time.
class Patience {
 public:
  Patience(std::string action, const RedisSettings& settings)
      : action_(std::move(action)), settings_(settings) {}

  void add_bytes(std::size_t count) {
    bytes_ += count;
    last_ = Clock::now();
  }

  // Errors: kIo, kInterrupted.
  Result<void> wait(int fd, short events) const {
    for (;;) {
      TQC_TRY(check_interrupted(settings_));
      TQC_TRY_ASSIGN(const std::chrono::milliseconds left, time_left());
      pollfd one{fd, events, 0};
      const int n = ::poll(&one, 1, static_cast<int>(std::min(left, kLook).count()) + 1);
      if (n > 0) return {};
      if (n < 0 && errno != EINTR) return error(std::generic_category().message(errno));
    }
  }

 private:
  Error error(const std::string& message) const { return {ErrorCode::kIo, action_ + message}; }

  Result<std::chrono::milliseconds> time_left() const {
    using std::chrono::duration_cast;
    using std::chrono::milliseconds;
    const Clock::time_point now = Clock::now();
    const milliseconds idle = settings_.idle_timeout - duration_cast<milliseconds>(now - last_);
    if (idle.count() < 0) {
      return error(fmt::format(": nothing for {} ms", settings_.idle_timeout.count()));
    }
    const milliseconds spent = duration_cast<milliseconds>(now - begin_);
    milliseconds rate = idle;
    if (settings_.least_rate > 0) {
      const std::uint64_t allowed = bytes_ * 1000 / settings_.least_rate;
      rate = 2 * settings_.idle_timeout + milliseconds(allowed) - spent;
      if (rate.count() < 0) {
        return error(fmt::format(": fewer than {} bytes a second", settings_.least_rate));
      }
    }
    if (settings_.time_limit.count() == 0) return std::min(idle, rate);
    const milliseconds total = settings_.time_limit - spent;
    if (total.count() < 0) {
      return error(fmt::format(": not done within {} ms", settings_.time_limit.count()));
    }
    return std::min({idle, rate, total});
  }

  const std::string action_;
  const RedisSettings& settings_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  std::uint64_t bytes_ = 0;
};

Error connect_error(const std::string& message) { return {ErrorCode::kIo, "connect: " + message}; }

// What looking up a name gave; shared with its thread, which may outlive the one that asks.
struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int status = 0;
  addrinfo* list = nullptr;
  ~Lookup() {
    if (list != nullptr) ::freeaddrinfo(list);
  }

  void run(const std::string& host, const std::string& port, int flags) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int result = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    const std::lock_guard lock(mutex);
    list = result == 0 ? found : nullptr;
    status = result;
    done = true;
    changed.notify_all();
  }
};

// A name server can be slow, and the system's look-up cannot be interrupted: it gets a thread.
Result<std::shared_ptr<Lookup>> look_up(const RedisAddress& address, const RedisSettings& settings,
                                        Clock::time_point end) {
  const std::string port = std::to_string(address.port);
  auto numeric = std::make_shared<Lookup>();
  numeric->run(address.host, port, AI_NUMERICHOST);
  if (numeric->status == 0) return numeric;
  auto lookup = std::make_shared<Lookup>();
  std::thread([lookup, host = address.host, port] { lookup->run(host, port, 0); }).detach();
  std::unique_lock lock(lookup->mutex);
  while (!lookup->changed.wait_for(lock, kLook, [&] { return lookup->done; })) {
    TQC_TRY(check_interrupted(settings));
    if (Clock::now() >= end) return connect_error("the name server does not answer");
  }
  if (lookup->status != 0) return connect_error(::gai_strerror(lookup->status));
  return lookup;
}

// Errors: kIo, kInterrupted.
Result<Socket> connect_socket(int family, const sockaddr* address, socklen_t size,
                              const RedisSettings& settings, Clock::time_point end) {
  Socket socket(open_socket(family));
  if (socket.get() < 0) return connect_error(std::generic_category().message(errno));
  int status = ::connect(socket.get(), address, size) == 0 ? 0 : errno;
  while (status == EINPROGRESS || status == EINTR || status == EAGAIN) {
    TQC_TRY(check_interrupted(settings));
    if (Clock::now() >= end) return connect_error(std::generic_category().message(ETIMEDOUT));
    pollfd one{socket.get(), POLLOUT, 0};
    const int n = ::poll(&one, 1, static_cast<int>(kLook.count()) / 4);
    if (status == EAGAIN) {  // a Unix socket whose queue is full
      status = ::connect(socket.get(), address, size) == 0 ? 0 : errno;
    } else if (n > 0) {
      socklen_t length = sizeof status;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &status, &length);
    }
  }
  if (status != 0) return connect_error(std::generic_category().message(status));
  return socket;
}

Result<Socket> connect_unix(const std::string& path, const RedisSettings& settings,
                            Clock::time_point end) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return connect_error("the path is too long");
  std::copy(path.begin(), path.end(), address.sun_path);
  return connect_socket(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address,
                        settings, end);
}

Result<Socket> connect(const RedisAddress& address, const RedisSettings& settings) {
  const Clock::time_point end = Clock::now() + settings.connect_timeout;
  if (address.port == 0) return connect_unix(address.host, settings, end);
  TQC_TRY_ASSIGN(const std::shared_ptr<Lookup> found, look_up(address, settings, end));
  Result<Socket> connected = connect_error("the host has no address");
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found->list; one != nullptr; one = one->ai_next) {
      if (one->ai_family != family) continue;
      connected = connect_socket(family, one->ai_addr, one->ai_addrlen, settings, end);
      if (!connected && connected.error().code == ErrorCode::kInterrupted) return connected;
      if (!connected) continue;
      const int yes = 1;
      ::setsockopt(connected->get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      return connected;
    }
  }
  return connected;
}

void drop_empty(std::span<iovec>& pieces) {
  while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
}

// Removes the first `count` bytes.
void drop(std::span<iovec>& pieces, std::size_t count) {
  for (; count > 0; drop_empty(pieces)) {
    iovec& piece = pieces.front();
    const std::size_t taken = std::min(count, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    count -= taken;
  }
}

}  // namespace

void hide_password(std::span<char> text, std::string_view password) {
  hide(text, std::span(&password, 1));
}

void hide_password(redisReply& reply, std::string_view password) {
  if (reply.type == REDIS_REPLY_ERROR) hide_password({reply.str, reply.len}, password);
  for (std::size_t i = 0; i < reply.elements; ++i) hide_password(*reply.element[i], password);
}

std::string to_string(const RedisAddress& address) {
  if (address.port == 0) return address.host;
  const bool has_colons = address.host.find(':') != std::string::npos;
  return (has_colons ? "[" + address.host + "]" : address.host) + ":" +
         std::to_string(address.port);
}

// The parser of hiredis makes arrays as they arrive, of as many elements as the server claims.
struct RedisConnection::State {
  Socket socket;
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader{redisReaderCreate(), redisReaderFree};
  redisReplyObjectFunctions functions{};
  redisReplyObjectFunctions plain{};
  std::uint64_t elements_left = 0;
  bool too_many = false;
  Bytes buffer = Bytes(64 << 10);

  void limit_arrays() {
    plain = functions = *reader->fn;
    functions.createArray = [](const redisReadTask* task, auto count) -> void* {
      State& state = *static_cast<State*>(task->privdata);
      const auto wanted = static_cast<std::uint64_t>(count);
      state.too_many = count < 0 || wanted > state.elements_left;
      if (state.too_many) return nullptr;
      state.elements_left -= wanted;
      return state.plain.createArray(task, count);
    };
    reader->fn = &functions;
    reader->privdata = this;
  }
};

void RedisConnection::FreeState::operator()(State* state) const { delete state; }

Result<RedisConnection> RedisConnection::open(const RedisAddress& address,
                                              const RedisSettings& settings) {
  TQC_TRY_ASSIGN(Socket socket, connect(address, settings));
  std::unique_ptr<State, FreeState> state(new State);
  if (!state->reader) return connect_error("out of memory");
  state->socket = std::move(socket);
  state->limit_arrays();
  RedisConnection connection(std::move(state), settings);
  TQC_TRY(connection.log_in());
  if (settings.database != 0) {
    const std::string database = std::to_string(settings.database);
    const std::string_view select[] = {"SELECT", database};
    TQC_TRY_ASSIGN(const RedisReply reply, connection.ask(select));
    TQC_TRY_ASSIGN(const bool ok, reply_ok(*reply));
    if (!ok) return Error{ErrorCode::kCorrupt, "no answer to SELECT"};
  }
  return connection;
}

// A server may repeat the words of a command that it refuses, so none of its own is shown.
Result<void> RedisConnection::log_in() {
  if (settings_->password.empty()) return {};
  std::vector<std::string_view> login = {"AUTH"};
  if (!settings_->user.empty()) login.push_back(settings_->user);
  login.push_back(settings_->password);
  TQC_TRY_ASSIGN(const RedisReply reply, ask(login));
  const auto text = refusal(*reply);
  if (!text) {
    TQC_TRY_ASSIGN(const bool ok, reply_ok(*reply));
    return ok ? Result<void>() : Error{ErrorCode::kCorrupt, "no answer to AUTH"};
  }
  std::string reason;
  for (const std::string_view word : {"WRONGPASS", "NOPERM", "LOADING", "BUSY", "ERR"}) {
    if (text->substr(0, text->find(' ')) == word) reason = fmt::format(" ({})", word);
  }
  return Error{refusal_error(*text).code, "refused: AUTH with the password" + reason};
}

Result<RedisReply> RedisConnection::ask(std::span<const std::string_view> words) {
  append(words);
  TQC_TRY(send());
  TQC_TRY_ASSIGN(RedisReply reply, read());
  // read() leaves redirections as they are, to be followed. Here nothing follows them.
  hide_password(*reply, settings_->password);
  return reply;
}

// "*2\r\n$3\r\nGET\r\n$1\r\na\r\n". Built here because hiredis would copy values twice.
void RedisConnection::append(std::span<const std::string_view> words) {
  const auto add_line = [&](char kind, std::size_t number) {
    text_ += kind + std::to_string(number) + "\r\n";
  };
  add_line('*', words.size());
  for (const std::string_view word : words) {
    add_line('$', word.size());
    if (word.size() > kShortBytes) {
      parts_.push_back({text_.size(), word});
    } else {
      text_ += word;
    }
    text_ += "\r\n";
  }
}

Result<void> RedisConnection::send() {
  std::vector<iovec> pieces = pieces_to_send();
  std::span<iovec> rest(pieces);
  Patience patience("send", *settings_);
  while (drop_empty(rest), !rest.empty()) {
    msghdr message{};
    message.msg_iov = rest.data();
    message.msg_iovlen =
        static_cast<decltype(message.msg_iovlen)>(std::min(rest.size(), kPiecesAtOnce));
    const ssize_t sent = ::sendmsg(state_->socket.get(), &message, kNoSignal);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TQC_TRY(patience.wait(state_->socket.get(), POLLOUT));
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return io_failure("send", std::generic_category().message(errno));
    patience.add_bytes(static_cast<std::size_t>(sent));
    drop(rest, static_cast<std::size_t>(sent));
  }
  text_.clear();
  parts_.clear();
  return {};
}

std::vector<iovec> RedisConnection::pieces_to_send() {
  parts_.push_back({text_.size(), {}});
  std::vector<iovec> pieces;
  std::size_t begin = 0;
  for (const Part& part : parts_) {
    pieces.push_back({text_.data() + begin, part.text_end - begin});
    pieces.push_back({const_cast<char*>(part.value.data()), part.value.size()});
    begin = part.text_end;
  }
  return pieces;
}

Result<RedisReply> RedisConnection::read(std::size_t max_elements) {
  redisReader& reader = *state_->reader;
  state_->elements_left = max_elements;
  state_->too_many = false;
  const std::uint64_t most = settings_->max_value_bytes + kReplyOverhead;
  const std::uint64_t limit = max_elements > 0 ? std::max(most, kMaxArrayBytes) : most;
  std::uint64_t received = reader.len - reader.pos;
  Patience patience("receive", *settings_);
  for (;;) {
    void* parsed = nullptr;
    if (redisReaderGetReply(&reader, &parsed) != REDIS_OK) {
      if (state_->too_many) {
        return corrupt(fmt::format("an answer of more than {} elements", max_elements));
      }
      return corrupt("not a Redis reply: " + printable(reader.errstr));
    }
    if (parsed != nullptr) {
      RedisReply reply(static_cast<redisReply*>(parsed));
      const std::string_view shown = refusal(*reply).value_or("");
      if (!shown.starts_with("MOVED ") && !shown.starts_with("ASK ")) {
        hide_password(*reply, settings_->password);
      }
      return reply;
    }
    if (received > limit) {
      return too_large(fmt::format("an answer of more than {} bytes", settings_->max_value_bytes));
    }
    Bytes& buffer = state_->buffer;
    const ssize_t count = ::recv(state_->socket.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TQC_TRY(patience.wait(state_->socket.get(), POLLIN));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_failure("receive", std::generic_category().message(errno));
    if (count == 0) return io_failure("receive", "Server closed the connection");
    patience.add_bytes(static_cast<std::size_t>(count));
    received += static_cast<std::uint64_t>(count);
    TQC_TRY(check_interrupted(*settings_));
    const auto* const bytes = reinterpret_cast<const char*>(buffer.data());
    if (redisReaderFeed(&reader, bytes, static_cast<std::size_t>(count)) != REDIS_OK) {
      return Error{ErrorCode::kIo, "receive: " + printable(reader.errstr)};
    }
  }
}

Error RedisConnection::io_failure(const std::string& action, const std::string& message) {
  broken_ = true;
  return {ErrorCode::kIo, action + ": " + message};
}

}  // namespace tqcache::store
