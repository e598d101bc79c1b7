#pragma once
// migrations/v1_json.h: JSON texts of version 1. Safe for untrusted input.

#include <string_view>

#include "tqcache/base/result.h"
#include "tqcache/model/json_fields.h"

namespace tqcache::migrations {

using model::Json;

// Errors: kCorrupt. Requires: a text of moderate size, as its values take some fifty times the
// memory. (How deep they nest does not matter: nothing recurses.)
inline Result<Json> parse_json(std::string_view text) {
  Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error{ErrorCode::kCorrupt, "not JSON"};
  return json;
}

inline Result<Json> parse_object(std::string_view text) {
  TQC_TRY_ASSIGN(Json json, parse_json(text));
  if (!json.is_object()) return Error{ErrorCode::kCorrupt, "not a JSON object"};
  return json;
}

}  // namespace tqcache::migrations
