#pragma once
// store/backends/redis_connection.h: one connection to a Redis server, and its replies.
//
// Only for the sources of store.

#include <chrono>
#include <cstdint>
#include <functional>
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
  std::chrono::milliseconds time_limit{};  // BackendOptions::time_limit, and so on
  std::uint64_t least_rate = 0;
  std::uint64_t max_value_bytes = 0;
  std::function<bool()> interrupted;  // may be empty
};

// Threads: one at a time. After an error nothing can be asked any more.
class RedisConnection {
 public:
  // Connects, and says who asks (AUTH) and which database is meant (SELECT).
  // Errors: kIo; kInterrupted; kInvalidArgument and others as refusal_error(), in whose messages no
  // word of the server to AUTH is repeated.
  static Result<RedisConnection> open(const RedisAddress& address, const RedisSettings& settings);

  // Adds a command to those that go with the next send(), until which its words must live: a value
  // is sent from where it is.
  void append(std::span<const std::string_view> words);
  // Errors: kIo; kInterrupted.
  Result<void> send();
  // The answer to the next command in the order of append(). The arrays in it may have at most
  // `max_elements` elements in all. A refusal that repeats the password has stars in its place.
  // Errors: kIo; kInterrupted; kTooLarge for a larger one than can be wanted; kCorrupt when it is
  // no Redis answer, or has more elements.
  Result<RedisReply> read(std::size_t max_elements = 0);

  // Whether an error was that of a connection that broke, which another may not have; time that ran
  // out is none.
  bool is_broken() const { return broken_; }

 private:
  struct State;  // the socket and the parser
  struct FreeState {
    void operator()(State* state) const;
  };
  RedisConnection(std::unique_ptr<State, FreeState> state, const RedisSettings& settings)
      : state_(std::move(state)), settings_(&settings) {}
  Result<void> log_in();
  Result<RedisReply> ask(std::span<const std::string_view> words);
  std::vector<iovec> pieces_to_send();
  Error io_failure(const std::string& action, const std::string& message);
  void hide_password(redisReply& reply) const;

  // What is to be sent: text up to `text_end`, and then the value.
  struct Part {
    std::size_t text_end = 0;
    std::string_view value;
  };

  std::unique_ptr<State, FreeState> state_;
  const RedisSettings* settings_;
  std::string text_;
  std::vector<Part> parts_;
  bool broken_ = false;
};

}  // namespace tqcache::store
