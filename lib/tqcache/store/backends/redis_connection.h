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

// kBusy, kIo, kInvalidArgument or kUnsupported, by the refusal's first word.
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

// Puts stars in the place of the password, wherever it is in the text. No password: nothing.
void hide_password(std::span<char> text, std::string_view password);
// The same in a refusal, or in all refusals that are parts of an array.
void hide_password(redisReply& reply, std::string_view password);

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

// Threads: one at a time. Unusable after an error.
class RedisConnection {
 public:
  // Connects, authenticates (AUTH) and selects the database (SELECT).
  // Errors: kIo; kInterrupted; kInvalidArgument and others as refusal_error(). The message repeats
  //         no text of the server's answer to AUTH.
  static Result<RedisConnection> open(const RedisAddress& address, const RedisSettings& settings);

  // Adds a command to those that the next send() sends. Its words must live until then, because
  // values are sent without a copy.
  void append(std::span<const std::string_view> words);
  // Errors: kIo; kInterrupted.
  Result<void> send();
  // The answer to the next command in the order of append(). Its arrays may have at most
  // `max_elements` elements in all. In a refusal that repeats the password, stars replace it; but
  // not in one that begins as a redirection does, which the caller parses.
  // Errors: kIo; kInterrupted; kTooLarge for an answer above the limit; kCorrupt if it is not a
  //         Redis answer, or has more elements.
  Result<RedisReply> read(std::size_t max_elements = 0);

  // Whether the last error was a broken connection, so that a new connection may work. A timeout is
  // not.
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

  // Data to be sent: text up to `text_end`, then the value.
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
