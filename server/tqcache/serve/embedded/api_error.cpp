#include "tqcache/serve/embedded/api_error.h"

#include <nlohmann/json.hpp>

namespace tqcache::serve {
namespace {

const char* anthropic_type(int status) {
  switch (status) {
    case 400:
      return "invalid_request_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return "api_error";
  }
}

}  // namespace

std::string error_json(const ApiError& error, Dialect dialect) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json json;
  if (dialect == Dialect::kMessages) {
    json["type"] = "error";
    json["error"] = {{"type", anthropic_type(error.status)}, {"message", error.message}};
  } else {
    json["error"] = {{"message", error.message},
                     {"type", error.type},
                     {"param", or_null(error.param)},
                     {"code", or_null(error.code)}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tqcache::serve
