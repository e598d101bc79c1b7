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

// The answer as the command's result type. Errors: refusal_error(); kCorrupt for another type.
Result<std::optional<ByteView>> reply_value(const redisReply& reply);  // nullopt: absent
Result<std::int64_t> reply_number(const redisReply& reply);
// Whether the answer is OK and not nil. Errors: as above.
Result<bool> reply_ok(const redisReply& reply);

// --- a connection to one Redis server

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

// Threads: one at a time. Unusable after an error.
class RedisConnection {
 public:
  // Connects, authenticates (AUTH) and selects the database (SELECT).
  // Errors: kIo; kInvalidArgument and others as refusal_error().
  static Result<RedisConnection> open(const RedisAddress& address, const RedisSettings& settings);

  // Adds a command to those that the next send() sends. Its words must live until then, because
  // values are sent without a copy.
  void append(std::span<const std::string_view> words);
  // Errors: kIo.
  Result<void> send();
  // The answer to the next command in the order of append().
  // Errors: kIo; kTooLarge for an answer above the limit; kCorrupt if it is not a Redis answer.
  Result<RedisReply> read();

  // Whether the last error was a broken connection, so that a new connection may work. A timeout is
  // not.
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

  // Data to be sent: text up to `text_end`, then the value.
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
