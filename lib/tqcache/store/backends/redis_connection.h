#pragma once
// store/backends/redis_connection.h: one connection to a Redis server, and its replies.
//
// Only for the sources of store.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

struct redisReply;

struct iovec;
struct redisContext;

namespace tqcache::store {

struct FreeRedisReply {
  void operator()(redisReply* reply) const;
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

// The text of a refusal; nullopt for every other answer.
std::optional<std::string_view> refusal(const redisReply& reply);

// kBusy, kTooLarge, kInvalidArgument or kUnsupported, by the refusal's first word.
Error refusal_error(std::string_view text);

// The answer as what the command gives. Errors: refusal_error(); kCorrupt for another kind.
Result<std::optional<ByteView>> reply_value(const redisReply& reply);  // nullopt: there is none
Result<std::int64_t> reply_number(const redisReply& reply);
// Whether it is OK and not nil. Errors: as above.
Result<bool> reply_ok(const redisReply& reply);

// one connection to one Redis server.

// A host and its port, or the path of a socket and port 0.
struct RedisAddress {
  std::string host;
  std::uint16_t port = 0;
  auto operator<=>(const RedisAddress&) const = default;
};

std::string to_string(const RedisAddress& address);

struct RedisSettings {
  std::string user, password;  // no password: no AUTH
  std::uint32_t database = 0;
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds idle_timeout{};
  std::uint64_t max_value_bytes = 0;
};

// Threads: one at a time. After an error nothing can be asked any more.
class RedisConnection {
 public:
  // Connects, and says who asks (AUTH) and which database is meant (SELECT).
  // Errors: kIo; kInvalidArgument and others as refusal_error().
  static Result<RedisConnection> open(const RedisAddress& address, const RedisSettings& settings);

  // Adds a command to those that go with the next send(), until which its words must live: a value
  // is sent from where it is.
  void append(std::span<const std::string_view> words);
  // Errors: kIo.
  Result<void> send();
  // The answer to the next command in the order of append().
  // Errors: kIo; kTooLarge for a larger one than can be wanted; kCorrupt when it is no Redis
  // answer.
  Result<RedisReply> read();

  // Whether an error was that of a connection that broke, which another may not have; time that ran
  // out is none.
  bool is_broken() const { return broken_; }

 private:
  struct Close {
    void operator()(redisContext* context) const;
  };
  RedisConnection(std::unique_ptr<redisContext, Close> context, const RedisSettings& settings)
      : context_(std::move(context)), settings_(&settings) {}
  Result<void> ask(std::span<const std::string_view> words);
  std::vector<iovec> pieces_to_send();
  Error failure(const std::string& action);
  Error io_failure(const std::string& action, int error_number, const std::string& message);

  // What is to be sent: text up to `text_end`, and then the value.
  struct Part {
    std::size_t text_end = 0;
    std::string_view value;
  };

  std::unique_ptr<redisContext, Close> context_;
  const RedisSettings* settings_;
  std::string text_;
  std::vector<Part> parts_;
  bool broken_ = false;
};

}  // namespace tqcache::store
