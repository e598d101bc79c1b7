#pragma once
// server/tqcache/serve/embedded/api_error.h: a failed request, as clients of each dialect are told
// of it.

#include <cstdint>
#include <optional>
#include <string>

#include "tqcache/serve/embedded/parameters.h"

namespace tqcache::serve {

// With the words of OpenAI's error object.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};          // the field to blame; empty: null
  std::string code = {};           // empty: null
  std::int64_t retry_after_s = 0;  // of the header Retry-After; 0: none
};
using MaybeApiError = std::optional<ApiError>;

// {"error": {"message", "type", "param", "code"}}; in Anthropic's dialect
// {"type": "error", "error": {"type", "message"}}, with the type that belongs to the status.
std::string error_json(const ApiError& error, Dialect dialect);

}  // namespace tqcache::serve
