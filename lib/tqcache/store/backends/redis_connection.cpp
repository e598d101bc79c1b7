
#include "tqcache/store/backends/redis_connection.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {

namespace {

std::string_view text_of(const redisReply& reply) { return {reply.str, reply.len}; }

ErrorCode refusal_code(std::string_view word) {
  for (const std::string_view later :
       {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY"}) {
    if (word == later) return ErrorCode::kBusy;
  }
  if (word == "OOM") return ErrorCode::kTooLarge;
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
  const std::string message = "refused: " + printable(text);
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

timeval as_timeval(std::chrono::milliseconds time) {
  return {static_cast<time_t>(time.count() / 1000),
          static_cast<suseconds_t>(time.count() % 1000 * 1000)};
}

redisContext* connect(const RedisAddress& address, std::chrono::milliseconds timeout) {
  const timeval time = as_timeval(timeout);
  if (address.port == 0) return redisConnectUnixWithTimeout(address.host.c_str(), time);
  return redisConnectWithTimeout(address.host.c_str(), address.port, time);
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

std::string to_string(const RedisAddress& address) {
  if (address.port == 0) return address.host;
  const bool has_colons = address.host.find(':') != std::string::npos;
  return (has_colons ? "[" + address.host + "]" : address.host) + ":" +
         std::to_string(address.port);
}

void RedisConnection::Close::operator()(redisContext* context) const { redisFree(context); }

Result<RedisConnection> RedisConnection::open(const RedisAddress& address,
                                              const RedisSettings& settings) {
  std::unique_ptr<redisContext, Close> context(connect(address, settings.connect_timeout));
  if (!context) return Error{ErrorCode::kIo, "connect: out of memory"};
  if (context->err != 0) return Error{ErrorCode::kIo, "connect: " + printable(context->errstr)};
  redisSetTimeout(context.get(), as_timeval(settings.idle_timeout));
  RedisConnection connection(std::move(context), settings);
  const std::string database = std::to_string(settings.database);
  std::vector<std::string_view> login = {"AUTH"};
  if (!settings.user.empty()) login.push_back(settings.user);
  login.push_back(settings.password);
  if (!settings.password.empty()) TQC_TRY(connection.ask(login));
  if (settings.database != 0) {
    const std::string_view select[] = {"SELECT", database};
    TQC_TRY(connection.ask(select));
  }
  return connection;
}

Result<void> RedisConnection::ask(std::span<const std::string_view> words) {
  append(words);
  TQC_TRY(send());
  TQC_TRY_ASSIGN(const RedisReply reply, read());
  TQC_TRY_ASSIGN(const bool ok, reply_ok(*reply));
  return ok ? Result<void>() : Error{ErrorCode::kCorrupt, "no answer to " + std::string(words[0])};
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
  while (drop_empty(rest), !rest.empty()) {
    msghdr message{};
    message.msg_iov = rest.data();
    message.msg_iovlen = std::min(rest.size(), kPiecesAtOnce);
    const ssize_t sent = ::sendmsg(context_->fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return io_failure("send", errno, std::generic_category().message(errno));
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

Result<RedisReply> RedisConnection::read() {
  for (;;) {
    void* reply = nullptr;
    errno = 0;
    if (redisGetReplyFromReader(context_.get(), &reply) != REDIS_OK) return failure("receive");
    if (reply != nullptr) return RedisReply(static_cast<redisReply*>(reply));
    if (redisBufferRead(context_.get()) != REDIS_OK) return failure("receive");
    const redisReader& reader = *context_->reader;
    if (reader.len - reader.pos > settings_->max_value_bytes + kReplyOverhead) {
      return too_large(fmt::format("an answer of more than {} bytes", settings_->max_value_bytes));
    }
  }
}

Error RedisConnection::failure(const std::string& action) {
  const int error_number = context_->err == REDIS_ERR_IO ? errno : 0;
  const std::string message = printable(context_->errstr);
  if (context_->err == REDIS_ERR_PROTOCOL) {
    return {ErrorCode::kCorrupt, "not a Redis reply: " + message};
  }
  return io_failure(action, error_number, message);
}

Error RedisConnection::io_failure(const std::string& action, int error_number,
                                  const std::string& message) {
  if (error_number == EAGAIN || error_number == EWOULDBLOCK) {
    return {ErrorCode::kIo,
            fmt::format("{}: nothing for {} ms", action, settings_->idle_timeout.count())};
  }
  broken_ = true;
  return {ErrorCode::kIo, action + ": " + message};
}

}  // namespace tqcache::store
