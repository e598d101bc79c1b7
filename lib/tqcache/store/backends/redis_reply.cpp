#include "tqcache/store/backends/redis_reply.h"

#include <hiredis/hiredis.h>

#include <array>

#include "tqcache/store/backends/engine_text.h"

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
  return {ErrorCode::kCorrupt,
          "an answer of kind " + std::to_string(reply.type) + " was not expected"};
}

}  // namespace

void FreeRedisReply::operator()(redisReply* reply) const { freeReplyObject(reply); }

std::optional<std::string_view> refusal(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR) return std::nullopt;
  return text_of(reply);
}

Error refusal_error(std::string_view text) {
  const std::string told = "refused: " + printable(text);
  if (text.starts_with("ERR unknown command")) return {ErrorCode::kUnsupported, told};
  return {refusal_code(text.substr(0, text.find(' '))), told};
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

}  // namespace tqcache::store
