#include "tqcache/store/redis_connection.h"

#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <cerrno>
#include <vector>

#include "tqcache/store/engine_text.h"

namespace tqcache::store {
namespace {

// Around a value: its length, and the brackets of a reply.
constexpr std::uint64_t kReplyOverhead = 64 << 10;

timeval as_timeval(std::chrono::milliseconds time) {
  return {static_cast<time_t>(time.count() / 1000),
          static_cast<suseconds_t>(time.count() % 1000 * 1000)};
}

redisContext* connect(const RedisAddress& address, std::chrono::milliseconds timeout) {
  const timeval time = as_timeval(timeout);
  if (address.port == 0) return redisConnectUnixWithTimeout(address.host.c_str(), time);
  return redisConnectWithTimeout(address.host.c_str(), address.port, time);
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
  TQC_TRY(append(words));
  TQC_TRY(send());
  TQC_TRY_ASSIGN(const RedisReply reply, read());
  TQC_TRY_ASSIGN(const bool ok, reply_ok(*reply));
  return ok ? Result<void>() : Error{ErrorCode::kCorrupt, "no answer to " + std::string(words[0])};
}

Result<void> RedisConnection::append(std::span<const std::string_view> words) {
  std::vector<const char*> begins;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    begins.push_back(word.data() == nullptr ? "" : word.data());
    sizes.push_back(word.size());
  }
  const int count = static_cast<int>(words.size());
  if (redisAppendCommandArgv(context_.get(), count, begins.data(), sizes.data()) == REDIS_OK)
    return {};
  return Error{ErrorCode::kTooLarge, "no memory for a command"};
}

Result<void> RedisConnection::send() {
  for (int done = 0; done == 0;) {
    errno = 0;
    if (redisBufferWrite(context_.get(), &done) != REDIS_OK) return failure("send");
  }
  return {};
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
      return Error{ErrorCode::kTooLarge, "an answer of more than " +
                                             std::to_string(settings_->max_value_bytes) + " bytes"};
    }
  }
}

Error RedisConnection::failure(const std::string& action) {
  const int error_number = errno;
  if (context_->err == REDIS_ERR_PROTOCOL) {
    return {ErrorCode::kCorrupt, "no answer of Redis: " + printable(context_->errstr)};
  }
  if (context_->err == REDIS_ERR_IO && (error_number == EAGAIN || error_number == EWOULDBLOCK)) {
    return {ErrorCode::kIo,
            action + ": nothing for " + std::to_string(settings_->idle_timeout.count()) + " ms"};
  }
  broken_ = true;
  return {ErrorCode::kIo, action + ": " + printable(context_->errstr)};
}

}  // namespace tqcache::store
