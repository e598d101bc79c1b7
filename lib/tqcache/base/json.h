#pragma once
// base/json.h: typed fields of a JSON object. Safe for untrusted input.
//
// Not part of the public interface, because it exposes the JSON library.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache {

using Json = nlohmann::json;

// Errors: kCorrupt (not JSON, or not an object), kTooLarge (nested deeper than our files are).
Result<Json> parse_json_object(ByteView text);

// The value of a key; nullptr if it is absent or null, or if `object` is not an object.
const Json* find_value(const Json& object, const char* key);

// Errors: kCorrupt, with the key in the message, if it is missing or of another type.
Result<std::int64_t> get_int(const Json& object, const char* key);
Result<std::string> get_string(const Json& object, const char* key);
Result<const Json*> get_array(const Json& object, const char* key);
Result<const Json*> get_object(const Json& object, const char* key);

// The same, with `fallback` when the key is absent or null.
Result<std::int64_t> get_int_or(const Json& object, const char* key, std::int64_t fallback);
Result<double> get_number_or(const Json& object, const char* key, double fallback);
Result<bool> get_bool_or(const Json& object, const char* key, bool fallback);
Result<std::string> get_string_or(const Json& object, const char* key, const char* fallback);

}  // namespace tqcache
