#pragma once
// store/backends/redis_reply.h: what a Redis server answers, and what its refusals mean.
//
// Only for the sources of store.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"

struct redisReply;

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

}  // namespace tqcache::store
